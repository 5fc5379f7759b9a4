"""Reminders, usage and growth: what a request gets for itself alone, what a chat costs, and that it stays cheap."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest
from msgspec.structs import force_setattr

from support.chats import said
from support.engines import MakeModel, OpenEngine
from support.events import assert_told_right, events_of
from support.latches import Gate
from support.stores import Delegate, stored_at
from turnwise import LoopState, Message, Settings, Usage, history_was_compacted, tool
from turnwise.providers.scripted import Call, Reply
from turnwise.states.events import TurnFinishedEvent

QUICK = Settings(coalesce=0)


@tool
async def look(at: str) -> str:
    """Look at something."""
    if at == "nothing":
        raise LookupError(at)
    return f"seen {at}"


def looking(*things: str) -> list[Reply]:
    """Return a reply with one call for each thing, then a final answer."""
    return [*(Reply("", calls=[Call("look", {"at": thing})]) for thing in things), Reply("done")]


@pytest.mark.parametrize(
    ("returned", "reminders"),
    [("be brief", ["be brief"]), (None, []), ("", []), (["", "be brief"], ["be brief"]), ((), [])],
    ids=str,
)
async def test_a_reminder_may_return_one_text_or_nothing(
    open_engine: OpenEngine, strict_model: MakeModel, returned: Any, reminders: list[str]
) -> None:
    model = strict_model(["done"])
    async with open_engine(model, reminders=[lambda _state: returned]) as engine:
        await engine.ask((await engine.create_chat()).id, "hello")
    texts = [text for role, text in said(model.requests[0].messages) if role == "system"]
    assert texts == [f"<reminder>{text}</reminder>" for text in reminders]


async def test_a_reminder_may_be_asynchronous(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    """It may have to look something up, as `prepare_messages` and system prompts may."""

    async def slow(state: LoopState) -> str:
        await anyio.lowlevel.checkpoint()
        return f"step {state.step}"

    model = strict_model(["done"])
    async with open_engine(model, reminders=[lambda _state: ["first"], slow, lambda _state: "last"]) as engine:
        await engine.ask((await engine.create_chat()).id, "hello")
    texts = [text for role, text in said(model.requests[0].messages) if role == "system"]
    assert texts == [f"<reminder>{text}</reminder>" for text in ("first", "step 1", "last")]


async def test_each_reminder_is_a_system_message_at_the_end_of_that_request_only(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    model = strict_model(looking("a"))
    async with open_engine(
        model, settings=QUICK, tools=[look], reminders=[lambda state: ["be brief", f"step {state.step}"]]
    ) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        first, second = (said(request.messages) for request in model.requests)
        assert first == [
            ("user", "hello"),
            ("system", "<reminder>be brief</reminder>"),
            ("system", "<reminder>step 1</reminder>"),
        ]
        assert second[-3:] == [
            ("tool", "seen a"),
            ("system", "<reminder>be brief</reminder>"),
            ("system", "<reminder>step 2</reminder>"),
        ]
        for view in ("user", "raw", "model"):
            assert "system" not in [role for role, _ in said(await engine.messages(chat.id, view=view))]


async def test_no_reminder_leaves_the_request_unchanged(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    model = strict_model(["hi"])
    async with open_engine(model, settings=QUICK, reminders=[lambda state: []]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        assert said(model.requests[0].messages) == [("user", "hello")]


async def test_a_producer_sees_the_last_five_calls_of_the_turn_oldest_first(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    states: list[LoopState] = []

    def note(state: LoopState) -> Sequence[str]:
        states.append(state)
        return ()

    model = strict_model(looking("a", "nothing", "b", "c", "d", "e"))
    async with open_engine(model, settings=QUICK, tools=[look], reminders=[note]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        assert [state.step for state in states] == [1, 2, 3, 4, 5, 6, 7]
        assert [state.call_count for state in states] == [0, 1, 2, 3, 4, 5, 6]
        assert (states[0].last_call, states[0].last_calls) == (None, ())
        assert [call.succeeded for call in states[6].last_calls] == [False, True, True, True, True]
        assert states[2].last_call == states[2].last_calls[-1]
        assert {state.compactions for state in states} == {0}


async def test_a_producer_is_told_of_compactions_and_the_ready_made_one_comes_first(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    states: list[LoopState] = []
    full = Reply("", calls=[Call("look", {"at": "a"})], usage=(90, 1))
    model = strict_model([full, Reply("done", usage=(20, 1))], context_limit=100)

    def note(state: LoopState) -> Sequence[str]:
        states.append(state)
        return [f"{state.compactions} so far"]

    async with open_engine(model, settings=QUICK, tools=[look], reminders=[note, history_was_compacted]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        assert [(state.step, state.compactions) for state in states] == [(1, 0), (2, 1)]
        summary, asked, *reminders = said(next(r for r in model.requests if r.step == 2).messages)
        assert (summary[0], asked) == ("user", ("user", "hello"))
        assert [role for role, _ in reminders] == ["system", "system"]
        assert "compacted 1 time(s)" in reminders[0][1]
        assert reminders[1][1] == "<reminder>1 so far</reminder>"


async def test_a_summary_that_an_edit_or_a_clear_has_taken_away_is_told_no_more(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    """Nor is it in a fork of either, although both chats have been compacted."""
    model = strict_model("hi")

    async def is_told(chat_id: str) -> bool:
        await engine.ask(chat_id, "next")
        return "compacted" in model.requests[-1].messages[-1].text

    async with open_engine(model, settings=QUICK, reminders=[history_was_compacted]) as engine:
        chat = await engine.create_chat()
        first, *_ = (await engine.ask(chat.id, "hello")).messages
        told: list[tuple[str, bool, bool]] = []
        for change in ("compact", "edit", "compact", "clear", "compact"):
            if change == "compact":
                await engine.request_compaction(chat.id)
            elif change == "edit":
                await engine.edit_message(chat.id, first.id, "hello again")
            else:
                await engine.clear_context(chat.id)
            version = (await engine.wait(chat.id)).version
            fork = await engine.fork(chat.id, at_version=version)
            told.append((change, await is_told(chat.id), await is_told(fork.id)))
        assert told == [(change, change == "compact", change == "compact") for change, *_ in told]


async def test_calls_before_a_compaction_are_counted_and_remembered(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    """A producer that counts calls, or looks for the same call again, must not be blinded by a compaction."""
    states: list[LoopState] = []

    def note(state: LoopState) -> Sequence[str]:
        states.append(state)
        return ()

    def looks(at: str, tokens: int | None = 20) -> Reply:
        return Reply("", calls=[Call("look", {"at": at})], usage=(tokens, 1) if tokens else None)

    done = Reply("done", usage=(20, 1))
    replies = [looks("a", None), looks("a", 90), looks("nothing"), looks("b"), done, looks("c"), done]
    model = strict_model(replies, context_limit=100)
    async with open_engine(model, settings=QUICK, tools=[look], reminders=[note]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        assert [state.compactions for state in states] == [0, 0, 1, 1, 1]
        assert [state.call_count for state in states] == [0, 1, 2, 3, 4]
        last = states[-1].last_calls
        assert [(call.name, dict(call.arguments), call.output) for call in last] == [
            ("look", {"at": "a"}, "seen a"),
            ("look", {"at": "a"}, "seen a"),
            ("look", {"at": "nothing"}, last[2].output),
            ("look", {"at": "b"}, "seen b"),
        ]
        assert [call.succeeded for call in last] == [True, True, False, True]
        assert len({call.call_id for call in last}) == 4
        assert (states[1].usage.partial, states[2].usage.input_tokens) == (True, 90)
        assert (states[2].context_tokens, states[2].context_limit) == (None, 100)
        states.clear()
        await engine.ask(chat.id, "and now?")
        assert [state.call_count for state in states] == [0, 1]


async def test_prepared_messages_are_of_that_request_only(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    def loud(messages: list[Message]) -> list[Message]:
        force_setattr(messages[0].parts[0], "text", "HELLO")  # even a hook that misbehaves works on copies
        return messages

    model = strict_model(["hi"])
    async with open_engine(model, settings=QUICK, prepare_messages=loud) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        assert said(model.requests[0].messages) == [("user", "HELLO")]
        assert said(await engine.messages(chat.id)) == [("user", "hello"), ("assistant", "hi")]


async def test_usage_adds_up_over_steps_turns_and_the_chat_and_unknown_is_not_zero(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    first = Usage(input_tokens=10, output_tokens=2, cache_read_tokens=4)
    model = strict_model(
        [
            Reply("", calls=[Call("look", {"at": "a"})], usage=first),
            Reply("one", usage=(20, 3)),
            Reply("two", usage={"input_tokens": 30, "reasoning_tokens": 7}),
            "three",
        ]
    )
    async with open_engine(model, settings=QUICK, tools=[look]) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "1")).usage == Usage(input_tokens=30, output_tokens=5, cache_read_tokens=4)
        assert (await engine.ask(chat.id, "2")).usage == Usage(input_tokens=30, reasoning_tokens=7)
        last = await engine.ask(chat.id, "3")
        assert last.usage == Usage(partial=True)
        whole = Usage(input_tokens=60, output_tokens=5, cache_read_tokens=4, reasoning_tokens=7, partial=True)
        assert last.chat.usage == whole
        told = [event.usage for event in await events_of(engine, chat.id) if isinstance(event, TurnFinishedEvent)]
        assert sum((usage.input_tokens or 0 for usage in told), 0) == 60


class Counting(Delegate):
    """A store that counts what is asked of it."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return super().__getattr__(name)


