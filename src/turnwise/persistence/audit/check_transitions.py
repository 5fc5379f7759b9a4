"""Replays a log: follows where the chat stands, and finds the first record that cannot be true.

Records hold kinds, ids and digests of writes, never content. That is enough to follow the lease, the calls, the queue,
the ids of messages and the compactions, and to check them against the table and the states' invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from turnwise.persistence.audit.check_invariants import Replayed, broken_invariant, call_open, local_call_open
from turnwise.persistence.audit.check_writes import Violation, WriteChecker
from turnwise.persistence.audit.record import AuditRecord
from turnwise.states import actions as a
from turnwise.states import guards as g
from turnwise.states import triggers as t
from turnwise.states.decide import BEGIN_ATTEMPTS
from turnwise.states.names import NEW, SYSTEM, UNKNOWN, WORKER, ChatState
from turnwise.states.table import TABLE, Guard, Row, rows_of, triggers_in
from turnwise.states.triggers import TRIGGERS, Held
from turnwise.states.writes import ERASING_KINDS, digest_of_lease


class Replay:
    """Follows where a chat stands according to its log. Takes the records in order."""

    def __init__(self) -> None:
        self.writes = WriteChecker()
        self.state: str | None = None
        """Where the record before led; `None` before the first."""
        self.settled = True
        self.archived = False
        self.numbers = (0, 0, 0)
        """The turn, the step and the attempt of the record before."""
        self.retry_waits = False
        """Whether the step's next attempt may have to wait."""
        self.refused_step = 0
        """The last step whose prompt the provider refused as too long; a compaction lets it go on."""
        self.lease_before: tuple[int | None, str | None] = (None, None)
        """The token and the digest of the lease before the record that is checked last."""

    def follow(self, record: AuditRecord) -> None:
        """Take the next record.

        Raises:
            Violation: the record cannot follow those before it. The replay must not be used any more.
        """
        self._ask(CHECKS_OF_TRANSITION, record)
        self.lease_before = self.writes.token, self.writes.lease
        self.writes.follow(record, step=self.numbers[1])
        self._ask(CHECKS_OF_NUMBERS, record)
        self._conclude(record)
        self._ask(CHECKS_OF_STATE, record)

    def _ask(self, checks: Iterable[Check], record: AuditRecord) -> None:
        for check in checks:
            problem = check(record, self)
            if problem is not None:
                raise Violation(record, problem)

    def _conclude(self, record: AuditRecord) -> None:
        if record.trigger in (t.Archived.name, t.Unarchived.name):
            self.archived = record.trigger == t.Archived.name
        self.settled = (
            record.target != ChatState.interrupted
            or record.trigger == t.Settled.name
            or (record.source == ChatState.interrupted and self.settled)
        )
        if record.trigger == t.AttemptDiscarded.name and record.target == ChatState.compacting:
            self.refused_step = record.step
        discarded = record.trigger == t.AttemptDiscarded.name and record.target == record.source
        numbers = (record.turn, record.step, record.attempt)
        self.retry_waits = discarded or (self.retry_waits and numbers == self.numbers)
        self.state, self.numbers = record.target, numbers


Check = Callable[[AuditRecord, Replay], str | None]
"""Returns what is wrong with a record, given the log before it; `None` if nothing is."""


# The transition, given where the chat stood


def trigger_is_declared(record: AuditRecord, chat: Replay) -> str | None:  # noqa: ARG001 - a check like the others
    """The machine has the trigger."""
    return None if record.trigger in TRIGGERS else "the table knows no such trigger"


def source_is_where_the_chat_stood(record: AuditRecord, chat: Replay) -> str | None:
    """The source is the target of the record before; a repair may start anywhere."""
    if record.trigger == t.Repaired.name or record.source == chat.state:
        return None
    return f"it starts from {record.source!a:.40}, but the record before led to {chat.state!a}"


def create_comes_first(record: AuditRecord, chat: Replay) -> str | None:
    """A chat begins with `create`."""
    begins = chat.state is not None or record.trigger == t.Create.name
    return None if begins else "a chat begins with create"


def archive_is_closed(record: AuditRecord, chat: Replay) -> str | None:
    """An archived chat accepts only triggers with `while_archived`."""
    if not chat.archived or TRIGGERS[record.trigger].while_archived:
        return None
    return f"the chat is archived, and an archived chat accepts only {', '.join(_WHILE_ARCHIVED)}"


