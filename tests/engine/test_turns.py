"""A message and its turn: every caller gets its own answer, and no caller waits for ever."""

from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio
import pytest
from tests.engine.chats import lines_of, untouched
from tests.engine.shelf import Shelf, stands

from support.engines import MakeModel, OpenChat, OpenEngine
from support.eventful_life import look, rich_life, rich_script
from support.events import assert_told_right, events_of
from support.latches import Latch
from support.life import NOW
from support.stores import stored_at
from turnwise import ClientTool, Event, Message, ModelPart, Settings, ToolResult, Transcript, TurnResult, Usage, fold
from turnwise.engine.config.results import SendReceipt, chat_of
from turnwise.engine.subscriptions.follow import follow
from turnwise.engine.subscriptions.turns import TurnReader, turn_result
from turnwise.providers.scripted import Call, Reply
from turnwise.states.errors import ConflictingReplay
from turnwise.states.events import HistoryResetEvent, MessageEvent, QueueEvent, StatusEvent, TurnFinishedEvent
from turnwise.states.messages import QueuedMessage, TextPart
from turnwise.states.names import ChatState, StopReason
from turnwise.testing.clock import ManualClock

ASKS = ClientTool("ask_user", "Ask the user.", {"type": "object"})
QUICK = Settings(coalesce=0)


def echo(request: Any) -> Reply | str:
    """Repeat the message, or call the client."""
    text = request.messages[-1].text
    return Reply(calls=[Call("ask_user", {})]) if text == "call" else f"you said {text}"


def text_of(events: list[Event]) -> str:
    return fold(events).messages[-1].text


async def test_receipt_seq_leads_to_its_own_turn(open_chat: OpenChat) -> None:
    async with open_chat(echo, settings=QUICK) as (engine, chat, _):
        for word in ("one", "two", "three"):
            receipt = await engine.send_message(chat.id, word)
            events = [event async for event in engine.events(chat.id, after=receipt.seq, until_rest=True)]
            assert text_of(events) == f"you said {word}"
            first = events[0]
            assert first.message.id == receipt.message_id
            assert (await engine.get_chat(chat.id)).last_seq == events[-1].seq


async def test_repeated_ask_returns_first_result(open_engine: Any, open_chat: OpenChat, strict_model: Any) -> None:
    """After a crash the caller repeats the request, pays nothing and gets the first answer."""
    async with open_chat(echo, settings=QUICK) as (engine, chat, _):
        first = await engine.ask(chat.id, "one", client_id="k")
        await engine.ask(chat.id, "two")
    async with open_engine(strict_model([])) as later:
        again = await later.ask(chat.id, "one", client_id="k")
        assert (again.text, again.stop_reason) == ("you said one", "end_turn")
        assert (again.messages, again.usage) == (first.messages, first.usage)
        async with untouched(later, chat.id):
            with pytest.raises(ConflictingReplay):
                await later.ask(chat.id, "another", client_id="k")


async def test_every_returned_chat_has_last_seq(open_chat: OpenChat) -> None:
    async with open_chat(echo, settings=QUICK) as (engine, chat, _):
        assert chat.last_seq == len(await events_of(engine, chat.id))
        chats = [
            (await engine.ask(chat.id, "one")).chat,
            await engine.rename(chat.id, "new"),
            await engine.get_chat(chat.id),
            (await engine.list_chats()).items[0],
            await engine.wait(chat.id),
        ]
        assert {each.last_seq for each in chats} == {len(await events_of(engine, chat.id))}


async def test_until_rest_follows_after_tool_results(open_chat: OpenChat) -> None:
    calls = [Reply(calls=[Call("ask_user", {}, id=name)]) for name in ("one", "two")]
    script = [*calls, "done"]
    async with open_chat(script, client_tools=[ASKS], settings=QUICK) as (engine, chat, _):
        seen = [event async for event in engine.stream(chat.id, "go")]
        for name in ("one", "two"):
            with anyio.fail_after(60):
                assert [event async for event in engine.events(chat.id, after=seen[-1].seq, until_rest=True)] == []
                await engine.submit_tool_results(chat.id, [ToolResult(name, name)])
                seen += [event async for event in engine.events(chat.id, after=seen[-1].seq, until_rest=True)]
        assert (seen[-1].kind, text_of(seen)) == ("turn_finished", "done")
        assert [event.seq for event in seen] == list(range(seen[0].seq, (await engine.get_chat(chat.id)).last_seq + 1))


