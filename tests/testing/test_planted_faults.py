"""Each invariant of the machine, broken on purpose: the simulation finds it within a few worlds."""

from __future__ import annotations

import dataclasses
import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from support.planted_faults import nothing, plant_functions, plant_no_refusal
from turnwise.engine.follow import broadcast
from turnwise.engine.jobs import run_tools
from turnwise.engine.prompt import history
from turnwise.engine.tools import toolbox
from turnwise.engine.worker.helper_calls import HelperCalls
from turnwise.persistence import commit, erasure
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.protocol import Overdue
from turnwise.persistence.sqlite import transactions
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.protocol import ModelPart, ModelRequest
from turnwise.states import actions as a
from turnwise.states import refusals
from turnwise.states.actions import compaction as compact_actions
from turnwise.states.calls import Answer
from turnwise.states.draft import Draft
from turnwise.states.facts import Facts, StepFacts
from turnwise.states.names import CallStatus, ChatState, Trigger
from turnwise.testing.simulation import Mischief, World, cast
from turnwise.testing.simulation.actors import SimulatedModel, simulated_tools
from turnwise.testing.simulation.cast import Toolmaker

Patch = pytest.MonkeyPatch
WORLDS = 500
deciding: Any = importlib.import_module("turnwise.states.decide")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def write_under_another_target(patch: Patch) -> None:
    recorded = commit.entry_of

    def entry_of(decision: Any, **more: Any) -> Any:
        if decision.trigger is Trigger.call_finished:
            decision = replace(decision, target=ChatState.waiting)
        return recorded(decision, **more)

    patch.setattr(commit, "entry_of", entry_of)


def break_the_chain(patch: Patch) -> None:
    recorded = commit.entry_of
    patch.setattr(commit, "entry_of", lambda decision, *, prev, **more: recorded(decision, prev=GENESIS, **more))


def skip_a_version(patch: Patch) -> None:
    finish = Draft.finish

    def finished(draft: Draft[Any], target: ChatState, **more: Any) -> Any:
        after = finish(draft, target, **more)
        return replace(after, version=after.version + (target is ChatState.interrupted))

    patch.setattr(Draft, "finish", finished)


def obey_dead_tokens(patch: Patch) -> None:
    plant_no_refusal(patch, refusals.refuse_dead_token)


def compact_again(patch: Patch) -> None:
    """The row's guard and the promise of `compacting` both forgotten: a failed step is compacted again."""

    def conclude(draft: Draft[Any]) -> None:
        draft.step = replace(draft.step, attempt_open=False)

    patch.setattr(compact_actions, "_conclude", conclude)


def close_calls_silently(patch: Patch) -> None:
    def close(draft: Draft[Any]) -> None:
        for call in draft.calls:
            if call.open:
                draft.put_calls(call.with_status(CallStatus.interrupted))

    plant_functions(patch, {a.close_open_calls: close})


def take_any_submission_again(patch: Patch) -> None:
    patch.setattr(Answer, "is_for", lambda _self, _digest: True)


def lose_the_queue(patch: Patch) -> None:
    def take(draft: Draft[Any]) -> None:
        a.take_queue_head(draft)
        draft.queue = draft.queue[1:]

    plant_functions(patch, {a.take_queue_head: take})


def leave_helpers_alone(patch: Patch) -> None:
    async def nothing(_self: object, _chat_id: str) -> None:
        await anyio.lowlevel.checkpoint()

    patch.setattr(HelperCalls, "answer", nothing)


def take_back_silently(patch: Patch) -> None:
    patch.setattr(Draft, "take_back", lambda _draft, _reason: None)


def send_everything(patch: Patch) -> None:
    """Under a model that always reasons: a reply must be cut off right after it."""
    reply = SimulatedModel._parts

    def parts(self: SimulatedModel, request: ModelRequest) -> list[ModelPart]:
        given = reply(self, request)
        reasons = given[0].type == "reasoning_delta"
        return given if reasons else [ModelPart("reasoning_delta", text="hm", signature=f"s{self._serial}"), *given]

    patch.setattr(SimulatedModel, "_parts", parts)
    patch.setattr(history, "_is_sent", lambda _part, *, partial: True)


def start_lost_calls_again(patch: Patch) -> None:
    def plan_again(draft: Draft[Any]) -> None:
        for call in draft.calls:
            if call.status is CallStatus.started:
                draft.put_calls(call.with_status(CallStatus.planned))

    plant_functions(patch, {a.give_up_started_calls: plan_again})


def change_keys(patch: Patch) -> None:
    serial = iter(range(1_000_000))
    patch.setattr(run_tools, "idempotency_key", lambda chat_id, call: f"{chat_id}:{call.call_id}:{next(serial)}")


def show_parts_of_interrupted_attempts(patch: Patch) -> None:
    journal = transactions.Transactions.journal

    def journalled(self: Any, connection: Any, chat_id: str, token: int, state: Any, shown: Sequence[Any]) -> Any:
        (found,) = connection.execute("SELECT state FROM chats WHERE id = ?", (chat_id,)).fetchone()
        return journal(self, connection, chat_id, token, found, shown)

    patch.setattr(transactions.Transactions, "journal", journalled)


def sweep_no_leases(patch: Patch) -> None:
    overdue = SQLiteStore.overdue

    async def without_leases(self: SQLiteStore, *, limit: int) -> Overdue:
        return replace(await overdue(self, limit=limit), leases=())

    patch.setattr(SQLiteStore, "overdue", without_leases)


def forget_lost_attempts(patch: Patch) -> None:
    book = Draft.book

    def booked(draft: Draft[Any], usage: Any, *, lost: bool = False) -> None:
        if not lost:
            book(draft, usage)

    patch.setattr(Draft, "book", booked)


