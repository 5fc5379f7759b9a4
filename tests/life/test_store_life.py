"""A chat's life on SQLite files with two processes, with crashes, lost answers and repetitions.

Two stores share one file, as two processes would. Clients call the engine's commands on either; holders fire the
triggers of jobs, under the right token or a dead one. After every rule the test reads the file and checks every
invariant.
"""

import functools
import operator
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.exploring import examples
from support.life import text_parts
from support.lives import SETTINGS, Database, StoredLife, Walk
from turnwise import ChatArchived, ChatBusy, ChatState, IllegalTransition, QueueFull, Settings
from turnwise.engine.admin.diagnose import Diagnosis, diagnose
from turnwise.engine.blobs.files import Files
from turnwise.engine.config.results import SendReceipt, SubmissionReceipt
from turnwise.engine.jobs.reply import streamed_reply
from turnwise.engine.prompt.views import transcript_of, user_view
from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.states import triggers as t
from turnwise.states.calls import ToolResult
from turnwise.states.errors import ConflictingReplay, DeadlineExpired, StoreError
from turnwise.states.events import PartDelta, PartEvent
from turnwise.states.facts import Facts
from turnwise.states.invariants import broken_invariants
from turnwise.states.messages import Message
from turnwise.states.names import Stage
from turnwise.states.transcript import Transcript, fold
from turnwise.states.triggers import (
    Archived,
    ClearContext,
    DeleteQueued,
    EditQueued,
    MarkedRead,
    MetadataChanged,
    Renamed,
    RequestCompaction,
    Resume,
    Trigger,
    Unarchived,
)
from turnwise.states.usage import NO_USAGE
from turnwise.states.writes import ERASED

S = ChatState
Got = TypeVar("Got")
NODES = st.sampled_from([0, 1])
SEEDS = st.integers(0, 1 << 16)
RACERS = 5
QUIET = (S.waiting, S.interrupted, S.error)


def in_state(*states: ChatState) -> Callable[[Any], Any]:
    return precondition(lambda self: self.facts.state in states)


def facts_say(question: Callable[[Facts], object]) -> Callable[[Any], Any]:
    return precondition(lambda self: question(self.facts))


