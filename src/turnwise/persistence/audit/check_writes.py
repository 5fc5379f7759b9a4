"""Follows the writes of a log: leases, calls, the queue, message ids and compactions, without content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn, get_args

import msgspec

from turnwise.persistence.audit.digests import WriteRecord
from turnwise.persistence.audit.record import AuditRecord
from turnwise.states import triggers as t
from turnwise.states.names import OPEN_STATUSES, CallStatus, ChatState, Crash


class Violation(ValueError):
    """A record that the table or an invariant forbids. Its text names the record, what it says and what is required."""

    def __init__(self, record: AuditRecord, problem: str) -> None:
        self.record = record
        super().__init__(f"Version {record.version}, {str(record.trigger)!a:.40}: {problem}")


class OpenCall(msgspec.Struct):
    """A call without a result."""

    runner: str
    """`client`, `chat` for a subagent, or the crash policy of a local call."""
    digest: str | None
    """`None` after an erasure, which may have blanked the call's arguments: the log does not say which call's."""
    started: bool = False
    started_under: int | None = None
    """The token of the lease under which it was started."""

    @property
    def is_outside(self) -> bool:
        """Whether the client or a subagent answers the call."""
        return self.runner in _OUTSIDE


class WriteChecker:
    """Follows the writes of one chat's records, in order, with a method for each kind of write.

    Every method raises `Violation` for a write that cannot follow those before it.
    """

    def __init__(self) -> None:
        self.token: int | None = None
        """The token of the current lease."""
        self.lease: str | None = None
        """The digest of the current lease: of its token and its holder."""
        self.queue: list[str] = []
        self.steering: set[str] = set()
        """The messages of the queue that steer the turn under way."""
        self.open_calls: dict[str, OpenCall] = {}
        self.acting_step = 0
        """The last step that planned a local call."""
        self.compacted: set[int] = set()
        """The steps whose compaction has ended, committed or failed."""
        self.schedules: set[str] = set()
        self._fence = 0
        self._ids: set[str] = set()
        self._history: list[str] = []
        self._taken: str | None = None
        self._unanswered: str | None = None
        self._closed: set[str] = set()
        self._receipts: set[str] = set()
        self._repaired = False

    def follow(self, record: AuditRecord, *, step: int) -> None:
        """Check the writes of a record; the chat stood at `step` before it."""
        self._record, self._step = record, step
        for write in record.writes:
            if write.kind not in _METHODS:
                self._refuse(f"there is no write of kind {write.kind!a:.40}")
            _METHODS[write.kind](self, write)
        self._check_result_follows()
        if self._taken is not None:
            self._refuse(f"message {self._taken!a:.40} left the queue and did not enter the history")
        if record.trigger == t.Archived.name and self.schedules:
            self._refuse(f"schedule {min(self.schedules)!a:.40} is left, and an archived chat has none")
        if record.trigger in (t.Compacted.name, t.CompactionFailed.name):
            self.compacted.add(step)
        if record.trigger == t.Repaired.name:
            self._forget()

    # Messages and the queue

    def insert_message(self, write: WriteRecord) -> None:
        """A message enters the history, under an id of its own or the one it was queued under."""
        if write.id == self._taken:
            self._taken = None
        elif write.id in self._ids:
            self._refuse(f"message id {write.id!a:.40} was given before, and an id is given once")
        self._unanswered = None
        self._ids.add(write.id)
        self._history.append(write.id)

    def cut_history(self, write: WriteRecord) -> None:
        """A message and all after it leave the history."""
        if write.id not in self._history:
            self._refuse(f"it cuts the history at {write.id!a:.40}, which is not in it")
        del self._history[self._history.index(write.id) :]

    def erase_message(self, write: WriteRecord) -> None:
        """A message of the history is blanked, or a tool result loses what repeats an erased call."""
        if (write.id not in self._ids and not self._repaired) or write.id in self.queue:
            self._refuse(f"it erases {write.id!a:.40}, which was never in the history")
        for call in self.open_calls.values():
            call.digest = None

    def erase_queued(self, write: WriteRecord) -> None:
        """An erased message that has left the queue is blanked in its events."""
        if write.id not in self._ids or write.id in self.queue:
            self._refuse(f"it erases {write.id!a:.40}, which never waited, or waits still")

    def blank_call(self, write: WriteRecord) -> None:
        """A call loses its arguments, or the digest of its answer."""
        if write.id in self.open_calls:
            self.open_calls[write.id].digest = write.digest

    def enqueue(self, write: WriteRecord) -> None:
        """A message enters the queue, or replaces one that waits, and steers the turn or not as that one does."""
        steers = write.kind == "enqueue:steer"
        if write.id in self.queue:
            if steers != (write.id in self.steering) and not self._repaired:
                self._refuse(f"message {write.id!a:.40} waits in the queue, and a change does not let it steer or not")
            return
        if write.id in self._ids:
            self._refuse(f"message id {write.id!a:.40} was given before and does not wait, so it cannot be queued")
        self._ids.add(write.id)
        self.queue.append(write.id)
        if steers:
            self.steering.add(write.id)

    def move_queued(self, write: WriteRecord) -> None:
        """A message of the queue moves before another one."""
        moved, _, before = write.id.partition(":")
        if moved == before or moved not in self.queue or before not in self.queue:
            self._refuse(f"it moves {moved!a:.40} before {before!a:.40}, and not both wait in the queue")
        self.queue.remove(moved)
        self.queue.insert(self.queue.index(before), moved)

    def take_queued(self, write: WriteRecord) -> None:
        if self.queue[:1] != [write.id]:
            self._refuse(f"it takes {write.id!a:.40}, which is not the head of the queue")
        self._taken = self.queue.pop(0)
        self.steering.discard(self._taken)

    def steer(self, write: WriteRecord) -> None:
        """The first message of the queue that steers enters the turn under way, after the results of its step."""
        first = next((waiting for waiting in self.queue if waiting in self.steering), None)
        if write.id not in self.queue or (write.id != first and not self._repaired):
            self._refuse(f"it takes {write.id!a:.40} into the turn, which is not the next message that steers")
        if self.open_calls:
            self._refuse(f"it puts {write.id!a:.40} between call {next(iter(self.open_calls))!a:.40} and its result")
        self._taken = write.id
        self.delete_queued(write)

    def delete_queued(self, write: WriteRecord) -> None:
        if write.id not in self.queue:
            self._refuse(f"it deletes {write.id!a:.40}, which does not wait in the queue")
        self.queue.remove(write.id)
        self.steering.discard(write.id)

    def record_receipt(self, write: WriteRecord) -> None:
        """A client's message is accepted, once."""
        if write.id in self._receipts:
            self._refuse(f"client id {write.id!a:.40} was accepted before, and is accepted once")
        self._receipts.add(write.id)

    # Schedules

    def put_schedule(self, write: WriteRecord) -> None:
        self.schedules.add(write.id)

    def fire_schedule(self, write: WriteRecord) -> None:
        if write.id not in self.schedules and not self._repaired and self._record.trigger != t.Repaired.name:
            self._refuse(f"schedule {write.id!a:.40} fires, which is not there")

    def drop_schedule(self, write: WriteRecord) -> None:
        self.fire_schedule(write)
        self.schedules.discard(write.id)

    # Calls

    def plan_call(self, write: WriteRecord) -> None:
        """A call is planned, once; a client call is recorded again when it gets its deadline."""
        runner = write.kind.rpartition(":")[2]
        call = self.open_calls.get(write.id)
        asks_client = self._record.target == ChatState.requires_action
        if call is not None and not (asks_client and call.runner == "client" and call.digest in (None, write.digest)):
            self._refuse(f"call {write.id!a:.40} is planned already, and a call is planned once")
        if write.id in self._closed:
            self._refuse(f"call {write.id!a:.40} has its result, and nothing comes after that")
        self.open_calls[write.id] = OpenCall(runner, write.digest)
        if runner not in _OUTSIDE:
            self.acting_step = self._record.step

    def plan_and_start_call(self, write: WriteRecord) -> None:
        self.plan_call(write)
        self.start_call(write)

    def approve_call(self, write: WriteRecord) -> None:
        """A call that waited for the client's approval has it, and turnwise may run it."""
        call = self._find_open(write)
        if call.runner != "client":
            self._refuse(f"call {write.id!a:.40} is approved, but did not wait for the client")
        self.open_calls[write.id] = OpenCall(write.kind.rpartition(":")[2], write.digest)
        self.acting_step = self._record.step

    def set_deadline(self, write: WriteRecord) -> None:
        if self._find_open(write).runner != "client":
            self._refuse(f"call {write.id!a:.40} gets a deadline, but is not the client's")

    def start_call(self, write: WriteRecord) -> None:
        """A planned local call starts; it may start again if its policy is at least once.

        One whose tool is asked first may, too, but only under another lease than before: the tool is asked after a
        crash, and the worker that started the call does not start it twice.
        """
        call = self._find_open(write)
        if call.is_outside:
            self._refuse(
                f"call {write.id!a:.40} is answered by the {call.runner}, and turnwise starts only local calls"
            )
        runs_once = call.runner == "asked_first" and call.started_under == self.token
        if call.started and (runs_once or call.runner == "at_most_once"):
            self._refuse(f"call {write.id!a:.40} was started before, and it starts at most once")
        if call.digest not in (None, write.digest):
            self._refuse(f"call {write.id!a:.40} is started with other arguments than it was planned with")
        call.started, call.started_under = True, self.token

    def finish_call(self, write: WriteRecord) -> None:
        """An open call gets its one result."""
        self._check_result_follows()
        if self._record.trigger != t.Repaired.name:
            self._check_answerer(self._find_open(write), write)
            del self.open_calls[write.id]
        self._closed.add(write.id)
        if self._record.trigger != t.EditMessage.name:
            self._unanswered = write.id

    def answer_of_subagent(self, write: WriteRecord) -> None:
        """A subagent answers one call that was delegated."""
        closed = [one for one in self._record.writes if one.kind.startswith("call:")]
        if self._record.trigger != t.SubmitToolResults.name or len(closed) != 1:
            self._refuse(f"it names the subagent {write.id!a:.80}, who answers one call, in submit_tool_results")

    def _check_answerer(self, call: OpenCall, write: WriteRecord) -> None:
        """Check that a subagent answers what was delegated, and the client the rest."""
        if self._record.trigger != t.SubmitToolResults.name:
            return
        by_subagent = any(one.kind == "subagent" for one in self._record.writes)
        if by_subagent != (call.runner == "chat"):
            answerer = "a subagent" if by_subagent else "the client"
            self._refuse(f"{answerer} answers call {write.id!a:.40}, which is for the {call.runner}")

    def _find_open(self, write: WriteRecord) -> OpenCall:
        if write.id in self._closed:
            self._refuse(f"call {write.id!a:.40} has its result already, and a call has exactly one")
        if write.id not in self.open_calls:
            self._refuse(f"call {write.id!a:.40} was never planned, and a call is planned before anything else")
        return self.open_calls[write.id]

    def _check_result_follows(self) -> None:
        if self._unanswered is not None:
            self._refuse(f"call {self._unanswered!a:.40} ends without the message that holds its result")

    # The lease and the context

    def grant_lease(self, write: WriteRecord) -> None:
        """A worker takes a chat without a lease, under a token above all earlier ones."""
        token = int(write.id) if write.id.isascii() and write.id.isdecimal() and len(write.id) < 20 else 0  # noqa: PLR2004
        if self.token is not None:
            self._refuse(f"token {self.token} still holds the chat, and a chat has at most one live lease")
        if token <= self._fence:
            self._refuse(f"it grants token {write.id!a:.40} after token {self._fence}, and tokens only rise")
        self.token = self._fence = token
        self.lease = write.digest

    def drop_lease(self, write: WriteRecord) -> None:
        if self._record.trigger != t.Repaired.name and write.id != str(self.token):
            self._refuse(f"it drops token {write.id!a:.40}, but the live one is {self.token}")
        self.token = self.lease = None

    def set_boundary(self, write: WriteRecord) -> None:
        """The context starts anew at the chat's step; a fork takes over its parent's boundary."""
        step = self._record.step if self._record.trigger == t.Create.name else self._step
        if write.id != str(step):
            self._refuse(f"its boundary names step {write.id!a:.40}, but the chat stands at step {step}")

    def reserve(self, write: WriteRecord) -> None:
        """An attempt that begins reserves its estimate in the chat's budgets; the next record of usage settles it."""
        if write.id != f"{self._record.step}:{self._record.attempt}":
            self._refuse(
                f"it reserves for attempt {write.id!a:.40}, but {self._record.step}:{self._record.attempt} begins"
            )

    def note_only(self, write: WriteRecord) -> None:
        """Accept a write that restricts no later one: usage, labels, digests of rows and reasons."""

    def _forget(self) -> None:
        """Follow a repair: it ends the lease and closes the open calls; from then on rows may differ from the log."""
        self._repaired = True
        self.token = self.lease = None
        self._closed.update(self.open_calls)
        self.open_calls.clear()
        self.steering.clear()

    def _refuse(self, problem: str) -> NoReturn:
        raise Violation(self._record, problem)


