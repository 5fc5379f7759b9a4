"""Each invariant of the machine, broken on purpose: the simulation finds it within a few worlds."""

import dataclasses
import importlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from support.planted_faults import nothing, plant_functions, plant_no_refusal, plant_rows
from turnwise.engine.commands import handlers, report_handlers
from turnwise.engine.prompt import history
from turnwise.engine.subscriptions import broadcast, consumer
from turnwise.engine.subscriptions.turns import TurnReader
from turnwise.engine.tools import toolbox
from turnwise.persistence import erasure
from turnwise.persistence.reading import Overdue
from turnwise.persistence.sql import lists
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.protocol import ModelPart, ModelRequest
from turnwise.states import actions as a
from turnwise.states import refusals
from turnwise.states import triggers as t
from turnwise.states.actions import compaction as compact_actions
from turnwise.states.budgets import StoredBudget
from turnwise.states.calls import Answer
from turnwise.states.draft import Draft
from turnwise.states.events import Event, ToolResultEvent
from turnwise.states.names import CallStatus
from turnwise.states.table import Row
from turnwise.states.usage import Usage
from turnwise.states.writes import DropQueued, FireSchedule
from turnwise.testing.simulation import Faults, World, cast
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


def obey_dead_tokens(patch: Patch) -> None:
    plant_no_refusal(patch, refusals.refuse_dead_token)


def compact_again(patch: Patch) -> None:
    """Without the row's guard and the invariant of `compacting`, a failed step is compacted again."""

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


def take_back_silently(patch: Patch) -> None:
    patch.setattr(Draft, "take_back", lambda _draft, _reason: None)


def send_everything(patch: Patch) -> None:
    """A model that always reasons reveals it: a reply must be cut off right after the reasoning."""
    reply = SimulatedModel._parts

    def parts(self: SimulatedModel, request: ModelRequest) -> list[ModelPart]:
        parts_of_reply = reply(self, request)
        reasons = parts_of_reply[0].type == "reasoning_delta"
        return (
            parts_of_reply
            if reasons
            else [ModelPart("reasoning_delta", text="hm", signature=f"s{self._serial}"), *parts_of_reply]
        )

    patch.setattr(SimulatedModel, "_parts", parts)
    patch.setattr(history, "is_sent", lambda _part, *, partial: True)


def start_lost_calls_again(patch: Patch) -> None:
    def plan_again(draft: Draft[Any]) -> None:
        for call in draft.calls:
            if call.status is CallStatus.started:
                draft.put_calls(call.with_status(CallStatus.planned))

    plant_functions(patch, {a.give_up_started_calls: plan_again})


def sweep_no_leases(patch: Patch) -> None:
    overdue = SQLiteStore.overdue

    async def without_leases(self: SQLiteStore, *, limit: int) -> Overdue:
        return replace(await overdue(self, limit=limit), leases=())

    patch.setattr(SQLiteStore, "overdue", without_leases)


def leave_calls_open(patch: Patch) -> None:
    patch.setattr(deciding, "broken_invariants", lambda _facts: ())
    plant_functions(patch, {a.close_open_calls: nothing})


def leave_what_was_shown(patch: Patch) -> None:
    patch.setattr(erasure._Wiping, "_is_part_of_what_goes", lambda *_: False)


def let_go_of_every_file(patch: Patch) -> None:
    patch.setattr(erasure._Wiping, "_blobs", lambda _self: set())


def hand_out_the_engines_own(patch: Patch) -> None:
    patch.setattr(toolbox, "copied", lambda value: value)
    patch.setattr(broadcast, "unshared", lambda value: value)


