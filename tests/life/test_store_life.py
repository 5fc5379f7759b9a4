"""A chat's life on real SQLite files, lived by two processes at once: whatever dies, is lost, rots or comes twice.

Two stores stand on one file, as two processes would. Clients call the engine's commands on either; holders fire what
jobs fire, under the right token or a dead one. After every rule the file is read and every invariant is checked.
"""

from __future__ import annotations

import asyncio
import functools
import operator
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.life.damaged_rows import UNTOLD, Place, columns_of, copied

from support.exploring import examples
from support.life import ERROR, PROFILE, client, local, own_of, parts_of, said, summary_of
from support.runtimes import only_agent
from turnwise import (
    ChatArchived,
    ChatBusy,
    ChatState,
    IllegalTransition,
    QueueFull,
    Settings,
    StaleLease,
    ToolResultMismatch,
)
from turnwise.engine.apply import Applier
from turnwise.engine.commands import Commands
from turnwise.engine.diagnose import Diagnosis, diagnose
from turnwise.engine.erase import wanted
from turnwise.engine.files.files import Files
from turnwise.engine.follow.broadcast import Broadcaster
from turnwise.engine.prompt.views import transcript_of, user_view
from turnwise.engine.reply import shown_reply
from turnwise.engine.results import SendReceipt, SubmissionReceipt
from turnwise.engine.runtime import Runtime
from turnwise.persistence.audit.verify import verify_records, verify_stored
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.persistence.stored_chat import Salvaged
from turnwise.states.arguments import Reply
from turnwise.states.calls import CallOutcome, ToolCall, ToolResult
from turnwise.states.errors import ConflictingReplay, DeadlineExpired, StoreError, TurnwiseError
from turnwise.states.events import PartDelta, PartEvent
from turnwise.states.facts import Facts
from turnwise.states.messages import Message
from turnwise.states.names import WORKER, CallStatus, Stage, Trigger
from turnwise.states.promises import broken_promises
from turnwise.states.transcript import Transcript, fold
from turnwise.states.triggers import (
    OCCURRENCES,
    Archived,
    ClearContext,
    DeleteQueued,
    EditQueued,
    MetadataChanged,
    Occurrence,
    Renamed,
    RequestCompaction,
    Resume,
    Unarchived,
)
from turnwise.states.usage import NO_USAGE, Usage
from turnwise.states.writes import ERASED
from turnwise.testing.clock import ManualClock

pytestmark = pytest.mark.timeout(600)  # so many lives take seconds, on a busy machine several times as many

S, T = ChatState, Trigger
Got = TypeVar("Got")
NODES = st.sampled_from([0, 1])
TOKENS = st.sampled_from([None, 10, 90])
TOOLS = st.lists(st.sampled_from(["local", "once", "client", "client with deadline"]), max_size=3)
ENGINE = Settings(lease=30, queue_limit=3)
LIMITS = ENGINE.limits(100)
RUNS = {"default": ("search",)}
"""What every process runs."""
RACERS = 5
QUIET = (S.waiting, S.interrupted, S.error)


class Process:
    """One process: a store on the file, the commands of an engine, and the token it believes to hold the chat under."""

    def __init__(self, name: str, file: Path, clock: ManualClock) -> None:
        self.name = name
        self.actor = f"{WORKER}{name}"
        self.store = SQLiteStore(file, now=clock.now, durability="normal")
        self.token: int | None = None
        self.applier = Applier(self.store, Broadcaster(), lambda _: LIMITS)
        runtime = Runtime(
            applier=self.applier,
            agents=only_agent(settings=ENGINE),
            deps=None,
            settings=ENGINE,
            clock=clock,
            worker_id=name,
            tasks=None,  # type: ignore[arg-type] - commands start none
            files=Files(self.store, self.store.file_store(), ENGINE),
        )
        self.commands = Commands(runtime, None)


def in_state(*states: ChatState) -> Callable[[Any], Any]:
    return precondition(lambda self: self.facts.state in states)


def facts_say(question: Callable[[Facts], object]) -> Callable[[Any], Any]:
    return precondition(lambda self: question(self.facts))