_OUTSIDE: Final = ("client", "chat")
_AFTER_CRASH: Final = (*get_args(Crash), "asked_first")
_NOTED: Final = (
    "usage",
    "profile",
    "reason",
    "fallback",
    "facts",
    "events",
    "erase:errors",
    "erase:reasons",
    "erase:quarantine",
    "erase:receipt",
)
_METHODS: Final[dict[str, Callable[[WriteChecker, WriteRecord], None]]] = {
    "message": WriteChecker.insert_message,
    "cut": WriteChecker.cut_history,
    "erase": WriteChecker.erase_message,
    "enqueue": WriteChecker.enqueue,
    "enqueue:steer": WriteChecker.enqueue,
    "move": WriteChecker.move_queued,
    "dequeue:taken": WriteChecker.take_queued,
    "dequeue:steered": WriteChecker.steer,
    "dequeue:deleted": WriteChecker.delete_queued,
    "receipt": WriteChecker.record_receipt,
    "schedule": WriteChecker.put_schedule,
    "schedule:fired": WriteChecker.fire_schedule,
    "schedule:dropped": WriteChecker.drop_schedule,
    **{f"call:planned:{runner}": WriteChecker.plan_call for runner in (*_OUTSIDE, *_AFTER_CRASH)},
    "subagent": WriteChecker.answer_of_subagent,
    **{f"call:approved:{policy}": WriteChecker.approve_call for policy in _AFTER_CRASH},
    "call:started": WriteChecker.start_call,
    **{f"call:started:{policy}": WriteChecker.plan_and_start_call for policy in _AFTER_CRASH},
    **{f"call:{status}": WriteChecker.finish_call for status in CallStatus if status not in OPEN_STATUSES},
    "reservation": WriteChecker.reserve,
    "lease": WriteChecker.grant_lease,
    "lease:dropped": WriteChecker.drop_lease,
    "boundary:compaction": WriteChecker.set_boundary,
    "boundary:clear": WriteChecker.set_boundary,
    "deadline": WriteChecker.set_deadline,
    "erase:queued": WriteChecker.erase_queued,
    "erase:edits": WriteChecker.erase_message,
    "erase:call": WriteChecker.blank_call,
    **dict.fromkeys(_NOTED, WriteChecker.note_only),
}
