"""Features of the model checker, explored one at a time: together they would multiply the states."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from datetime import timedelta
from itertools import product
from typing import ClassVar, Final, get_args

from msgspec.structs import replace
from tests.life.model_checker_moves import DUE, HELLO, LATER, TOOLS, Move

from support.life import ERROR, FAILURE, NOW
from turnwise.states import triggers as t
from turnwise.states.arguments import Erasing
from turnwise.states.budgets import Amount, Funds, Reservation, StoredBudget
from turnwise.states.decide import Decision
from turnwise.states.facts import Facts
from turnwise.states.messages import QueuedMessage, ScheduledMessage, Wakeup
from turnwise.states.names import SYSTEM, WhenDue
from turnwise.states.table import BUSY
from turnwise.states.writes import InsertMessage, NoteFallback, RecordUsage, Reserve

FEW: Final = ("no call", "a local call", "a call to approve")
ONE: Final = FEW[:2]
_NO_COMPACTION: Final = {"max_steps": 1, "context_limit": 0}


class Feature:
    """The base feature: adds neither moves nor distinctions."""

    tools: Sequence[str] = tuple(TOOLS)
    """The calls of a reply."""
    without: Collection[type[t.Trigger]] = ()
    """Triggers that are not tried."""
    limits: ClassVar[dict[str, object]] = {"queue_limit": 2}
    circumstances: Sequence[str] = ("",)
    """Under each of these alone a worker must be able to bring a chat to rest."""

    def moves(self, _facts: Facts, _token: int | None) -> Iterator[Move]:
        """Yield additional moves."""
        yield from ()

    def under(self, move: Move) -> Iterator[Move]:
        """Yield the move under each circumstance in which it is tried."""
        yield move

    def keep(self, _facts: Facts, plain: Facts) -> Facts:
        """Return canonical facts with the fields that this feature needs."""
        return plain

    def key(self, _facts: Facts) -> Hashable:
        """Return the feature's part of the identity of canonical facts."""
        return None

    def expected(self, known: Hashable, _move: Move) -> Hashable:
        """Return the expectations of clients and the clock after a move, from those before it."""
        return known

    def wrong_with(self, _known: Hashable, _before: Facts, _move: Move, _decision: Decision) -> Iterator[str]:
        """Yield promises of the feature that a decision breaks."""
        yield from ()


class Steering(Feature):
    """Distinguishes steering messages in the queue."""

    tools = FEW
    limits: ClassVar[dict[str, object]] = {"queue_limit": 2, **_NO_COMPACTION}

    def keep(self, facts: Facts, plain: Facts) -> Facts:
        """Return facts whose queue marks steering messages."""
        return replace(plain, queue=_as_in(facts, plain))

    def key(self, facts: Facts) -> Hashable:
        """Return which messages steer."""
        return tuple(queued.steers for queued in facts.queue)

    def wrong_with(self, _known: Hashable, before: Facts, move: Move, decision: Decision) -> Iterator[str]:
        """Yield steering messages between a call and its result."""
        steered = [write.message.steered for write in decision.writes if isinstance(write, InsertMessage)]
        if any(steered) and decision.facts.open_calls:
            yield f"after {move} a message stands between {decision.facts.open_calls[0].call_id} and its result"


class Schedules(Steering):
    """One schedule: a single message, or a series of two times, each with every `when_busy`.

    The expectations of clients and of the clock are tracked beside the facts. Sweepers that crash before a commit
    or after it, or read the schedule too early, need no moves of their own: each may fire any earlier schedule.
    """

    tools = FEW
    without = (t.RequestCompaction,)
    limits: ClassVar[dict[str, object]] = {"queue_limit": 1, **_NO_COMPACTION}
    _AGAIN: Final = LATER + timedelta(seconds=5)
    _SERIES: Final = "* * * * *"
    _MESSAGES: Final = tuple(
        ScheduledMessage(id="s", parts=HELLO, due=DUE, every=every, when_busy=when_busy)
        for every, when_busy in product((None, _SERIES), get_args(WhenDue))
    )
    _STALE: Final = (_MESSAGES[0], _MESSAGES[3], replace(_MESSAGES[3], due=_AGAIN))

    def moves(self, facts: Facts, _token: int | None) -> Iterator[Move]:
        """Yield the client's moves on the schedule, and the firing of it and of its earlier forms."""
        for message in self._MESSAGES if not facts.schedules else ():
            yield Move("outside", t.Schedule, {"message": message}, f"{message.every or 'once'}, {message.when_busy}")
        yield Move("outside", t.Unschedule, {"schedule_id": "s"})
        yield Move("outside", t.MessageErased, {"erasing": Erasing(schedules=True)}, "the schedule")
        for message in facts.schedules:
            yield Move("mishap", t.ScheduleFired, {"message": message}, "too early")
        for message in {*facts.schedules, *self._STALE}:
            goes_on = message.every and message.due == DUE
            late = message.due + timedelta(seconds=1)
            fired = {"message": message, "next_due": self._AGAIN if goes_on else None, "now": late}
            yield Move("outside", t.ScheduleFired, fired, f"due at {message.due:%S} s, {message.when_busy}")

    def keep(self, facts: Facts, plain: Facts) -> Facts:
        """Return facts with the schedule, whose queue marks steering and scheduled messages."""
        plain = super().keep(facts, plain)
        wakeup = Wakeup(schedule="s", by=SYSTEM, due=NOW)
        queue = tuple(
            replace(one, wakeup=wakeup if queued.wakeup else None)
            for one, queued in zip(plain.queue, facts.queue, strict=True)
        )
        return replace(plain, queue=queue, schedules=facts.schedules)

    def key(self, facts: Facts) -> Hashable:
        """Return the schedule, the steering messages, and the scheduled ones."""
        waiting = tuple(queued.wakeup is not None for queued in facts.queue)
        return super().key(facts), waiting, tuple((one.when_busy, one.every, one.due) for one in facts.schedules)

    def expected(self, known: Hashable, move: Move) -> Hashable:
        """Return the next time of the schedule; `None` once it was sent, cancelled or archived."""
        match move.trigger:
            case t.Schedule:
                return DUE
            case t.ScheduleFired:
                return move.arguments["next_due"]
            case t.Unschedule | t.Archived:
                return None
            case t.MessageErased:
                return None if move.arguments["erasing"].schedules else known
        return known

    def wrong_with(self, known: Hashable, before: Facts, move: Move, decision: Decision) -> Iterator[str]:
        """Yield wrong or missing scheduled messages, and lost schedules."""
        yield from super().wrong_with(known, before, move, decision)
        if self.expected(known, move) and not decision.facts.schedules:
            yield f"after {move} the clock forgets the schedule"
        if move.trigger is not t.ScheduleFired:
            return
        message = move.arguments["message"]
        if message.due != known or "now" not in move.arguments:
            yield f"{move} sends what is not due: it was sent before, taken back, or comes later"
        waits = any(queued.wakeup for queued in before.queue)
        may_skip = message.when_busy == "skip" or (waits and message.every)
        is_busy = before.state in BUSY or not before.settled
        if decision.facts.serial == before.serial and not (may_skip and is_busy):
            yield f"{move} sends nothing"