class StoreLife(RuleBasedStateMachine):
    """One chat in a file. The model keeps what was accepted, shown and answered."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.file = Path(self.folder.name) / "chats.db"
        self.clock = ManualClock()
        self.processes = [self.started(name) for name in ("A", "B")]
        self.dead: list[Process] = []
        self.chat_id = "c"
        self.serial = 0
        self.accepted: dict[str, str] = {}
        """The text of each accepted message, by id."""
        self.ahead: set[str] = set()
        self.sent: dict[str, tuple[str, str]] = {}
        """What was sent under each client id, and the message it became."""
        self.shown: dict[tuple[int, int], str] = {}
        self.erased: set[str] = set()
        """Messages of which nothing is left, nor of what proves a repetition of them."""
        self.neighbours: list[str] = []
        """The other chats in the file: nothing but their birth ever happens to them."""
        self.transcript = Transcript()
        self.submitted: list[tuple[tuple[ToolResult, ...], str]] = []

    def do(self, work: Coroutine[Any, Any, Got]) -> Got:
        return self.loop.run(work)

    def started(self, name: str) -> Process:
        process = Process(name, self.file, self.clock)
        self.do(process.store.open())
        return process

    @initialize()
    def create(self) -> None:
        begin = _occurrence(T.create, profile=PROFILE)
        self.chat_id = "c"
        self.do(self.processes[0].applier.create("c", begin, actor="client"))
        self.neighbours = ["n"]
        self.do(self.processes[0].applier.create("n", begin, actor="client"))
        self.read()

    # Clients

    @rule(node=NODES, when_busy=st.sampled_from(["queue", "interrupt", "reject"]), racers=st.sampled_from([1, RACERS]))
    def send(self, node: int, when_busy: Any, racers: int) -> None:
        facts, text = self.facts, f"text {self.serial}"
        client_id, self.serial = f"id {self.serial}", self.serial + 1
        busy = not facts.resting or facts.state is S.requires_action
        sends = [
            self.processes[(node + n) % 2].commands.send(self.chat_id, text, when_busy=when_busy, client_id=client_id)
            for n in range(racers)
        ]
        receipts = self.do(_all(sends))
        for refused in receipts:
            if type(refused) is StoreError:  # no race makes a store refuse
                raise refused
        if busy and when_busy == "reject":
            assert [receipt for receipt in receipts if type(receipt) is not ChatBusy] == []
        elif busy and when_busy == "queue" and len(facts.queue) >= ENGINE.queue_limit:
            assert {type(receipt) for receipt in receipts} == {QueueFull}
        else:
            assert [receipt.replayed for receipt in receipts].count(False) == 1
            assert len({receipt.message_id for receipt in receipts}) == 1
            assert {receipt.seq for receipt in receipts} == {facts.last_seq}
            assert len({receipt.queued for receipt in receipts}) == 1, "a replay says what the first receipt said"
            message_id = receipts[0].message_id
            self.accepted[message_id] = text
            self.sent[client_id] = (text, message_id)
            if busy and when_busy == "interrupt":
                self.ahead.add(message_id)

    @rule(node=NODES, choice=st.data())
    @precondition(lambda self: self.sent)
    def send_again(self, node: int, choice: st.DataObject) -> None:
        client_id = choice.draw(st.sampled_from(sorted(self.sent)))
        text, message_id = self.sent[client_id]
        commands = self.processes[node].commands
        receipt: SendReceipt = self.unchanged(commands.send(self.chat_id, text, when_busy="queue", client_id=client_id))
        assert (receipt.replayed, receipt.message_id) == (True, message_id)
        other = commands.send(self.chat_id, text + "!", when_busy="queue", client_id=client_id)
        if message_id in self.erased:
            assert self.unchanged(other).message_id == message_id
            return
        assert isinstance(self.unchanged(other), ConflictingReplay | QueueFull)

    @rule(node=NODES, racers=st.sampled_from([1, RACERS]), fails=st.booleans())
    @in_state(S.requires_action)
    def submit(self, node: int, racers: int, fails: bool) -> None:  # noqa: FBT001 - hypothesis gives it
        results = tuple(ToolResult(call.call_id, "done", is_error=fails) for call in self.facts.open_calls)
        commands = self.processes[node].commands
        due = [call.call_id for call in self.facts.open_calls if call.is_due(self.clock.now())]
        if due:
            self.submit_late(commands, results, due)
            return
        for wrong in (results[1:], results * 2, (*results, ToolResult("nobody", 1))):
            if wrong:
                assert isinstance(self.unchanged(commands.submit(self.chat_id, wrong)), ToolResultMismatch)
        race = [self.processes[n % 2].commands.submit(self.chat_id, results) for n in range(racers)]
        receipts = self.do(_all(race))
        assert [receipt.replayed for receipt in receipts].count(False) == 1
        assert len({receipt.receipt_id for receipt in receipts}) == 1
        self.submitted.append((results, receipts[0].receipt_id))

    def submit_late(self, commands: Commands, results: tuple[ToolResult, ...], due: list[str]) -> None:
        """The deadline has passed, and no worker has noticed: whoever comes first closes the call."""
        (late,) = self.do(_all([commands.submit(self.chat_id, results)]))
        assert isinstance(late, DeadlineExpired)
        assert list(late.call_ids) == due
        self.read()
        assert not {call.call_id for call in self.facts.open_calls} & set(due)

    @rule(node=NODES, choice=st.data())
    @precondition(lambda self: self.submitted)
    def submit_again(self, node: int, choice: st.DataObject) -> None:
        results, receipt_id = choice.draw(st.sampled_from(self.submitted))
        receipt: SubmissionReceipt = self.unchanged(self.processes[node].commands.submit(self.chat_id, results))
        assert (receipt.replayed, receipt.receipt_id) == (True, receipt_id)
        if self.erased:
            return
        other = [ToolResult(result.call_id, "other") for result in results]
        assert isinstance(self.unchanged(self.processes[node].commands.submit(self.chat_id, other)), ConflictingReplay)

    @rule(node=NODES)
    @facts_say(lambda facts: facts.step.number)
    def interrupt(self, node: int) -> None:
        facts = self.facts
        command = self.processes[node].commands.interrupt(self.chat_id, "stop")
        if facts.state is S.interrupted and not (facts.promote and facts.queue):
            self.unchanged(command)
        elif facts.state in (S.waiting, S.error):
            assert isinstance(self.unchanged(command), IllegalTransition)
        else:
            assert self.do(command).state is S.interrupted

    @rule(node=NODES)
    @in_state(S.interrupted, S.error)
    def resume(self, node: int) -> None:
        facts, command = self.facts, self.processes[node].commands.change(self.chat_id, Resume())
        if facts.settled and (facts.queue or facts.history.unfinished):
            assert self.do(command).state is S.pending
        else:
            assert isinstance(self.unchanged(command), IllegalTransition)

    @rule(node=NODES, choice=st.data())
    @facts_say(lambda facts: facts.turn.number and (facts.queue or facts.step.number > 1))
    def edit(self, node: int, choice: st.DataObject) -> None:
        spoken = [message.id for message in self.history if message.role == "user" and not message.synthetic]
        chosen = choice.draw(st.sampled_from(spoken))
        client_id, self.serial = f"id {self.serial}", self.serial + 1
        edit = functools.partial(self.processes[node].commands.edit, self.chat_id, chosen, client_id=client_id)
        chat = self.do(edit("rather"))
        assert chat.state is S.pending
        self.read()
        assert self.unchanged(edit("rather")).version == chat.version
        assert isinstance(self.unchanged(edit("not so")), ConflictingReplay)
        kept = set(spoken[: spoken.index(chosen)])
        self.accepted = {name: text for name, text in self.accepted.items() if name in kept}
        self.read()
        self.accepted[self.history[-1].id] = "rather"

    @rule(node=NODES, what=st.sampled_from(["edit", "delete", "promote"]), choice=st.data())
    @facts_say(lambda facts: facts.queue)
    def touch_queue(self, node: int, what: str, choice: st.DataObject) -> None:
        chosen = choice.draw(st.sampled_from([queued.id for queued in self.facts.queue]))
        commands = self.processes[node].commands
        match what:
            case "edit":
                self.do(commands.change(self.chat_id, EditQueued(queued_id=chosen, parts=said("edited"))))
                self.accepted[chosen] = "edited"
            case "delete":
                self.do(commands.change(self.chat_id, DeleteQueued(queued_id=chosen)))
                del self.accepted[chosen]
            case _:
                self.do(commands.promote(self.chat_id, chosen))
                self.ahead.add(chosen)

    @rule(node=NODES, occurrence=st.sampled_from([RequestCompaction(), ClearContext()]))
    @facts_say(lambda facts: facts.resting and facts.state in QUIET and not facts.queue and facts.history.foldable)
    def start_anew(self, node: int, occurrence: Occurrence) -> None:
        self.do(self.processes[node].commands.change(self.chat_id, occurrence))

    @rule(node=NODES, change=st.sampled_from([Renamed(title="other"), MetadataChanged(metadata={"new": 1})]))
    def relabel(self, node: int, change: Occurrence) -> None:
        self.do(self.processes[node].commands.change(self.chat_id, change))

    @rule(node=NODES)
    @facts_say(lambda facts: facts.resting)
    def archive_and_back(self, node: int) -> None:
        """While archived, nothing else is accepted."""
        commands = self.processes[node].commands
        self.do(commands.change(self.chat_id, Archived()))
        self.read()
        assert isinstance(self.unchanged(commands.change(self.chat_id, Renamed(title="no"))), ChatArchived)
        self.do(commands.change(self.chat_id, Unarchived()))

    @rule(node=NODES, choice=st.data())
    @facts_say(lambda facts: facts.history.length)
    def erase(self, node: int, choice: st.DataObject) -> None:
        chosen = choice.draw(st.sampled_from(self.history))
        self.do(self.processes[node].commands.upkeep.erase(self.chat_id, wanted([chosen.id], ())))
        self.erased.add(chosen.id)
        if chosen.id in self.accepted:
            self.accepted[chosen.id] = ERASED

    @rule(node=NODES, choice=st.data())
    @facts_say(lambda facts: facts.history.length)
    def fork(self, node: int, choice: st.DataObject) -> None:
        """A fork is sound from its first record, and its parent does not notice."""
        version = choice.draw(st.integers(1, self.facts.version))
        process = self.processes[node]
        child = self.unchanged(process.commands.fork(self.chat_id, version))
        assert (child.state, child.parent) == (S.waiting, self.chat_id)
        assert verify_records(self.do(process.store.audit(child.id))).ok
        self.neighbours.append(child.id)

    # Holders

    @rule(node=NODES)
    @facts_say(lambda facts: facts.lease is None)
    def claim(self, node: int) -> None:
        facts, process = self.facts, self.processes[node]
        wants = facts.state is S.pending or (facts.state is S.interrupted and not facts.settled)
        claim = _occurrence(T.claimed, worker=process.name)
        claimed = self.do(process.applier.claim(claim, actor=process.actor, runs=RUNS, limit=5))
        assert len(claimed) == (wants and facts.lease is None)
        if claimed and claimed[0].facts.lease is not None:
            assert claimed[0].facts.lease.token > facts.fence
            process.token = claimed[0].facts.lease.token

    @rule(node=NODES, choice=st.data(), steps=st.integers(2, 10))
    def go_on(self, node: int, choice: st.DataObject, steps: int) -> None:
        """Do what comes next where the chat stands: without this, few lives would come far."""
        for _ in range(steps):
            self.read()
            facts = self.facts
            holders = [known for known in self.processes if facts.lease and known.token == facts.lease.token]
            if facts.state is S.requires_action:
                self.submit(node, 1, fails=False)
            elif facts.resting:
                self.send(node, "queue", 1)
            elif facts.lease is None:
                self.claim(node)
            elif holders:
                self.act(holders[0], choice.draw(TOOLS), choice.draw(TOKENS))

    @rule(node=NODES, trigger=st.sampled_from([T.released, T.failed, T.attempt_discarded]))
    @facts_say(lambda facts: facts.lease is not None)
    def give_up(self, node: int, trigger: Trigger) -> None:
        facts, process = self.facts, self.processes[node]
        if facts.lease is None or facts.lease.token != process.token:
            return
        if trigger is T.attempt_discarded and not (facts.step.attempt_open and facts.state is S.streaming):
            return
        partial = self.do(shown_reply(process.commands.runtime, facts))
        self.fire(process, trigger, error=ERROR, partial=partial, delay=1, retry_at=self.clock.now(), usage=None)

    # The clock and the machines

    @rule(node=NODES, seconds=st.sampled_from([4, 31]), sweeps=st.sampled_from([1, 2]))
    @facts_say(lambda facts: facts.lease is not None or facts.open_calls)
    def time_passes(self, node: int, seconds: int, sweeps: int) -> None:
        self.clock.advance(seconds)
        for process in [self.processes[node], self.processes[1 - node]][:sweeps]:
            overdue = self.do(process.store.overdue(limit=10))
            for _, token in overdue.leases:
                self.fire(process, T.lease_expired, token=token)
            for _ in overdue.deadlines:
                self.fire(process, T.deadline_passed)
            assert self.do(process.store.overdue(limit=10)).leases == ()

    @rule(node=NODES)
    @facts_say(lambda facts: facts.lease is not None)
    def renew(self, node: int) -> None:
        process, lease = self.processes[node], self.facts.lease
        held = self.do(process.store.renew(process.name, 30))
        assert held == ({self.chat_id: lease.token} if lease is not None and lease.worker == process.name else {})

    @rule(node=NODES, keep=st.sampled_from([0, 0, 20]), limit=st.sampled_from([1, 100]))
    def prune(self, node: int, keep: float, limit: int) -> None:
        """Only parts go, only of replies that are over; a fold of what is left tells the same."""
        store, after = self.processes[node].store, ""
        told = self.do(store.events(self.chat_id, after=0, limit=1000))
        while (pruned := self.unchanged(store.prune(keep=keep, after=after, limit=limit))).after is not None:
            after = pruned.after
        left = self.do(store.events(self.chat_id, after=0, limit=1000))
        gone = [event for event in told if event not in left]
        live = (self.facts.step.number, self.facts.step.attempt) if self.facts.step.attempt_open else None
        assert all(isinstance(event, PartEvent) and (event.step, event.attempt) != live for event in gone)
        assert [event for event in told if event in left] == left
        assert [fold(left, fold(told[:known])) for known in range(len(told))] == [fold(told)] * len(told)

    @rule(node=NODES)
    def crash(self, node: int) -> None:
        """A process dies and another of its kind starts: nothing is closed, no token is remembered."""
        self.dead.append(self.processes[node])
        self.processes[node] = self.started(self.processes[node].name + "'")

    # The disk

    @rule(node=NODES, value=st.sampled_from(["poison", b"\xff\x00"]), choice=st.data())
    def rot(self, node: int, value: str | bytes, choice: st.DataObject) -> None:
        """One value of the chat turns into something else, under processes that remember the chat, and back again."""
        place = self.somewhere(choice)
        before = place.read(self.file)
        damaged = place.write(self.file, value)
        for process in (self.processes[node], self.processes[1 - node]):
            self.the_damage_is_one_chats(process, place, value)
        damaged.write(self.file, before)
        self.unchanged(self.processes[node].store.facts(self.chat_id))
        assert self.do(diagnosed(self.processes[node].store)) == []

    @rule(value=st.sampled_from(["poison", b"\xff\x00"]), choice=st.data())
    def live_on_with_rot(self, value: str | bytes, choice: st.DataObject) -> None:
        """In a copy of the file, where commands, claims and a repair may do what they can."""
        place = self.somewhere(choice)
        self.serial += 1
        file = copied(self.file, self.file.with_name(f"copy-{self.serial}.db"))
        place.write(file, value)
        process = Process("C", file, self.clock)
        self.do(process.store.open())
        self.the_damage_is_one_chats(process, place, value)
        self.whatever_is_done_is_done_or_refused(process, choice)
        self.the_damage_is_one_chats(process, place, value, told=False)
        self.a_repair_leaves_evidence_only(process)
        self.do(process.store.close())

    def somewhere(self, choice: st.DataObject) -> Place:
        columns = columns_of(self.file, self.chat_id)
        return choice.draw(st.sampled_from(columns[choice.draw(st.sampled_from(sorted(columns)))]))

    def the_damage_is_one_chats(self, process: Process, place: Place, value: str | bytes, *, told: bool = True) -> None:
        """It is listed with a reason, whatever is asked is answered or refused, and every other chat is sound."""
        store, chat_id = process.store, self.chat_id
        *_, rows = self.do(_all([*asked(store, chat_id), store.rows(chat_id)]))
        if not isinstance(rows, TurnwiseError):
            verify_stored(chat_id, rows)
        listed = self.do(store.chats(owner=None, state=None, limit=100, after=None))
        found = {(chat.facts if isinstance(chat, Salvaged) else chat).chat_id for chat in listed}
        assert found >= {chat_id, *self.neighbours}
        flaws = {diagnosis.chat_id: diagnosis for diagnosis in self.do(diagnosed(store))}
        assert flaws.keys() <= {chat_id}
        if told and (place.table, place.column, value) not in UNTOLD:
            assert flaws[chat_id].advice
            assert all(flaw.problem for flaw in flaws[chat_id].flaws)
        for neighbour in self.neighbours:
            assert not [one for one in self.do(_all(asked(store, neighbour))) if isinstance(one, TurnwiseError)]
            assert verify_stored(neighbour, self.do(store.rows(neighbour))).ok

    def whatever_is_done_is_done_or_refused(self, process: Process, choice: st.DataObject) -> None:
        commands, chat_id = process.commands, self.chat_id
        results = [ToolResult(call.call_id, "done") for call in self.facts.open_calls]
        works: dict[str, Callable[[], Awaitable[Any]]] = {
            "send": lambda: commands.send(chat_id, "go on", when_busy="interrupt", client_id="mine"),
            "submit": lambda: commands.submit(chat_id, results),
            "interrupt": lambda: commands.interrupt(chat_id, "stop"),
            "resume": lambda: commands.resume(chat_id),
            "rename": lambda: commands.change(chat_id, Renamed(title="other")),
            "fork": lambda: commands.fork(chat_id, self.facts.version),
            "erase": lambda: commands.upkeep.erase(chat_id, wanted([], ["messages"])),
            "claim": lambda: process.applier.claim(
                _occurrence(T.claimed, worker="C"), actor="worker:C", runs=RUNS, limit=5
            ),
            "overdue": lambda: process.store.overdue(limit=10),
            "renew": lambda: process.store.renew("C", 30),
            "prune": lambda: process.store.prune(keep=0, after="", limit=100),
        }
        for name in choice.draw(st.permutations(sorted(works)))[:4]:
            self.do(_all([works[name]()]))

    def a_repair_leaves_evidence_only(self, process: Process) -> None:
        flaws = [flaw for found in self.do(diagnosed(process.store)) for flaw in found.flaws]
        if all(flaw.column.startswith("audit.") for flaw in flaws):
            return
        assert self.do(process.commands.upkeep.repair(self.chat_id)).state is S.error
        left = [flaw for found in self.do(diagnosed(process.store)) for flaw in found.flaws]
        assert all(flaw.column.startswith("audit.") for flaw in left), left
        assert self.do(process.commands.send(self.chat_id, "and now", when_busy="queue", client_id=None)).message_id

    # What must hold

    @invariant()
    def every_invariant_holds_of_what_is_in_the_file(self) -> None:
        self.read()
        self.the_promises_and_the_ledger_hold()
        self.each_process_knows_what_the_file_says()
        self.nothing_is_written_under_a_dead_token()
        self.events_have_no_gap_and_fold_to_what_the_user_sees()
        self.every_accepted_message_is_there_once_and_in_order()
        self.every_call_has_one_result()

    def the_promises_and_the_ledger_hold(self) -> None:
        facts = self.facts
        assert broken_promises(facts) == ()
        assert facts.usage == functools.reduce(
            operator.add, [spent.usage for spent in self.do(self.processes[1].store.ledger(self.chat_id))], NO_USAGE
        )

    def each_process_knows_what_the_file_says(self) -> None:
        for process in self.processes:
            known: list[Facts] = []
            self.do(process.store.change(self.chat_id, lambda facts, _, known=known: known.append(facts) or ()))
            assert known[-1] == self.facts, "whatever it remembered first"

    def events_have_no_gap_and_fold_to_what_the_user_sees(self) -> None:
        facts, known = self.facts, self.transcript.last_seq
        news = self.do(self.processes[self.serial % 2].store.events(self.chat_id, after=known, limit=1000))
        assert [event.seq for event in news] == list(range(known + 1, known + 1 + len(news)))
        transcript = self.transcript = fold(news, self.transcript)
        assert transcript.messages == user_view(self.history)
        assert (transcript.queue, transcript.error) == (facts.queue, facts.last_error)
        if facts.state is S.requires_action:
            assert [call.call_id for call in transcript.open_calls] == [call.call_id for call in facts.open_calls]
        assert transcript.last_seq == facts.last_seq
        assert transcript_of(self.do(self.processes[self.serial % 2].store.snapshot(self.chat_id))) == transcript
        attempt = (facts.step.number, facts.step.attempt)
        under_way = facts.step.attempt_open and facts.step.stage is Stage.asking
        assert transcript.live_text == (self.shown.get(attempt, "") if under_way else "")

    def every_accepted_message_is_there_once_and_in_order(self) -> None:
        spoken = [message for message in self.history if message.role == "user" and not message.synthetic]
        there = [*spoken, *self.facts.queue]
        assert {message.id: message.text for message in there} == self.accepted
        assert len(there) == len(self.accepted)
        plain = [int(message.id[1:]) for message in there if message.id not in self.ahead]
        assert plain == sorted(plain)

    def nothing_is_written_under_a_dead_token(self) -> None:
        """A holder whose lease is gone is refused, whatever it tries, the first time after it has lost it."""
        facts = self.facts
        for process in self.processes:
            if process.token is None or (facts.lease is not None and facts.lease.token == process.token):
                continue
            tried = [
                process.applier.change(
                    self.chat_id, _occurrence(trigger, token=process.token, error=ERROR), actor=process.actor
                )
                for trigger in (T.attempt_started, T.tools_finished, T.settled, T.released, T.failed)
            ]
            journal = process.store.journal(self.chat_id, process.token, facts.state, [self.words(facts)])
            outcomes = self.do(_all([journal, *tried]))
            assert isinstance(outcomes[0], StaleLease)
            assert all(isinstance(outcome, StaleLease | IllegalTransition) for outcome in outcomes)
            assert self.do(process.store.facts(self.chat_id)) == facts
            process.token = None

    def every_call_has_one_result(self) -> None:
        asked = [call.call_id for message in self.history for call in message.calls]
        answered = [message.result.call_id for message in self.history if message.result]
        assert sorted(asked) == sorted([*answered, *(call.call_id for call in self.facts.open_calls)])
        prompt = self.do(self.processes[0].store.prompt(self.chat_id))
        seen = [call.call_id for message in prompt for call in message.calls]
        results = [message.result.call_id for message in prompt if message.result]
        assert sorted(seen) == sorted([*results, *(call.call_id for call in self.facts.open_calls)])

    def teardown(self) -> None:
        assert self.do(diagnosed(self.processes[0].store)) == []
        if self.facts.version:
            records = self.do(self.processes[0].store.audit(self.chat_id))
            verdict = verify_records(records)
            assert verdict.ok, verdict
            assert len(records) == self.facts.version
        for process in [*self.processes, *self.dead]:
            self.do(process.store.close())
        self.loop.close()
        self.folder.cleanup()

    # What the rules share

    facts: Facts = Facts(chat_id="c", profile=PROFILE)
    history: Sequence[Message] = ()

    def read(self) -> None:
        """Read where the chat stands, as a process that was just started would."""
        store = self.processes[self.serial % 2].store
        self.facts = self.do(store.facts(self.chat_id))
        self.history = self.do(store.history(self.chat_id))

    def unchanged(self, work: Awaitable[Any]) -> Any:
        """Do what must change nothing; return what came of it, an error too."""
        (outcome,) = self.do(_all([work]))
        assert self.do(self.processes[0].store.facts(self.chat_id)) == self.facts
        return outcome

    def fire(self, process: Process, trigger: Trigger, **arguments: Any) -> Facts:
        fired = _occurrence(trigger, **({"token": process.token} | arguments))
        self.facts = self.do(process.applier.change(self.chat_id, fired, actor=process.actor)).facts
        return self.facts

    def act(self, process: Process, tools: list[str], tokens: int | None) -> None:
        facts = self.facts
        match facts.state:
            case S.streaming if not facts.step.attempt_open:
                self.fire(process, T.attempt_started)
            case S.streaming if (facts.step.number, facts.step.attempt) not in self.shown:
                event = self.words(facts)
                self.do(process.store.journal(self.chat_id, process.token or 0, facts.state, [event]))
                self.shown[facts.step.number, facts.step.attempt] = event.part.delta or ""
            case S.streaming:
                calls = tuple(self.planned(tools))
                text = self.shown[facts.step.number, facts.step.attempt]
                reply = Reply(
                    parts=said(text) + parts_of(calls),
                    calls=calls,
                    usage=Usage(input_tokens=tokens) if tokens else None,
                    context_tokens=tokens,
                    context_limit=100,
                )
                self.fire(process, T.step_finished, reply=reply)
            case S.executing_tools:
                self.run_next_call(process)
            case S.compacting if not facts.step.attempt_open:
                self.fire(process, T.attempt_started)
            case S.compacting if tokens is None:
                self.fire(process, T.compaction_failed, error=ERROR, usage=Usage())
            case S.compacting:
                self.fold_history(process)
            case _:
                partial = self.do(shown_reply(process.commands.runtime, facts))
                self.fire(process, T.settled, partial=partial)
        lease = self.facts.lease
        process.token = lease.token if lease is not None and lease.worker == process.name else process.token

    def run_next_call(self, process: Process) -> None:
        waiting = [call for call in self.facts.open_calls if call.is_local]
        if not waiting:
            self.fire(process, T.tools_finished)
        elif waiting[0].status is CallStatus.planned:
            self.fire(process, T.call_started, call_id=waiting[0].call_id)
        else:
            outcome = CallOutcome(
                call_id=waiting[0].call_id, status=CallStatus.succeeded, output="result", is_error=False
            )
            self.fire(process, T.call_finished, outcome=outcome)

    def fold_history(self, process: Process) -> None:
        facts, prompt = self.facts, self.do(process.store.prompt(self.chat_id))
        last_answer = max((n for n, message in enumerate(prompt) if message.role != "user"), default=-1)
        unanswered = [
            message.position
            for message in prompt[last_answer + 1 :]
            if message.role == "user" and not message.synthetic
        ]
        of_step = [message.position for message in prompt if message.step == facts.step.number and facts.open_calls]
        carried = tuple(sorted({*unanswered, *of_step}))
        summary = summary_of("In short.", *carried, folded=len(prompt) - len(carried))
        self.fire(process, T.compacted, summary=summary, usage=Usage(input_tokens=5))

    def words(self, facts: Facts) -> PartEvent:
        self.serial += 1
        delta = PartDelta(type="text", delta=f"words {self.serial}")
        return PartEvent(chat_id=self.chat_id, step=facts.step.number, attempt=facts.step.attempt, index=0, part=delta)

    def planned(self, tools: list[str]) -> list[ToolCall]:
        made = []
        for index, kind in enumerate(tools):
            self.serial += 1
            name, step = f"c{self.serial}", self.facts.step.number
            within = 3.0 if "deadline" in kind else None
            crash = "at_most_once" if kind == "once" else "at_least_once"
            call = client(name, index, within=within) if "client" in kind else local(name, index, crash=crash)
            made.append(ToolCall(**{**_fields(call), "step": step}))
        return made


def _fields(call: ToolCall) -> dict[str, Any]:
    return {name: getattr(call, name) for name in call.__dataclass_fields__}


def _occurrence(trigger: Trigger, **arguments: Any) -> Occurrence:
    return OCCURRENCES[trigger](**own_of(trigger, arguments))


def asked(store: SQLiteStore, chat_id: str) -> list[Awaitable[Any]]:
    """Return whatever can be asked of a chat."""
    return [
        store.facts(chat_id),
        store.rest(chat_id),
        store.history(chat_id),
        store.prompt(chat_id),
        store.snapshot(chat_id),
        store.events(chat_id, after=0, limit=1000),
        store.audit(chat_id),
        store.ledger(chat_id),
        store.raw_rows(chat_id),
        store.lease_expiry(chat_id),
        store.forks(chat_id),
    ]


async def diagnosed(store: SQLiteStore) -> list[Diagnosis]:
    return [diagnosis async for diagnosis in diagnose(Files(store, store.file_store(), Settings()), read=True)]


async def _all(works: Sequence[Awaitable[Any]]) -> list[Any]:
    """Do all of it at once; return what came of each, refusals too."""
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, TurnwiseError):
            raise outcome
    return outcomes


TestStoreLife = StoreLife.TestCase
TestStoreLife.settings = settings(
    max_examples=examples(20),
    stateful_step_count=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking lives in files would outlast the timeout
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
