"""What the model checker explores besides, one feature at a time: together they would multiply the places of a chat."""

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
    """Adds nothing: the base of those that add moves, and what the table can tell apart."""

    tools: Sequence[str] = tuple(TOOLS)
    """What a reply calls."""
    without: Collection[type[t.Trigger]] = ()
    """Triggers that are not tried."""
    limits: ClassVar[dict[str, object]] = {"queue_limit": 2}
    circumstances: Sequence[str] = ("",)
    """Under each of them alone a worker must be able to bring a chat to rest."""

    def moves(self, _facts: Facts, _token: int | None) -> Iterator[Move]:
        """Yield what may be tried besides."""
        yield from ()

    def under(self, move: Move) -> Iterator[Move]:
        """Yield the move under each circumstance in which it is tried."""
        yield move

    def keep(self, _facts: Facts, plain: Facts) -> Facts:
        """Return canonical facts with what the table looks at for this feature."""
        return plain

    def key(self, _facts: Facts) -> Hashable:
        """Return what tells canonical facts apart besides."""
        return None

    def expected(self, known: Hashable, _move: Move) -> Hashable:
        """Return what clients and the clock may expect after a move, by what they could expect before."""
        return known

    def wrong_with(self, _known: Hashable, _before: Facts, _move: Move, _decision: Decision) -> Iterator[str]:
        """Yield where a decision does not keep what the feature promises."""
        yield from ()


class Steering(Feature):
    """Messages that steer are told apart in the queue."""

    tools = FEW
    limits: ClassVar[dict[str, object]] = {"queue_limit": 2, **_NO_COMPACTION}

    def keep(self, facts: Facts, plain: Facts) -> Facts:
        """Return facts whose queue says what steers."""
        return replace(plain, queue=_as_in(facts, plain))

    def key(self, facts: Facts) -> Hashable:
        """Return which messages steer."""
        return tuple(queued.steers for queued in facts.queue)

    def wrong_with(self, _known: Hashable, before: Facts, move: Move, decision: Decision) -> Iterator[str]:
        """Yield where a message that steers comes between a call and its result."""
        steered = [write.message.steered for write in decision.writes if isinstance(write, InsertMessage)]
        if any(steered) and decision.facts.open_calls:
            yield f"after {move} a message stands between {decision.facts.open_calls[0].call_id} and its result"


class Schedules(Steering):
    """One schedule: a message that is sent once, or a series of two times, each with every `when_busy`.

    What clients and the clock expect of it is followed beside the facts. So sweepers that crash before a commit, crash
    after it, or have read the schedule too early need no moves of their own: each may fire what there ever was.
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
        """Yield what clients do with the schedule, and the firing of it and of what it may have been before."""
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
        """Return facts with the schedule, whose queue says what steers and what the clock has sent."""
        plain = super().keep(facts, plain)
        wakeup = Wakeup(schedule="s", by=SYSTEM, due=NOW)
        queue = tuple(
            replace(one, wakeup=wakeup if queued.wakeup else None)
            for one, queued in zip(plain.queue, facts.queue, strict=True)
        )
        return replace(plain, queue=queue, schedules=facts.schedules)

    def key(self, facts: Facts) -> Hashable:
        """Return the schedule, which messages steer, and which the clock has sent."""
        waiting = tuple(queued.wakeup is not None for queued in facts.queue)
        return super().key(facts), waiting, tuple((one.when_busy, one.every, one.due) for one in facts.schedules)

    def expected(self, known: Hashable, move: Move) -> Hashable:
        """Return when the message is to be sent next; `None` once it was sent, taken back or archived."""
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
        """Yield where the clock sends what it may not send, or nothing, or where it forgets the schedule."""
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
        """Return facts that say whether the first model has failed."""
        return replace(plain, turn=replace(plain.turn, fallback_from=(FAILURE,) * len(facts.turn.fallback_from)))

    def key(self, facts: Facts) -> Hashable:
        """Return whether the first model has failed."""
        return len(facts.turn.fallback_from)

    def wrong_with(self, _known: Hashable, before: Facts, move: Move, decision: Decision) -> Iterator[str]:
        """Yield where a model is skipped, or one that has failed is asked again in the turn."""
        failed = len(before.turn.fallback_from), len(decision.facts.turn.fallback_from)
        noted = sum(isinstance(write, NoteFallback) for write in decision.writes)
        if move.trigger is t.FallbackStarted and (failed != (0, 1) or noted != 1):
            yield f"after {move} {failed[1]} models have failed, and {noted} of them are in the log"
        goes_on = decision.facts.turn.number == before.turn.number and decision.facts.turn.open
        if goes_on and move.kind != "outside" and failed[1] < failed[0]:
            yield f"after {move} the turn forgets the model that failed"


class Budgets(Feature):
    """A budget that is spent, one that open calls of others have reserved, and one that leaves plenty."""

    tools = ONE
    limits: ClassVar[dict[str, object]] = {"queue_limit": 1, "max_steps": 1}
    circumstances = ("", "spent", "reserved")
    _FUNDS: ClassVar[dict[str, Funds]] = {
        "plenty": Funds((StoredBudget(owner="o", tokens=10**9),)),
        "spent": Funds((StoredBudget(owner="o", tokens=9, spent=Amount(9)),)),
        "reserved": Funds((StoredBudget(owner="o", tokens=9, reservations={"other": Reservation(9, None)}),)),
    }
    _FREE: Final = (t.Interrupt, t.Renamed, t.MetadataChanged, t.Configured, t.CallStarted, t.CallFinished)
    """Triggers that look at no budget."""

    def under(self, move: Move) -> Iterator[Move]:
        """Yield the move without a budget, and with each."""
        yield move
        for name, funds in self._FUNDS.items() if not move.stale and move.trigger not in self._FREE else ():
            yield replace_move(move, funds, name)

    def wrong_with(self, _known: Hashable, before: Facts, move: Move, decision: Decision) -> Iterator[str]:
        """Yield where a call begins that is not paid, or does not reserve; and where one ends that does not settle."""
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
    """Return the plain queue, with what steers."""
    return tuple(replace(one, steers=queued.steers) for one, queued in zip(plain.queue, facts.queue, strict=True))