async def test_queued_message_streams_its_own_turn(open_chat: OpenChat) -> None:
    latch = Latch()
    replies = [Reply("answer 1", first_delay=1), "answer 2", "answer 3"]
    streamed: dict[str, list[Event]] = {}
    async with open_chat(replies, sleep=latch.pass_through) as (engine, chat, _):

        async def stream(word: str) -> None:
            streamed[word] = [event async for event in engine.stream(chat.id, word)]

        async with anyio.create_task_group() as tasks:
            for word in ("one", "two", "three"):
                tasks.start_soon(stream, word)
                await anyio.wait_all_tasks_blocked()
            await latch.entered.wait()
            latch.open()
        for number, word in enumerate(("one", "two", "three"), start=1):
            events = streamed[word]
            assert lines_of(fold(events).messages) == [f"user: {word}", f"assistant: answer {number}"]
            assert (events[0].kind, events[-1].kind) == ("message", "turn_finished")
            assert {event.turn for event in events if event.kind == "turn_finished"} == {number}


@pytest.mark.parametrize("way", ["interrupted", "queued behind", "deleted", "edited", "edited while queued", "failed"])
async def test_ask_ends_whatever_becomes_of_its_message(open_chat: OpenChat, way: str) -> None:
    latch = Latch()
    first: Any = Reply("never", chunks=["nev", "er"], delay=1)
    if way == "failed":
        first = Reply("x", first_delay=1, error=ValueError("broken"), error_after=1)
    results: list[TurnResult] = []
    async with open_chat([first, "again", "more"], sleep=latch.pass_through, settings=QUICK) as (engine, chat, _):

        async def ask(word: str) -> None:
            results.append(await engine.ask(chat.id, word))

        async with anyio.create_task_group() as tasks:
            if way in {"queued behind", "deleted", "edited while queued"}:
                one = (await engine.send_message(chat.id, "one")).message_id
                await latch.entered.wait()
            tasks.start_soon(ask, "two")
            await latch.entered.wait()
            kind = "queue" if way in {"queued behind", "deleted", "edited while queued"} else "message"
            async with aclosing(engine.events(chat.id)) as events:
                assert await anext(event async for event in events if event.kind == kind)
            assert results == []
            match way:
                case "interrupted" | "queued behind":
                    await engine.interrupt(chat.id)
                case "deleted":
                    (queued,) = await engine.queued(chat.id)
                    await engine.delete_queued(chat.id, queued.id)
                case "edited":
                    (message,) = await engine.messages(chat.id)
                    await engine.edit_message(chat.id, message.id, "other")
                case "edited while queued":
                    await engine.edit_message(chat.id, one, "other")
                case _:
                    latch.open()
        (result,) = results
        expected = {
            "interrupted": ("taken", "interrupted", ["user: two", "assistant: nev"]),
            "queued behind": ("queued", None, []),
            "failed": ("taken", "error", ["user: two"]),
            "edited": ("removed", None, []),
        }
        state, reason, messages = expected.get(way, ("removed", None, []))
        assert (result.message_state, result.stop_reason) == (state, reason)
        assert lines_of(result.messages) == messages
        latch.open()
        await engine.wait(chat.id)


async def test_ask_timeout_leaves_the_turn_alone(open_chat: OpenChat) -> None:
    latch = Latch()
    async with open_chat([Reply("late", first_delay=1)], sleep=latch.pass_through) as (engine, chat, _):
        with pytest.raises(TimeoutError):
            await engine.ask(chat.id, "one", timeout=0.05)
        latch.open()
        await engine.wait(chat.id)
        assert lines_of(await engine.messages(chat.id)) == ["user: one", "assistant: late"]