def leave_results_out_of_streams(patch: Patch) -> None:
    init = TurnReader.__init__

    async def without(following: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        async with aclosing(following) as events:
            async for event in events:
                if not isinstance(event, ToolResultEvent):
                    yield event

    patch.setattr(TurnReader, "__init__", lambda self, events, receipt: init(self, without(events), receipt))


def answer_queued_messages(patch: Patch) -> None:
    result = handlers.turn_result
    patch.setattr(handlers, "turn_result", lambda *args: dataclasses.replace(result(*args), message_state="taken"))


def number_transcripts_too_low(patch: Patch) -> None:
    transcript_of = report_handlers.transcript_of

    def numbered(snapshot: Any) -> Any:
        transcript = transcript_of(snapshot)
        transcript.last_seq = max(transcript.last_seq - 1, 0)
        return transcript

    patch.setattr(report_handlers, "transcript_of", numbered)


def lose_what_steers(patch: Patch) -> None:
    def take(draft: Draft[Any]) -> None:
        draft.writes += [DropQueued(queued.id, "steered") for queued in draft.queue if queued.steers]
        draft.queue = tuple(queued for queued in draft.queue if not queued.steers)

    plant_functions(patch, {a.take_steering: take})


def fire_again(patch: Patch) -> None:
    def fire(draft: Draft[Any]) -> None:
        draft.writes.append(FireSchedule(draft.trigger.message.id, draft.trigger.message.due))

    patch.setattr(deciding, "broken_invariants", lambda _facts: ())
    plant_functions(patch, {a.fire_schedule: fire})


def send_nothing(patch: Patch) -> None:
    plant_rows(patch, lambda row: replace(row, actions=row.actions[:1]) if is_enqueued(row) else row)


def is_enqueued(row: Row) -> bool:
    return row.trigger is t.ScheduleFired and row.source == row.target


def overlook_what_is_due(patch: Patch) -> None:
    overdue = SQLiteStore.overdue

    async def without_schedules(self: SQLiteStore, *, limit: int) -> Overdue:
        return replace(await overdue(self, limit=limit), to_wake=())

    patch.setattr(SQLiteStore, "overdue", without_schedules)


def keep_reservations(patch: Patch) -> None:
    settle = StoredBudget.settle

    def settle_nothing(self: StoredBudget, chat_id: str, usage: Usage, *, title: bool = False) -> StoredBudget:
        return replace(settle(self, chat_id, usage, title=title), reservations=self.reservations)

    patch.setattr(StoredBudget, "settle", settle_nothing)


def settle_for_nothing(patch: Patch) -> None:
    settle = StoredBudget.settle

    def free(self: StoredBudget, chat_id: str, usage: Usage, *, title: bool = False) -> StoredBudget:
        return replace(settle(self, chat_id, usage, title=title), spent=self.spent)

    patch.setattr(StoredBudget, "settle", free)


def store_positions_too_early(patch: Patch) -> None:
    def advance(self: Any) -> None:
        self.position = self._reader.settled

    patch.setattr(consumer._Session, "advance", advance)


def give_up_what_fails(patch: Patch) -> None:
    async def forget(*_: Any) -> None:
        return

    patch.setattr(SQLiteStore, "set_aside", forget)


def deliver_backwards(patch: Patch) -> None:
    changed = SQLiteStore.changed_events

    async def reversed_events(self: SQLiteStore, *args: Any, **options: Any) -> list[Any]:
        return (await changed(self, *args, **options))[::-1]

    patch.setattr(SQLiteStore, "changed_events", reversed_events)


def count_no_chat_at_work(patch: Patch) -> None:
    patch.setattr(lists, "at_work", no_chats)


async def no_chats(*_: Any) -> list[Any]:
    return []


FAULTS: dict[str, tuple[Callable[[Patch], None], str]] = {
    "3 lease: a dead token is obeyed": (obey_dead_tokens, "it is by 'worker"),
    "4 compaction: a step is compacted again": (compact_again, "had its compaction"),
    "5 calls: some end without a result": (close_calls_silently, "neither a result"),
    "6 submissions: other results pass for the same": (take_any_submission_again, "were taken"),
    "7 queue: a message is lost": (lose_the_queue, "which is not the head of the queue"),
    "8 shown: an attempt is not taken back": (take_back_silently, "neither stored nor taken back"),
    "9 requests: reasoning without its signature is sent": (send_everything, "cut off before its signature"),
    "10 tools: at most once, started again": (start_lost_calls_again, "was paid 2 times"),
    "12 rest: lost leases are not swept": (sweep_no_leases, "never came to rest"),
    "14 promises: an interrupt leaves calls open": (leave_calls_open, "the promise"),
    "17 erasure: parts that were shown stay": (leave_what_was_shown, "was erased; events holds"),
    "18 values: subscribers are handed the engine's own": (
        hand_out_the_engines_own,
        "other arguments than it was planned",
    ),
    "19 files: an erasure lets go of those of other messages": (let_go_of_every_file, "is lost"),
    "20 stream: results are missing": (leave_results_out_of_streams, "yielded the events"),
    "20 ask: a queued message is answered": (answer_queued_messages, "was answered by taken"),
    "20 transcript: its number is too low": (number_transcripts_too_low, "a transcript"),
    "21 steering: a message is lost": (lose_what_steers, "was accepted and is stored 0 times"),
    "22 schedules: what was sent stays due": (fire_again, "times at one time"),
    "22 schedules: what is due is not sent": (send_nothing, "was due, and was not sent"),
    "22 schedules: what is due is overlooked": (overlook_what_is_due, "never came to rest"),
    "23 budgets: reservations stay": (keep_reservations, "has reservations left"),
    "23 budgets: calls cost nothing": (settle_for_nothing, "its calls do not add up"),
    "24 consumer: its position is stored too early": (store_positions_too_early, "the consumer lacks the events"),
    "24 consumer: what it refuses is forgotten": (give_up_what_fails, "the consumer lacks the events"),
    "24 consumer: the last event comes first": (deliver_backwards, "got its events in the order"),
    "25 caps: no chat counts as at work": (count_no_chat_at_work, "chats of one owner are at work"),
}


def only(name: str) -> Toolmaker:
    return lambda *args: [known for known in simulated_tools(*args) if known.name == name]


TOOLS: dict[str, Toolmaker] = {"10 tools: at most once, started again": only("pay")}
"""The offered tools, where only certain tools reveal the fault."""

NEAR = {
    "3 lease: a dead token is obeyed": 10,
    "5 calls: some end without a result": 32,
    "6 submissions: other results pass for the same": 15,
    "7 queue: a message is lost": 75,
    "8 shown: an attempt is not taken back": 9,
    "9 requests: reasoning without its signature is sent": 240,
    "10 tools: at most once, started again": 326,
    "14 promises: an interrupt leaves calls open": 60,
    "17 erasure: parts that were shown stay": 140,
    "18 values: subscribers are handed the engine's own": 450,
    "19 files: an erasure lets go of those of other messages": 160,
    "20 stream: results are missing": 21,
    "20 ask: a queued message is answered": 128,
}
"""Seeds near which a fault appeared before, where that takes long."""


@pytest.mark.deep
@pytest.mark.parametrize("fault", FAULTS)
async def test_simulation_finds(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, words = FAULTS[fault]
    plant(monkeypatch)
    monkeypatch.setattr(cast, "simulated_tools", TOOLS.get(fault, simulated_tools))
    found: list[str] = []
    first = NEAR.get(fault, 0)
    for seed in range(first, first + WORLDS):
        found = await World(seed, faults=Faults(seed, often=0)).run()
        if any(words in problem for problem in found):
            return
    pytest.fail(f"{WORLDS} worlds did not find it; the last one found {found}")