class StoreLife(RuleBasedStateMachine):
    """One chat in a file. The model remembers accepted, visible and answered content."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.database = Database(f"sqlite:///{self.folder.name}/chats.db")
        self.do, self.clock, self.processes = self.database.do, self.database.clock, self.database.processes
        self.life = StoredLife(self.database, "c")
        self.walk = Walk(self.life, Random(0), Counter(), tools=("local", "once", "client", "deadline"))  # noqa: S311 - no secret
        self.walk.texts = ("words",)  # its first words were shown: a reply does not take them back
        for one in (self.life, *self.processes):
            one.limits = SETTINGS.limits(100)
        self.serial = 0
        self.accepted: dict[str, str] = {}
        """The text of each accepted message, by id."""
        self.ahead: set[str] = set()
        self.sent: dict[str, tuple[str, str]] = {}
        """The text sent under each client id, and the resulting message."""
        self.shown: dict[tuple[int, int], str] = {}
        self.erased: set[str] = set()
        """Messages whose content and receipts are gone."""
        self.transcript = Transcript()

    chat_id = "c"

    @property
    def facts(self) -> Facts:
        return self.life.facts

    @property
    def history(self) -> Sequence[Message]:
        return self.life.messages

    @initialize()
    def start(self) -> None:
        """Create the chat before the first rule."""
        self.life.read()

    # Clients

    @rule(
        node=NODES,
        when_busy=st.sampled_from(["queue", "steer", "interrupt", "reject"]),
        racers=st.sampled_from([1, RACERS]),
    )
    def send(self, node: int, when_busy: Any, racers: int) -> None:
        facts, text = self.facts, f"text {self.serial}"
        client_id, self.serial = f"id {self.serial}", self.serial + 1
        busy = not facts.resting or facts.state is S.requires_action
        sends = [
            self.processes[(node + n) % 2].commands.send_message(
                self.chat_id, text, when_busy=when_busy, client_id=client_id
            )
            for n in range(racers)
        ]
        receipts = self.database.at_once(*sends)
        for refused in receipts:
            if type(refused) is StoreError:  # no race makes a store refuse
                raise refused
        if busy and when_busy == "reject":
            assert [receipt for receipt in receipts if type(receipt) is not ChatBusy] == []
        elif busy and when_busy in ("queue", "steer") and len(facts.queue) >= SETTINGS.queue_limit:
            assert {type(receipt) for receipt in receipts} == {QueueFull}
        else:
            assert [receipt.replayed for receipt in receipts].count(False) == 1
            assert len({receipt.message_id for receipt in receipts}) == 1
            assert {receipt.seq for receipt in receipts} == {facts.last_seq}
            assert len({receipt.queued for receipt in receipts}) == 1, "a replay says what the first receipt said"
            message_id = receipts[0].message_id
            self.accepted[message_id] = text
            self.sent[client_id] = (text, message_id)
            if busy and when_busy in ("steer", "interrupt"):
                self.ahead.add(message_id)

    @rule(node=NODES, choice=st.data())
    @precondition(lambda self: self.sent)
    def send_again(self, node: int, choice: st.DataObject) -> None:
        client_id = choice.draw(st.sampled_from(sorted(self.sent)))
        text, message_id = self.sent[client_id]
        commands = self.processes[node].commands
        receipt: SendReceipt = self.life.unchanged(
            commands.send_message(self.chat_id, text, when_busy="queue", client_id=client_id)
        )
        assert (receipt.replayed, receipt.message_id) == (True, message_id)
        other = commands.send_message(self.chat_id, text + "!", when_busy="queue", client_id=client_id)
        if message_id in self.erased:
            assert self.life.unchanged(other).message_id == message_id
            return
        assert isinstance(self.life.unchanged(other), ConflictingReplay | QueueFull)

    @rule(node=NODES)
    @in_state(S.requires_action)
    def submit(self, node: int) -> None:
        """Answer the open calls, unless the deadline has passed."""
        results = [ToolResult(call.call_id, "done") for call in self.facts.open_calls]
        due = any(call.is_due(self.clock.now()) for call in self.facts.open_calls)
        (receipt,) = self.database.at_once(self.processes[node].commands.submit_tool_results(self.chat_id, results))
        assert isinstance(receipt, DeadlineExpired if due else SubmissionReceipt)

    @rule(node=NODES)
    @facts_say(lambda facts: facts.step.number)
    def interrupt(self, node: int) -> None:
        facts = self.facts
        command = self.processes[node].commands.interrupt(self.chat_id, reason="stop")
        settles = not facts.settled and facts.lease is None
        if facts.state is S.interrupted and not (facts.promote and facts.queue) and not settles:
            self.life.unchanged(command)
        elif facts.state in (S.waiting, S.error):
            assert isinstance(self.life.unchanged(command), IllegalTransition)
        else:
            assert self.do(command).state is S.interrupted

    @rule(node=NODES)
    @in_state(S.interrupted, S.error)
    def resume(self, node: int) -> None:
        facts, command = self.facts, self.processes[node].change(self.chat_id, Resume())
        if facts.settled and (facts.queue or facts.history.unfinished):
            assert self.do(command).state is S.pending
        else:
            assert isinstance(self.life.unchanged(command), IllegalTransition)

    @rule(node=NODES, choice=st.data())
    @facts_say(lambda facts: facts.turn.number and (facts.queue or facts.step.number > 1))
    def edit(self, node: int, choice: st.DataObject) -> None:
        spoken = [message.id for message in self.history if message.role == "user" and not message.synthetic]
        chosen = choice.draw(st.sampled_from(spoken))
        client_id, self.serial = f"id {self.serial}", self.serial + 1
        edit = functools.partial(self.processes[node].commands.edit_message, self.chat_id, chosen, client_id=client_id)
        chat = self.do(edit("rather"))
        assert chat.state is S.pending
        self.life.read()
        assert self.life.unchanged(edit("rather")).version == chat.version
        assert isinstance(self.life.unchanged(edit("not so")), ConflictingReplay)
        before_cut = set(spoken[: spoken.index(chosen)])
        self.accepted = {name: text for name, text in self.accepted.items() if name in before_cut}
        self.life.read()
        self.accepted[self.history[-1].id] = "rather"

    @rule(node=NODES, what=st.sampled_from(["edit", "delete", "promote"]), choice=st.data())
    @facts_say(lambda facts: facts.queue)
    def touch_queue(self, node: int, what: str, choice: st.DataObject) -> None:
        chosen = choice.draw(st.sampled_from([queued.id for queued in self.facts.queue]))
        process = self.processes[node]
        match what:
            case "edit":
                self.do(process.change(self.chat_id, EditQueued(queued_id=chosen, parts=text_parts("edited"))))
                self.accepted[chosen] = "edited"
            case "delete":
                self.do(process.change(self.chat_id, DeleteQueued(queued_id=chosen)))
                del self.accepted[chosen]
            case _:
                self.do(process.commands.promote_queued(self.chat_id, chosen))
                self.ahead.add(chosen)

    @rule(node=NODES, trigger=st.sampled_from([RequestCompaction(), ClearContext()]))
    @facts_say(lambda facts: facts.resting and facts.state in QUIET and not facts.queue and facts.history.foldable)
    def start_anew(self, node: int, trigger: type[Trigger]) -> None:
        self.do(self.processes[node].change(self.chat_id, trigger))

    @rule(node=NODES, change=st.sampled_from([Renamed(title="no"), MetadataChanged(metadata={"new": 1}), MarkedRead()]))
    def relabel(self, node: int, change: Trigger) -> None:
        self.do(self.processes[node].change(self.chat_id, change))

    @rule(node=NODES)
    @facts_say(lambda facts: facts.resting)
    def archive_and_back(self, node: int) -> None:
        """An archived chat accepts nothing else."""
        process = self.processes[node]
        self.do(process.change(self.chat_id, Archived()))
        self.life.read()
        assert isinstance(self.life.unchanged(process.change(self.chat_id, Renamed(title="no"))), ChatArchived)
        self.do(process.change(self.chat_id, Unarchived()))

    @rule(node=NODES, choice=st.data())
    @facts_say(lambda facts: facts.history.length)
    def erase(self, node: int, choice: st.DataObject) -> None:
        chosen = choice.draw(st.sampled_from(self.history))
        self.do(self.processes[node].commands.erase(self.chat_id, messages=[chosen.id]))
        self.erased.add(chosen.id)
        if chosen.id in self.accepted:
            self.accepted[chosen.id] = ERASED

    @rule(node=NODES, choice=st.data())
    @facts_say(lambda facts: facts.history.length)
    def fork(self, node: int, choice: st.DataObject) -> None:
        """A fork is valid from its first record, and its parent does not change."""
        version = choice.draw(st.integers(1, self.facts.version))
        process = self.processes[node]
        child = self.life.unchanged(process.commands.fork(self.chat_id, at_version=version))
        assert (child.state, child.parent) == (S.waiting, self.chat_id)
        assert verify_records(self.do(process.store.audit(child.id))).ok

    # Holders

    @rule(node=NODES, seed=SEEDS, steps=st.integers(2, 10))
    def go_on(self, node: int, seed: int, steps: int) -> None:
        """Fire the next trigger of the chat's state: without this, few lives would get far."""
        self.walk.random.seed(seed)
        for _ in range(steps):
            facts = self.facts
            self.life.by = node
            if facts.resting and facts.state is not S.requires_action:
                self.send(node, "queue", 1)
                self.life.read()
            elif facts.state is S.streaming and facts.step.attempt_open and self.attempt not in self.shown:
                self.show()
            elif not facts.settled and facts.lease is not None:
                self.life.settle(self.do(streamed_reply(self.life.process.runtime, facts)))
            else:
                self.walk.go_on()

    def show(self) -> None:
        """Make the first words of an attempt visible."""
        step, self.serial = self.facts.step, self.serial + 1
        part = PartDelta(type="text", delta=f"words {self.serial}")
        event = PartEvent(chat_id=self.chat_id, step=step.number, attempt=step.attempt, index=0, part=part)
        self.do(self.life.store.append_events(self.chat_id, self.facts.lease.token, self.facts.state, [event]))
        self.shown[self.attempt] = f"words {self.serial}"

    @property
    def attempt(self) -> tuple[int, int]:
        return self.facts.step.number, self.facts.step.attempt

    @rule(trigger=st.sampled_from([t.Released, t.Failed, t.AttemptDiscarded]))
    @facts_say(lambda facts: facts.lease is not None)
    def give_up(self, trigger: type[Trigger]) -> None:
        facts = self.facts
        if trigger is t.AttemptDiscarded and facts.step.attempt_open and facts.state is S.streaming:
            self.life.discard()
        elif trigger is t.Failed:
            self.life.fail(self.do(streamed_reply(self.life.process.runtime, facts)))
        else:
            self.life.held(t.Released)

    # The clock and the machines

    @rule(node=NODES, seconds=st.sampled_from([4, 31]))
    @facts_say(lambda facts: facts.lease is not None or facts.open_calls)
    def time_passes(self, node: int, seconds: int) -> None:
        self.life.wait(seconds)
        self.life.by = node
        overdue = self.do(self.life.store.overdue(limit=10))
        for _, token in overdue.leases:
            self.life.fire(t.LeaseExpired, token=token)
        for _ in overdue.deadlines:
            self.life.fire(t.DeadlinePassed)
        assert self.do(self.life.store.overdue(limit=10)).leases == ()

    @rule(node=NODES, keep=st.sampled_from([0, 0, 20]), limit=st.sampled_from([1, 100]))
    def prune(self, node: int, keep: float, limit: int) -> None:
        """Only parts of finished replies go; the rest folds to the same transcript."""
        store, after = self.processes[node].store, ""
        reported = self.do(store.events(self.chat_id, after=0, limit=1000))
        while (pruned := self.life.unchanged(store.prune(keep=keep, after=after, limit=limit))).after is not None:
            after = pruned.after
        left = self.do(store.events(self.chat_id, after=0, limit=1000))
        gone = [event for event in reported if event not in left]
        live = (self.facts.step.number, self.facts.step.attempt) if self.facts.step.attempt_open else None
        assert all(isinstance(event, PartEvent) and (event.step, event.attempt) != live for event in gone)
        assert [event for event in reported if event in left] == left
        assert [fold(left, fold(reported[:known])) for known in range(len(reported))] == [fold(reported)] * len(
            reported
        )

    @rule(node=NODES)
    def crash(self, node: int) -> None:
        """A process dies and another one starts."""
        self.database.crash(node)

    # What must hold

    @invariant()
    def every_invariant_holds_of_what_is_in_the_file(self) -> None:
        self.life.read()
        self.the_promises_and_the_ledger_hold()
        self.each_process_knows_what_the_file_says()
        self.events_have_no_gap_and_fold_to_what_the_user_sees()
        self.every_accepted_message_is_there_once_and_in_order()

    def the_promises_and_the_ledger_hold(self) -> None:
        facts = self.facts
        assert broken_invariants(facts) == ()
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

    def teardown(self) -> None:
        assert self.do(diagnosed(self.processes[0].store)) == []
        if self.facts.version:
            records = self.do(self.processes[0].store.audit(self.chat_id))
            verdict = verify_records(records)
            assert verdict.ok, verdict
            assert len(records) == self.facts.version
        self.database.close()
        self.folder.cleanup()


async def diagnosed(store: SQLiteStore) -> list[Diagnosis]:
    return [diagnosis async for diagnosis in diagnose(Files(store, store.file_store(), Settings()), read=True)]


TestStoreLife = StoreLife.TestCase
TestStoreLife.settings = settings(
    max_examples=examples(20),
    stateful_step_count=25,
    deadline=None,
    phases=[
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
    ],  # shrinking lives in files would outlast the timeout
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