def stored_bytes(database: Path) -> int:
    with sqlite3.connect(database) as connection:
        columns = {"messages": "body", "audit": "body", "events": "body", "usage": "body", "chats": "facts"}
        sizes = [
            connection.execute(f"SELECT coalesce(sum(length({body})), 0) FROM {table}").fetchone()[0]  # noqa: S608
            for table, body in columns.items()
        ]
    connection.close()
    return sum(sizes)


async def test_neither_the_storage_nor_the_reads_of_a_step_grow_with_the_chat(
    open_engine: OpenEngine, strict_model: MakeModel, database: Path
) -> None:
    store = Counting(stored_at(database))
    model = strict_model(Reply("x" * 200, usage=(10, 1)))
    async with open_engine(model, store=store, settings=QUICK) as engine:
        chat = await engine.create_chat()
        grown, reads = [stored_bytes(database)], []
        for number in range(40):
            store.asked.clear()
            await engine.ask(chat.id, f"message {number:05}")
            grown.append(stored_bytes(database))
            reads.append([name for name in store.asked if name in {"prompt", "shown", "calls"}])
        steps = [after - before for before, after in itertools.pairwise(grown)]
        assert max(steps[30:]) < min(steps[2:10]) * 1.1
        assert reads == [[]] * 40


async def test_what_was_erased_while_a_turn_runs_is_not_sent_again(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    work = Gate()
    model = strict_model(["hi", Reply("", calls=[Call("work", {})]), "done"])
    async with open_engine(model, settings=QUICK, tools=[work.tool]) as engine:
        chat = await engine.create_chat()
        first = await engine.ask(chat.id, "my secret")
        await engine.send_message(chat.id, "work")
        await work.entered.wait()
        await engine.erase_message(chat.id, first.messages[0].id)
        work.open.set()
        await engine.wait(chat.id)
        assert said(model.requests[-1].messages)[0] == ("user", "[erased]")
        assert said(await engine.messages(chat.id))[0] == ("user", "[erased]")
        await assert_told_right(engine, chat.id)


@pytest.mark.parametrize("view", ["user", "raw"])
async def test_a_system_prompt_is_no_message(open_engine: OpenEngine, strict_model: MakeModel, view: Any) -> None:
    model = strict_model(["hi"])
    async with open_engine(model, settings=QUICK) as engine:
        chat = await engine.create_chat(system="Be brief.")
        await engine.ask(chat.id, "hello")
        assert model.requests[0].system == "Be brief."
        assert said(await engine.messages(chat.id, view=view)) == [("user", "hello"), ("assistant", "hi")]