async def test_transcript_shows_reply_of_dead_worker(open_engine: Any, strict_model: Any, database: Any) -> None:
    latch = Latch()
    model = strict_model([Reply("Hello", chunks=["Hel", "lo"], delay=1)], sleep=latch.pass_through)
    async with open_engine(model, settings=Settings(coalesce=0, shutdown_grace=0)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await latch.entered.wait()
        async for event in engine.events(chat.id):
            if event.kind == "part":
                break
        assert (await engine.transcript(chat.id)).live_text == "Hel"
    store = stored_at(database)
    async with open_engine(model, store=store, settings=Settings(run_worker=False)) as elsewhere:
        transcript = await elsewhere.transcript(chat.id)
        assert (transcript.state, transcript.live_text) == ("pending", "Hel")
        assert transcript == fold(await events_of(elsewhere, chat.id))


# A reader of one turn


MakeEvent = Callable[..., Event]


def message(name: str, role: Any = "user", *, turn: int = 1, text: str = "") -> Message:
    parts = (TextPart(text=text or name),) if text != "nothing" else ()
    return Message(id=name, role=role, parts=parts, turn=turn, step=0, created_at=NOW)


def taken(name: str, turn: int) -> MakeEvent:
    return partial(MessageEvent, message=message(name, turn=turn))


def waits(name: str) -> MakeEvent:
    queued = QueuedMessage(id=name, parts=(), accepted_at=NOW)
    return partial(QueueEvent, change="added", ids=(name,), message=queued)


def left(change: str, *names: str) -> MakeEvent:
    return partial(QueueEvent, change=change, ids=names)


def ended(turn: int) -> Callable[..., TurnFinishedEvent]:
    return partial(TurnFinishedEvent, turn=turn, stop_reason=StopReason.end_turn, usage=Usage(input_tokens=turn))


MOVED, CUT = partial(StatusEvent, state=ChatState.pending), partial(HistoryResetEvent, first_removed="other")


def moved_to(state: ChatState) -> MakeEvent:
    return partial(StatusEvent, state=state)


def reader_of(*events: MakeEvent, seq: int = 0, replayed: bool = False) -> TurnReader:
    """Return the reader of the message `mine`, in a chat that rests after these events; `replayed` if it knows that."""
    shelf = Shelf([make(seq=number) for number, make in enumerate(events, start=1)])
    chat = chat_of(stands(last_seq=len(events) if replayed else 0))
    receipt = SendReceipt(chat, "mine", queued=False, replayed=replayed, seq=seq)
    following = follow(shelf.store, shelf.broadcaster, receipt.chat.id, after=seq, live=True, until_rest=True)
    return TurnReader(following, receipt)


@pytest.mark.parametrize(
    ("events", "yielded", "state", "finished"),
    [
        ([taken("mine", 1), MOVED, ended(1), MOVED], [1, 2, 3], "taken", 1),
        ([taken("mine", 1), MOVED, ended(1), taken("other", 2), ended(2)], [1, 2, 3], "taken", 1),
        ([taken("mine", 1), MOVED], [1, 2], "taken", None),
        ([taken("mine", 1), waits("other"), left("deleted", "other"), ended(1)], [1, 2, 3, 4], "taken", 1),
        ([taken("mine", 1), CUT, taken("other", 2)], [1, 2], "removed", None),
        ([taken("other", 1), ended(1), taken("mine", 2), ended(2)], [3, 4], "taken", 2),
        ([taken("mine", 2), ended(1), ended(2)], [1, 2, 3], "taken", 2),
        ([waits("mine"), MOVED, ended(1), taken("mine", 2), left("taken", "mine"), ended(2)], [4, 5, 6], "taken", 2),
        ([waits("mine"), waits("other"), left("moved", "other"), left("kept", "mine"), MOVED], [], "queued", None),
        ([waits("mine"), waits("other"), left("deleted", "mine"), taken("other", 1)], [], "removed", None),
        ([waits("mine"), waits("other"), left("kept", "other"), taken("other", 1)], [], "removed", None),
        ([CUT, waits("mine"), taken("mine", 4), ended(4)], [3, 4], "taken", 4),
        ([], [], "queued", None),
    ],
)
async def test_turn_reader_returns_its_own_turn_only(
    events: list[MakeEvent], yielded: list[int], state: str, finished: int | None
) -> None:
    reader = reader_of(*events)
    assert [event.seq async for event in reader.events()] == yielded
    assert reader.message_state == state
    assert (reader.finished.turn if reader.finished is not None else None) == finished
    later = reader_of(*[MOVED, taken("mine", 7), ended(7)], *events, seq=3)
    assert [event.seq - 3 async for event in later.events()] == yielded, "what was before its receipt is not read"


STREAMS, RUNS_TOOLS = moved_to(ChatState.streaming), moved_to(ChatState.executing_tools)
COMPACTS, RESTS = moved_to(ChatState.compacting), moved_to(ChatState.waiting)


@pytest.mark.parametrize(
    ("behind", "yielded", "ends"),
    [
        ([], 2, 2),
        ([MOVED, COMPACTS, RESTS], 2, 2),
        ([MOVED, taken("other", 2), STREAMS, ended(2)], 2, 2),
        ([CUT, taken("other", 2), STREAMS, ended(2)], 2, 2),
        ([MOVED, STREAMS, ended(1), RESTS], 5, 5),
        ([MOVED, STREAMS, ended(1), MOVED, RUNS_TOOLS, ended(1), RESTS], 8, 8),
        ([MOVED, COMPACTS, taken("marker", 1), RESTS, MOVED, STREAMS, ended(1), RESTS], 9, 9),
        ([MOVED, moved_to(ChatState.error), ended(1)], 5, 5),
        ([MOVED, STREAMS, moved_to(ChatState.requires_action)], 5, None),
        ([MOVED, STREAMS, CUT, taken("other", 2), STREAMS, ended(2)], 5, None),
    ],
)
async def test_turn_reader_follows_a_resumed_turn(behind: list[MakeEvent], yielded: int, ends: int | None) -> None:
    reader = reader_of(taken("mine", 1), ended(1), *behind, replayed=True)
    assert [event.seq async for event in reader.events()] == [*range(1, yielded + 1)]
    assert (reader.finished.seq if reader.finished is not None else None) == ends


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([("user", "hi"), ("assistant", "one")], "one"),
        ([("user", "hi"), ("assistant", "one"), ("assistant", "two")], "two"),
        ([("user", "hi"), ("assistant", "one"), ("assistant", "nothing")], "one"),
        ([("user", "hi"), ("assistant", "one"), ("system", "cut"), ("user", "go on")], "one"),
        ([("user", "hi"), ("assistant", "nothing")], ""),
        ([], ""),
    ],
)
def test_result_text_is_last_answer_with_text(messages: list[tuple[str, str]], text: str) -> None:
    yielded = [message(f"m{at}", role, text=words) for at, (role, words) in enumerate(messages)]
    result = turn_result(reader_of(), Transcript(messages=yielded), stands(), lambda _: None)
    assert (result.text, result.messages) == (text, yielded)