def table_has_the_row(record: AuditRecord, chat: Replay) -> str | None:
    """The table has a row for the trigger, from the source to the target, whose guards may hold."""
    place = _find_source(record.source)
    rows = rows_of(TRIGGERS[record.trigger], place)
    if not rows:
        allowed = ", ".join(one.name for one in triggers_in(place))
        return f"the table has no such row in {place}; it allows there: {allowed}"
    targets = _targets(rows, chat)
    if record.target in targets:
        return None
    allowed = ", ".join(dict.fromkeys(targets)) or "nothing, as the chat stands"
    return f"it leads from {place} to {record.target!a:.40}, but the table leads to: {allowed}"


def _targets(rows: Iterable[Row], chat: Replay) -> list[ChatState]:
    """Return where the first row may lead whose guards hold, as far as a log can answer them."""
    answers: dict[Guard[Any], bool] = {
        g.settled: chat.settled,
        g.unsettled: not chat.settled,
        g.queue_waits: bool(chat.writes.queue),
        g.queue_is_empty: not chat.writes.queue,
        g.unleased: chat.writes.token is None,
        g.leased: chat.writes.token is not None,
    }
    targets = []
    for row in rows:
        known = [answers.get(guard) for guard in row.when]
        if False not in known:
            targets.append(row.target)
        if all(known):
            break
    return targets


def trigger_makes_its_own_write(record: AuditRecord, chat: Replay) -> str | None:  # noqa: ARG001 - as above
    """The write that a trigger declares as its own is there exactly once."""
    own = TRIGGERS[record.trigger].own_write
    count = 0 if own is None else [write.kind for write in record.writes].count(own)
    return None if own is None or count == 1 else f"it has {count} writes {own}, where exactly one belongs"


def writes_belong_to_the_trigger(record: AuditRecord, chat: Replay) -> str | None:  # noqa: ARG001 - as above
    """No trigger makes a write that is another one's own. Only a fork takes over a boundary; an erasure only erases."""
    own, erases = TRIGGERS[record.trigger].own_write, record.trigger == t.MessageErased.name
    for kind in (write.kind for write in record.writes):
        inherited = record.trigger == t.Create.name and kind.startswith("boundary:")
        foreign = kind in _OWNED and kind != own and not inherited
        if (not kind.startswith("erase") and kind not in _BESIDE_ERASURE) if erases else foreign:
            return f"a write {kind} belongs to another trigger"
    return None


# Turn, step and attempt


def numbers_follow(record: AuditRecord, chat: Replay) -> str | None:
    """Turn, step and attempt are those before, or one more where one begins."""
    numbers = (record.turn, record.step, record.attempt)
    if record.trigger == t.Repaired.name or (chat.state is None and min(numbers) >= 0):
        return None
    turn, step, attempt = chat.numbers
    begins_step = _begins_step(record, chat)
    begins_attempt = (TRIGGERS[record.trigger], record.target) in BEGIN_ATTEMPTS
    wanted = (turn + _begins_turn(record), step + begins_step, (0 if begins_step else attempt) + begins_attempt)
    waits = chat.retry_waits and record.trigger == t.Claimed.name and numbers == chat.numbers
    if numbers == wanted or waits:
        return None
    return f"turn, step and attempt are {numbers} after {chat.numbers}, but {wanted} follows"


def _begins_step(record: AuditRecord, chat: Replay) -> bool:
    """Whether a record begins a step.

    A claim may instead continue a step that has no reply yet, and a compaction the step that it made room for.
    """
    if record.trigger == t.Claimed.name and record.step == chat.numbers[1]:
        return False
    if record.trigger == t.Compacted.name and chat.refused_step == chat.numbers[1]:
        return False
    return (record.trigger, record.target) in _BEGIN_STEPS


def _begins_turn(record: AuditRecord) -> bool:
    taken = any(write.kind == "dequeue:taken" for write in record.writes)
    return taken or (record.trigger, record.source, record.target) in _BEGIN_TURNS


# Where the chat stands afterwards


def invariants_hold(record: AuditRecord, chat: Replay) -> str | None:
    """The invariants of the target hold, as far as the log shows."""
    return broken_invariant(_replay(record, chat))


def steering_is_taken(record: AuditRecord, chat: Replay) -> str | None:
    """Where the model is asked next, no message waits any more that steers the turn under way."""
    if not chat.writes.steering or (TRIGGERS[record.trigger], record.source, record.target) not in _TAKE_STEERING:
        return None
    return f"the model is asked, and message {min(chat.writes.steering)!a:.40} waits, which steers the turn"


