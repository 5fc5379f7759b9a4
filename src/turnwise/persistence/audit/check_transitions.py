"""Replays a log: follows where the chat stands, and finds the first record that cannot be true.

Records hold kinds, ids and digests of writes, never content. That is enough to follow the lease, the calls, the queue,
the ids of messages and the compactions, and to check them against the table and the states' invariants.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NoReturn

from turnwise.persistence.audit.check_invariants import Replayed, broken_invariant, call_open, local_call_open
from turnwise.persistence.audit.check_parties import wrong_party
from turnwise.persistence.audit.check_writes import Violation, WriteChecker
from turnwise.persistence.audit.record import AuditRecord
from turnwise.states import actions as a
from turnwise.states import guards as g
from turnwise.states import triggers as t
from turnwise.states.names import NEW, UNKNOWN, ChatState
from turnwise.states.table import TABLE, Guard, Row, rows_of, triggers_in
from turnwise.states.triggers import TRIGGERS
from turnwise.states.writes import ERASING_KINDS


class Replay:
    """Follows where a chat stands according to its log. Takes the records in order."""

    def __init__(self) -> None:
        self._write_checker = WriteChecker()
        self._state: str | None = None
        self._settled = True
        self._archived = False
        self._numbers = (0, 0, 0)
        self._refused_step = 0
        """The last step whose prompt the provider refused as too long; a compaction lets it go on."""

    def follow(self, record: AuditRecord) -> None:
        """Take the next record.

        Raises:
            Violation: the record cannot follow those before it. The replay must not be used any more.
        """
        self._record = record
        self._check_row()
        self._check_own_write()
        held = self._write_checker.token, self._write_checker.lease
        self._write_checker.follow(record, step=self._numbers[1])
        self._check_numbers()
        self._conclude()
        self._check_invariants()
        self._check_party(*held)

    # The row

    def _check_row(self) -> None:
        record = self._record
        if record.trigger not in TRIGGERS:
            self._refuse("the table knows no such trigger")
        trigger, place = TRIGGERS[record.trigger], _place_of(record.source)
        if trigger is not t.Repaired and record.source != self._state:
            self._refuse(f"it starts from {record.source!a:.40}, but the record before led to {self._state!a}")
        if self._state is None and trigger is not t.Create:
            self._refuse("a chat begins with create")
        if self._archived and not trigger.while_archived:
            self._refuse(f"the chat is archived, and an archived chat accepts only {', '.join(_WHILE_ARCHIVED)}")
        rows = rows_of(trigger, place)
        if not rows:
            allowed = ", ".join(one.name for one in triggers_in(place))
            self._refuse(f"the table has no such row in {place}; it allows there: {allowed}")
        targets = self._targets(rows)
        if record.target not in targets:
            allowed = ", ".join(dict.fromkeys(targets)) or "nothing, as the chat stands"
            self._refuse(f"it leads from {place} to {record.target!a:.40}, but the table leads to: {allowed}")

    def _targets(self, rows: Iterable[Row]) -> list[ChatState]:
        """Return where the first row may lead whose guards hold, as far as a log can answer them."""
        answers: dict[Guard[Any], bool] = {
            g.settled: self._settled,
            g.unsettled: not self._settled,
            g.queue_waits: bool(self._write_checker.queue),
            g.queue_is_empty: not self._write_checker.queue,
            g.unleased: self._write_checker.token is None,
            g.leased: self._write_checker.token is not None,
        }
        targets = []
        for row in rows:
            known = [answers.get(guard) for guard in row.when]
            if False not in known:
                targets.append(row.target)
            if all(known):
                break
        return targets

    def _check_numbers(self) -> None:
        record = self._record
        numbers = (record.turn, record.step, record.attempt)
        if record.trigger == t.Repaired.name or (self._state is None and min(numbers) >= 0):
            return
        turn, step, attempt = self._numbers
        step_begun = self._begins_step()
        wanted = (
            turn + self._begins_turn(),
            step + step_begun,
            0 if step_begun else attempt + (record.trigger == t.AttemptStarted.name),
        )
        if numbers != wanted:
            self._refuse(f"turn, step and attempt are {numbers} after {self._numbers}, but {wanted} follows")

    def _begins_step(self) -> bool:
        """Whether this record begins a step.

        A claim may instead continue a step that has no reply yet, and a compaction the step that it made room for.
        """
        record = self._record
        if record.trigger == t.Claimed.name and record.step == self._numbers[1]:
            return False
        if record.trigger == t.Compacted.name and self._refused_step == self._numbers[1]:
            return False
        return (record.trigger, record.target) in _BEGIN_STEPS

    def _begins_turn(self) -> bool:
        record = self._record
        taken = any(write.kind == "dequeue:taken" for write in record.writes)
        return taken or (record.trigger, record.source, record.target) in _BEGIN_TURNS

    def _check_own_write(self) -> None:
        """Check the writes that only one trigger may make, exactly once. Only a fork takes over a boundary."""
        kinds = [write.kind for write in self._record.writes]
        own = TRIGGERS[self._record.trigger].own_write
        if own is not None and kinds.count(own) != 1:
            self._refuse(f"it has {kinds.count(own)} writes {own}, where exactly one belongs")
        if self._record.trigger == t.MessageErased.name:
            self._check_erasure(kinds)
            return
        for kind in kinds:
            inherited = self._record.trigger == t.Create.name and kind.startswith("boundary:")
            if kind in _OWNED and kind != own and not inherited:
                self._refuse(f"a write {kind} belongs to another trigger")

    def _check_erasure(self, kinds: Sequence[str]) -> None:
        """Check that an erasure does nothing else."""
        for kind in kinds:
            if not kind.startswith("erase") and kind not in _BESIDE_ERASURE:
                self._refuse(f"a write {kind} belongs to another trigger")

    def _conclude(self) -> None:
        record = self._record
        if record.trigger in (t.Archived.name, t.Unarchived.name):
            self._archived = record.trigger == t.Archived.name
        self._settled = (
            record.target != ChatState.interrupted
            or record.trigger == t.Settled.name
            or (record.source == ChatState.interrupted and self._settled)
        )
        if record.trigger == t.AttemptDiscarded.name and record.target == ChatState.compacting:
            self._refused_step = record.step
        self._state = record.target
        self._numbers = (record.turn, record.step, record.attempt)

    # Invariants

    def _check_invariants(self) -> None:
        record = self._record
        chat = Replayed(ChatState(record.target), self._settled, record.step, self._write_checker)
        problem = broken_invariant(chat)
        if problem is None and chat.state is ChatState.pending:
            problem = self._lost_call() if self._is_handed_back() else self._abandoned_call(chat)
        if problem is not None:
            self._refuse(problem)

    def _check_party(self, token: int | None, lease: str | None) -> None:
        """Check who has fired, under the lease that there was before the record, or under the one that it grants."""
        if token is None:
            token, lease = self._write_checker.token, self._write_checker.lease
        problem = wrong_party(self._record, token, lease)
        if problem is not None:
            self._refuse(problem)

    def _lost_call(self) -> str | None:
        """Return what is wrong if a call that may not run again is left for the next worker."""
        for call_id, call in self._write_checker.open_calls.items():
            if call.started and call.runner == "at_most_once":
                return f"call {call_id!a:.40} was started and runs at most once, so it must end `unknown` here"
        return None

    def _abandoned_call(self, chat: Replayed) -> str | None:
        """Return what is wrong if a call is left open, and not because the client has just allowed one to run."""
        allowed = self._record.trigger == t.SubmitToolResults.name and local_call_open(chat) is not None
        return None if allowed else call_open(chat)

    def _is_handed_back(self) -> bool:
        """Whether a chat in `pending` waits for another worker in the middle of a step."""
        record = self._record
        waited = record.source == ChatState.pending and record.trigger != t.Claimed.name
        return waited or record.trigger in _GIVE_UP

    def _refuse(self, problem: str) -> NoReturn:
        raise Violation(self._record, problem)


def _place_of(source: str | None) -> str:
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
_GIVE_UP: Final = frozenset(row.trigger.name for row in TABLE if a.give_up_started_calls in row.actions)

_OWNED: Final = ERASING_KINDS | {kind.own_write for kind in TRIGGERS.values() if kind.own_write is not None}
_BESIDE_ERASURE: Final = ("profile", "facts", "events", "dequeue:deleted")