def leave_calls_open(patch: Patch) -> None:
    patch.setattr(deciding, "broken_promises", lambda _facts: ())
    plant_functions(patch, {a.close_open_calls: nothing})


def prune_what_is_shown(patch: Patch) -> None:
    """In worlds that all prune soon."""
    drawn = World._drawn_settings
    patch.setattr(World, "_drawn_settings", lambda self: dataclasses.replace(drawn(self), keep_parts=0.1))
    patch.setattr(StepFacts, "over_before", property(lambda step: (step.number + 1, 0)))


def run_what_another_agent_asked_for(patch: Patch) -> None:
    patch.setattr(Facts, "profile_of_calls", property(lambda facts: facts.profile))
    patch.setattr(Facts, "agent_needed", property(lambda facts: facts.profile.agent))


def leave_what_was_shown(patch: Patch) -> None:
    patch.setattr(erasure._Wiping, "_is_part_of_what_goes", lambda *_: False)


def leave_what_waited(patch: Patch) -> None:
    blank = erasure._Wiping._blank
    patch.setattr(erasure._Wiping, "_blank", lambda self, kind, event: kind != "queue" and blank(self, kind, event))


def let_go_of_every_file(patch: Patch) -> None:
    patch.setattr(erasure._Wiping, "_blobs", lambda _self: set())


def hand_out_the_engines_own(patch: Patch) -> None:
    patch.setattr(toolbox, "copied", lambda value: value)
    patch.setattr(broadcast, "unshared", lambda value: value)


FAULTS: dict[str, tuple[Callable[[Patch], None], str]] = {
    "1 rows: a decision written under another target": (write_under_another_target, "does not verify"),
    "2 versions: one is skipped": (skip_a_version, "its log has"),
    "2 chain: each record begins it anew": (break_the_chain, "does not verify"),
    "3 lease: a dead token is obeyed": (obey_dead_tokens, "it is by 'worker"),
    "4 compaction: a step is compacted again": (compact_again, "had its compaction"),
    "5 calls: some end without a result": (close_calls_silently, "neither a result"),
    "6 submissions: other results pass for the same": (take_any_submission_again, "were taken"),
    "7 queue: a message is lost": (lose_the_queue, "which is not the head of the queue"),
    "8 shown: an attempt is not taken back": (take_back_silently, "neither kept nor taken back"),
    "9 requests: reasoning without its signature is sent": (send_everything, "cut off before its signature"),
    "10 tools: at most once, started again": (start_lost_calls_again, "was paid 2 times"),
    "10 tools: another key for the same call": (change_keys, "another key"),
    "11 interrupt: parts are shown after it": (show_parts_of_interrupted_attempts, "while the chat is"),
    "12 rest: lost leases are not swept": (sweep_no_leases, "never came to rest"),
    "12 rest: nobody looks after helpers": (leave_helpers_alone, "never came to rest: Waiting for helpers"),
    "13 usage: lost attempts are not booked": (forget_lost_attempts, "the ledger has"),
    "14 promises: an interrupt leaves calls open": (leave_calls_open, "the promise"),
    "15 pruning: what is shown is pruned before it is a message": (prune_what_is_shown, "nothing of it is kept"),
    "16 agents: one runs what another asked for": (run_what_another_agent_asked_for, "runs with a tool of"),
    "17 erasure: parts that were shown stay": (leave_what_was_shown, "was erased; events holds"),
    "17 erasure: what waited in the queue stays in its events": (leave_what_waited, "was erased; events holds"),
    "18 values: followers are handed the engine's own": (
        hand_out_the_engines_own,
        "other arguments than it was planned",
    ),
    "19 files: an erasure lets go of those of other messages": (let_go_of_every_file, "is lost"),
}


def only(name: str) -> Toolmaker:
    return lambda *given: [known for known in simulated_tools(*given) if known.name == name]


TOOLS: dict[str, Toolmaker] = {
    "10 tools: at most once, started again": only("pay"),
    "10 tools: another key for the same call": only("note"),
}
"""Of what the model is offered where the fault takes a certain tool to show."""

NEAR = {
    "3 lease: a dead token is obeyed": 10,
    "5 calls: some end without a result": 32,
    "6 submissions: other results pass for the same": 15,
    "7 queue: a message is lost": 18,
    "8 shown: an attempt is not taken back": 9,
    "9 requests: reasoning without its signature is sent": 118,
    "10 tools: at most once, started again": 326,
    "10 tools: another key for the same call": 484,
    "11 interrupt: parts are shown after it": 89,
    "14 promises: an interrupt leaves calls open": 45,
    "15 pruning: what is shown is pruned before it is a message": 263,
    "16 agents: one runs what another asked for": 269,
    "17 erasure: parts that were shown stay": 107,
    "17 erasure: what waited in the queue stays in its events": 420,
    "18 values: followers are handed the engine's own": 399,
    "19 files: an erasure lets go of those of other messages": 131,
}
"""Seeds near which a fault showed before, where that takes long."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
async def test_the_simulation_finds(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, words = FAULTS[fault]
    plant(monkeypatch)
    monkeypatch.setattr(cast, "simulated_tools", TOOLS.get(fault, simulated_tools))
    found: list[str] = []
    first = NEAR.get(fault, 0)
    for seed in range(first, first + WORLDS):
        found = await World(seed, mischief=Mischief(seed, often=0)).run()
        if any(words in problem for problem in found):
            return
    pytest.fail(f"{WORLDS} worlds did not find it; the last one found {found}")
