"""A turn told to a page that cannot take words back: what a lost worker said is held until its fate is known."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.gated_model import GatedModel
from turnwise import ClientTool, Engine, ModelError, Settings
from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.service import AGUIEncoder, AISDKEncoder
from turnwise.service.routes.threads import turns_of
from turnwise.service.routes.turn_events import Turns
from turnwise.service.routes.turn_stream import lines_of_turns
from turnwise.states.events import AttemptDiscardedEvent, Event, MessageEvent, StatusEvent, TurnFinishedEvent
from turnwise.states.names import ChatState


class Recorder:
    """An encoder that keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ends: list[str | None] = []
        self.began = anyio.Event()

    def encode(self, event: Event) -> Iterator[dict[str, Any]]:
        self.events.append(event)
        self.began.set()
        yield {"seq": event.seq}

    def end(self, *, cut: str | None = None) -> Iterator[dict[str, Any]]:
        self.ends.append(cut)
        yield {"end": cut}


async def told(path: Path, *, is_wary: bool) -> tuple[list[Event], Recorder, list[bytes]]:
    """Follow a turn whose worker is lost in mid-reply; return its events, what the encoder was given, and the lines."""
    store = SQLiteStore(path)
    await store.open()
    await plans.created(store, "c", plans.send("Hello!"), plans.claim("lost", lease=0), plans.start())
    await store.journal("c", 1, ChatState.streaming, [part("Half an ans")])
    await store.close()
    recorder, lines = Recorder(), []
    reader = Engine(f"sqlite:///{path}", model=ScriptedModel(()), settings=Settings(run_worker=False))
    async with reader, anyio.create_task_group() as tasks:

        async def follow() -> None:
            stream = lines_of_turns(reader, "c", Turns(0), recorder, last=b"last", is_wary=is_wary)
            lines.extend([line async for line in stream])

        tasks.start_soon(follow)
        await recorder.began.wait()
        async with Engine(f"sqlite:///{path}", model=ScriptedModel("A whole answer.")) as worker:
            await worker.wait("c", timeout=60)
        stored = [event async for event in reader.events("c", follow=False)]
    return stored, recorder, lines


async def test_words_of_a_lost_worker_are_withheld(tmp_path: Path) -> None:
    stored, recorder, lines = await told(tmp_path / "chats.db", is_wary=True)
    (discarded,) = (event for event in stored if isinstance(event, AttemptDiscardedEvent))
    lost = [event for event in stored if event.kind == "part" and event.seq < discarded.seq]
    between = [event for event in stored if isinstance(event, StatusEvent) and lost[0].seq < event.seq < discarded.seq]
    assert (len(lost), [event.state for event in between]) == (1, ["pending", "streaming"])
    assert [event.seq for event in recorder.events] == [event.seq for event in stored if event not in lost]
    assert recorder.ends == [None]
    assert lines[-2:] == [b'data: {"end": null}\n\n', b"last"]


async def both_of(engine: Engine, turns: Turns) -> list[list[dict[str, Any]]]:
    """Return what a run of AG-UI and a page of the AI SDK are told of turns."""
    return [
        [json.loads(line.removeprefix(b"data: ")) async for line in lines_of_turns(engine, turns.chat.id, turns, one)]
        for one in (AGUIEncoder("t", "r"), AISDKEncoder())
    ]


@pytest.mark.parametrize("stopped", [True, False], ids=["interrupted", "failed"])
async def test_unanswered_message_ends_as_its_chat(*, stopped: bool) -> None:
    """It waits in the queue of a chat that goes on only when somebody says so: that is no success."""
    model = GatedModel(Reply("Half", error=ModelError("auth")))
    async with Engine("sqlite://", model=model) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "One")
        waiting = await engine.send_message(chat.id, "Two")
        if stopped:
            await engine.interrupt(chat.id)
        model.gate.set()
        chat = await engine.wait(chat.id, timeout=60)
        run, page = await both_of(engine, turns_of([waiting]))
    assert (chat.state, chat.queued) == ("interrupted" if stopped else "error", 1)
    if stopped:
        assert [one.get("outcome") for one in run] == [{"type": "cancelled"}]
    else:
        assert [(one["type"], one["code"]) for one in run] == [("RUN_ERROR", "auth")]
    assert [one["type"] for one in page] == ["start", "abort" if stopped else "error"]