async def test_joining_at_any_event_gives_same_transcript(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    clock = ManualClock()
    model = strict_model(rich_script(), context_limit=100)
    async with open_engine(model, settings=QUICK, tools=[look], clock=clock) as engine:
        chat_id = await rich_life(engine, clock)
        await assert_told_right(engine, chat_id)
        whole = await events_of(engine, chat_id)
    assert len({event.kind for event in whole}) == 12, "the life has events of every kind"
    async with open_engine(model, settings=Settings(run_worker=False)) as elsewhere:
        for known in range(len(whole) + 1):
            rest = await events_of(elsewhere, chat_id, after=known)
            assert rest == whole[known:]
            assert fold(rest, fold(whole[:known])) == fold(whole)


async def test_provider_metadata_returns_to_provider(open_chat: OpenChat) -> None:
    parts = [ModelPart("text_delta", text="hi", metadata={"id": "abc"}), ModelPart("finish")]
    async with open_chat([Reply(parts=parts), "done"], settings=QUICK) as (engine, chat, model):
        await engine.ask(chat.id, "hello")
        await engine.ask(chat.id, "again")
        assert model.requests[1].messages[1].parts[0].metadata == {"id": "abc"}


async def test_usage_adds_up_over_steps_and_turns(open_chat: OpenChat) -> None:
    first = Usage(input_tokens=10, output_tokens=2, cache_read_tokens=4)
    script = [
        Reply("", calls=[Call("look", {})], usage=first),
        Reply("one", usage=(20, 3)),
        Reply("two", usage={"input_tokens": 30, "reasoning_tokens": 7}),
        "three",
    ]
    async with open_chat(script, settings=QUICK, tools=[look]) as (engine, chat, _):
        assert (await engine.ask(chat.id, "1")).usage == Usage(input_tokens=30, output_tokens=5, cache_read_tokens=4)
        assert (await engine.ask(chat.id, "2")).usage == Usage(input_tokens=30, reasoning_tokens=7)
        last = await engine.ask(chat.id, "3")
        assert last.usage == Usage(partial=True)
        whole = Usage(input_tokens=60, output_tokens=5, cache_read_tokens=4, reasoning_tokens=7, partial=True)
        assert last.chat.usage == whole
        usages = [event.usage for event in await events_of(engine, chat.id) if isinstance(event, TurnFinishedEvent)]
        assert sum((usage.input_tokens or 0 for usage in usages), 0) == 60