def calls_are_concluded(record: AuditRecord, chat: Replay) -> str | None:
    """A chat in `pending` leaves no call behind, unless it is handed back in the middle of a step or a call may run."""
    if record.target != ChatState.pending:
        return None
    if _is_handed_back(record):
        return _lost_call(chat)
    replayed = _replay(record, chat)
    is_allowed = record.trigger == t.SubmitToolResults.name and local_call_open(replayed) is not None
    return None if is_allowed else call_open(replayed)


def party_may_fire(record: AuditRecord, chat: Replay) -> str | None:
    """The actor may fire the trigger, under the lease that there was before the record, or the one that it grants."""
    token, lease = chat.lease_before
    return wrong_party(record, *((chat.writes.token, chat.writes.lease) if token is None else (token, lease)))


def _replay(record: AuditRecord, chat: Replay) -> Replayed:
    return Replayed(ChatState(record.target), chat.settled, record.step, chat.writes)


def _lost_call(chat: Replay) -> str | None:
    """Return the problem of a call that may not run again and is left for the next worker."""
    for call_id, call in chat.writes.open_calls.items():
        if call.started and call.runner == "at_most_once":
            return f"call {call_id!a:.40} was started and runs at most once, so it must end `unknown` here"
    return None


def _is_handed_back(record: AuditRecord) -> bool:
    """Whether a chat in `pending` waits for another worker in the middle of a step."""
    waited = record.source == ChatState.pending and record.trigger != t.Claimed.name
    return waited or record.trigger in _GIVE_UP


CHECKS_OF_TRANSITION: Final[tuple[Check, ...]] = (
    trigger_is_declared,
    source_is_where_the_chat_stood,
    create_comes_first,
    archive_is_closed,
    table_has_the_row,
    trigger_makes_its_own_write,
    writes_belong_to_the_trigger,
)
"""What is asked of a record before its writes are followed, in this order."""
CHECKS_OF_NUMBERS: Final[tuple[Check, ...]] = (numbers_follow,)
"""What is asked once they are followed."""
CHECKS_OF_STATE: Final[tuple[Check, ...]] = (invariants_hold, steering_is_taken, calls_are_concluded, party_may_fire)
"""What is asked of where the chat stands then."""


def _find_source(source: str | None) -> str:
    if source is None:
        return NEW
    return source if source in _STATES else UNKNOWN


_WHILE_ARCHIVED: Final = [trigger for trigger, kind in TRIGGERS.items() if kind.while_archived]
_STATES: Final = frozenset(state.value for state in ChatState)

_BEGIN_STEPS: Final = frozenset(
    (row.trigger.name, row.target) for row in TABLE if {a.begin_step, a.order_compaction} & {*row.actions}
)
_BEGIN_TURNS: Final = frozenset(
    (row.trigger.name, row.source, row.target) for row in TABLE if a.start_turn in row.actions
)
_TAKE_STEERING: Final = frozenset(
    (row.trigger, row.source, row.target) for row in TABLE if a.take_steering in row.actions
)
_GIVE_UP: Final = frozenset(
    row.trigger.name for row in TABLE if {a.give_up_started_calls, a.lose_open_attempt} & {*row.actions}
)

_OWNED: Final = ERASING_KINDS | {kind.own_write for kind in TRIGGERS.values() if kind.own_write is not None}
_BESIDE_ERASURE: Final = ("profile", "facts", "events", "dequeue:deleted", "schedule:dropped")


def wrong_party(record: AuditRecord, token: int | None, lease: str | None) -> str | None:
    """Return what is wrong with the actor of a record made under the lease of that token and digest, or under none.

    Names of workers alone begin with `worker:`, and the digest of a lease is also of its holder's name. Any actor
    may end a lease or a deadline, repair a chat, and settle an interrupted one without a lease. A decision without an
    actor, made without an engine, is accepted from any.
    """
    if record.actor == SYSTEM:
        return None
    kind, by = TRIGGERS[record.trigger], f"it is by {record.actor!a:.80}"
    is_worker = record.actor.startswith(WORKER)
    match kind.party:
        case "clock":
            return None
        case "lease holder" if token is not None:
            is_its = is_worker and digest_of_lease(token, record.actor.removeprefix(WORKER)) == lease
            return None if is_its else f"{by}, but token {token} was granted to another, a worker"
        case "lease holder":
            return None if is_worker or issubclass(kind, Held) else f"{by}, but only a worker may claim a chat"
        case party:
            return f"{by}, but a worker fires nothing that is for the {party}" if is_worker else None