async def test_message_behind_open_calls_is_an_error() -> None:
    """The calls are not told with it: their page would be told them twice, and another run a client's tool again."""
    model = GatedModel(Reply(calls=[Call("ask_user", {})]))
    async with Engine("sqlite://", model=model) as engine:
        chat = await engine.create_chat(client_tools=[ClientTool("ask_user", "Ask the user.", {"type": "object"})])
        await engine.send_message(chat.id, "One")
        model.gate.set()
        await engine.wait(chat.id, timeout=60)
        waiting = await engine.send_message(chat.id, "Two")
        model.gate.set()
        chat = await engine.wait(chat.id, timeout=60)
        run, page = await both_of(engine, turns_of([waiting]))
    assert (chat.state, chat.queued) == ("requires_action", 1)
    assert [(one["type"], one["code"]) for one in run] == [("RUN_ERROR", "message-queued")]
    assert page == [{"type": "start"}, {"type": "error", "errorText": run[0]["message"]}]
    assert "open calls have to be answered first" in run[0]["message"]


@pytest.mark.parametrize("way", ["deleted", "cut while it waits", "cut in its turn"])
async def test_removed_message_is_an_error(way: str) -> None:
    """An answer to another question is none to it, and nothing at all is no success."""
    model = GatedModel("The answer.")
    async with Engine("sqlite://", model=model) as engine:
        chat = await engine.create_chat()
        one = await engine.send_message(chat.id, "One")
        mine = one if way == "cut in its turn" else await engine.send_message(chat.id, "Mine")
        if way == "deleted":
            await engine.delete_queued(chat.id, mine.message_id)
        else:
            await engine.edit_message(chat.id, one.message_id, "Another")
        model.gate.set()
        chat = await engine.wait(chat.id, timeout=60)
        (ended_run,), (start, ended_page) = await both_of(engine, turns_of([mine]))
    assert (chat.state, chat.stop_reason) == ("waiting", "end_turn")
    assert (ended_run["type"], ended_run["code"]) == ("RUN_ERROR", "message-removed")
    assert (start["type"], ended_page) == ("start", {"type": "error", "errorText": ended_run["message"]})
    assert "taken out of the queue, or cut away" in ended_run["message"]


@pytest.mark.parametrize("later", ["alone", "before another", "under way"])
async def test_resumed_turn_streams_to_its_last_end(later: str) -> None:
    """A key expired, was renewed, and the turn went on: a page that is opened then is not told that it failed."""
    script = iter([Reply(error=ModelError("auth")), "Paris.", "Rome."])
    model, recorder = GatedModel(lambda _: next(script)), Recorder()
    model.gate.set()
    async with Engine("sqlite://", model=model) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "France?", timeout=60)
        if later == "under way":
            model.gate = anyio.Event()
        chat = await engine.resume(chat.id)
        if later != "under way":
            chat = await engine.wait(chat.id, timeout=60)
        if later == "before another":
            chat = (await engine.ask(chat.id, "Italy?", timeout=60)).chat
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_listen, engine, Turns(0, chat=chat), recorder)
            await recorder.began.wait()
            await anyio.wait_all_tasks_blocked()
            model.gate.set()
    texts = [event.message.text for event in recorder.events if isinstance(event, MessageEvent)]
    ends = [event.stop_reason for event in recorder.events if isinstance(event, TurnFinishedEvent)]
    assert (texts, ends) == (["France?", "Paris."], ["error", "end_turn"])


async def _listen(engine: Engine, turns: Turns, recorder: Recorder) -> None:
    async for _ in lines_of_turns(engine, turns.chat.id, turns, recorder):
        pass


async def test_deleted_chat_ends_the_stream() -> None:
    async with Engine("sqlite://", model=ScriptedModel("Hello.")) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "Hi!")
        await engine.delete_chat(chat.id)
        (ended_run,), (start, ended_page) = await both_of(engine, Turns(0, chat=chat))
    assert (ended_run["type"], ended_run["code"]) == ("RUN_ERROR", "chat-deleted")
    assert "was deleted at" in ended_run["message"]
    assert (start, ended_page) == ({"type": "start"}, {"type": "error", "errorText": ended_run["message"]})
