"""Reminders, usage and growth: what a request gets for itself alone, what a chat costs, and that it stays cheap."""

from __future__ import annotations

from collections.abc import Sequence

import anyio.lowlevel

from support.chats import said
from support.engines import MakeModel, OpenEngine
from support.events import assert_told_right, events_of
from support.latches import Gate
from turnwise import LoopState, Settings, Usage, history_was_compacted, tool
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


async def test_reminder_may_be_async(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    """It may have to look something up, as `prepare_messages` and system prompts may."""

    async def slow(state: LoopState) -> str:
        await anyio.lowlevel.checkpoint()
        return f"step {state.step}"

    model = strict_model(["done"])
    async with open_engine(model, reminders=[lambda _state: ["first"], slow, lambda _state: "last"]) as engine:
        await engine.ask((await engine.create_chat()).id, "hello")
    texts = [text for role, text in said(model.requests[0].messages) if role == "system"]
    assert texts == [f"<reminder>{text}</reminder>" for text in ("first", "step 1", "last")]


async def test_reminder_is_sent_with_one_request_only(open_engine: OpenEngine, strict_model: MakeModel) -> None:
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


async def test_reminder_sees_compactions(open_engine: OpenEngine, strict_model: MakeModel) -> None:
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


async def test_calls_before_compaction_stay_counted(open_engine: OpenEngine, strict_model: MakeModel) -> None:
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


async def test_usage_adds_up_over_steps_and_turns(open_engine: OpenEngine, strict_model: MakeModel) -> None:
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


async def test_erased_message_is_not_sent_again(open_engine: OpenEngine, strict_model: MakeModel) -> None:
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