class Fallback(Feature):
    """An agent with a second model."""

    tools = ONE
    limits: ClassVar[dict[str, object]] = {"queue_limit": 1, "max_steps": 1, "fallbacks": 1}

    def moves(self, _facts: Facts, token: int | None) -> Iterator[Move]:
        """Yield the attempt at the next model."""
        failed = {"failure": FAILURE, "error": ERROR, "next_model": "m2", "token": token}
        yield Move("progress", t.FallbackStarted, failed)

    def keep(self, facts: Facts, plain: Facts) -> Facts:
        """Return facts with a mark of the first model's failure."""
        return replace(plain, turn=replace(plain.turn, fallback_from=(FAILURE,) * len(facts.turn.fallback_from)))

    def key(self, facts: Facts) -> Hashable:
        """Return whether the first model has failed."""
        return len(facts.turn.fallback_from)

    def wrong_with(self, _known: Hashable, before: Facts, move: Move, decision: Decision) -> Iterator[str]:
        """Yield skipped models, and failed models that the turn asks again."""
        failed = len(before.turn.fallback_from), len(decision.facts.turn.fallback_from)
        noted = sum(isinstance(write, NoteFallback) for write in decision.writes)
        if move.trigger is t.FallbackStarted and (failed != (0, 1) or noted != 1):
            yield f"after {move} {failed[1]} models have failed, and {noted} of them are in the log"
        goes_on = decision.facts.turn.number == before.turn.number and decision.facts.turn.open
        if goes_on and move.kind != "outside" and failed[1] < failed[0]:
            yield f"after {move} the turn forgets the model that failed"


class Budgets(Feature):
    """A budget that is spent, one that other calls have reserved, and one with plenty left."""

    tools = ONE
    limits: ClassVar[dict[str, object]] = {"queue_limit": 1, "max_steps": 1}
    circumstances = ("", "spent", "reserved")
    _FUNDS: ClassVar[dict[str, Funds]] = {
        "plenty": Funds((StoredBudget(owner="o", tokens=10**9),)),
        "spent": Funds((StoredBudget(owner="o", tokens=9, spent=Amount(9)),)),
        "reserved": Funds((StoredBudget(owner="o", tokens=9, reservations={"other": Reservation(9, None)}),)),
    }
    _FREE: Final = (t.Interrupt, t.Renamed, t.MetadataChanged, t.Configured, t.CallStarted, t.CallFinished)
    """Triggers that ignore budgets."""

    def under(self, move: Move) -> Iterator[Move]:
        """Yield the move without a budget, and with each."""
        yield move
        for name, funds in self._FUNDS.items() if not move.stale and move.trigger not in self._FREE else ():
            yield replace_move(move, funds, name)

    def wrong_with(self, _known: Hashable, before: Facts, move: Move, decision: Decision) -> Iterator[str]:
        """Yield calls that start unpaid or without a reservation, and calls that end unsettled."""
        opened = decision.facts.step.attempt_open and (
            not before.step.attempt_open or decision.facts.step.attempt != before.step.attempt
        )
        reserves = sum(isinstance(write, Reserve) for write in decision.writes)
        if opened and move.circumstance in ("spent", "reserved"):
            yield f"{move} begins a call that no budget pays"
        if reserves != (opened and move.circumstance == "plenty"):
            yield f"{move} reserves {reserves} times"
        ended = before.step.attempt_open and (opened or not decision.facts.step.attempt_open)
        settles = sum(isinstance(write, RecordUsage) for write in decision.writes)
        if settles < ended:
            yield f"{move} ends a call, and settles nothing"


def replace_move(move: Move, funds: Funds, name: str) -> Move:
    """Return the move under a circumstance."""
    note = f"{move.note}, {name}" if move.note else name
    return Move(move.kind, move.trigger, {**move.arguments, "funds": funds}, note, circumstance=name)


def _as_in(facts: Facts, plain: Facts) -> tuple[QueuedMessage, ...]:
    """Return the plain queue with its steering marks."""
    return tuple(replace(one, steers=queued.steers) for one, queued in zip(plain.queue, facts.queue, strict=True))
