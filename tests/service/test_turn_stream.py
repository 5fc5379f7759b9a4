"""A turn for pages that cannot retract: parts of a lost worker are held back until their fate is known."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from support.gated_model import GatedModel
from support.served import GENEROUS, Served, served
from turnwise import Agent, Chat, ClientTool, Engine, ModelError, Settings
from turnwise.engine.agents import models
from turnwise.engine.commands.handlers import Handlers
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.demo import DemoModel
from turnwise.providers.protocol import Model
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.service import AGUIEncoder, AISDKEncoder
from turnwise.service.routes.threads import to_turn_range
from turnwise.service.routes.turn_stream import TurnRange, stream_turns
from turnwise.states.events import AttemptDiscardedEvent, Event, MessageEvent, StatusEvent, TurnFinishedEvent
from turnwise.states.names import ChatState
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.plans import part


class Recorder:
    """An encoder that records its input."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ends: list[str | None] = []
        self.started = anyio.Event()

    def encode(self, event: Event) -> Iterator[dict[str, Any]]:
        self.events.append(event)
        self.started.set()
        yield {"seq": event.seq}

    def end(self, *, cut: str | None = None) -> Iterator[dict[str, Any]]:
        self.ends.append(cut)
        yield {"end": cut}


async def follow_lost_turn(path: Path, *, hold_back: bool) -> tuple[list[Event], Recorder, list[bytes]]:
    """Follow a turn whose worker is lost in mid-reply; return its events, the encoder's input, and the lines."""
    store = SQLiteStore(path)
    await store.open()
    await plans.created(store, "c", plans.send("Hello!"), plans.claim("lost", lease=0))
    await store.append_events("c", 1, ChatState.streaming, [part("Half an ans")])
    await store.close()
    recorder, lines = Recorder(), []
    reader = Engine(f"sqlite:///{path}", model=ScriptedModel(()), settings=Settings(run_worker=False))
    async with reader, anyio.create_task_group() as tasks:

        async def follow() -> None:
            stream = stream_turns(reader, "c", TurnRange(0), recorder, last=b"last", hold_back=hold_back)
            lines.extend([line async for line in stream])

        tasks.start_soon(follow)
        await recorder.started.wait()
        async with Engine(f"sqlite:///{path}", model=ScriptedModel("A whole answer.")) as worker:
            await worker.wait("c", timeout=60)
        stored = [event async for event in reader.events("c", follow=False)]
    return stored, recorder, lines


async def test_words_of_a_lost_worker_are_withheld(tmp_path: Path) -> None:
    stored, recorder, lines = await follow_lost_turn(tmp_path / "chats.db", hold_back=True)
    (discarded,) = (event for event in stored if isinstance(event, AttemptDiscardedEvent))
    lost = [event for event in stored if event.kind == "part" and event.seq < discarded.seq]
    between = [event for event in stored if isinstance(event, StatusEvent) and lost[0].seq < event.seq < discarded.seq]
    assert (len(lost), [event.state for event in between]) == (1, ["pending"])
    assert [event.seq for event in recorder.events] == [event.seq for event in stored if event not in lost]
    assert recorder.ends == [None]
    assert lines[-2:] == [b'data: {"end": null}\n\n', b"last"]


async def both_of(engine: Engine, turns: TurnRange) -> list[list[dict[str, Any]]]:
    """Return an AG-UI run's and an AI SDK page's output of the turns."""
    return [
        [json.loads(line.removeprefix(b"data: ")) async for line in stream_turns(engine, turns.chat.id, turns, one)]
        for one in (AGUIEncoder("t", "r"), AISDKEncoder())
    ]


@pytest.mark.parametrize("stopped", [True, False], ids=["interrupted", "failed"])
async def test_unanswered_message_ends_as_its_chat(*, stopped: bool) -> None:
    """A message in the queue of a halted chat is no success."""
    model = GatedModel(Reply("Half", error=ModelError("auth")))
    async with Engine("sqlite://", model=model) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "One")
        waiting = await engine.send_message(chat.id, "Two")
        if stopped:
            await engine.interrupt(chat.id)
        model.gate.set()
        chat = await engine.wait(chat.id, timeout=60)
        run, page = await both_of(engine, to_turn_range([waiting]))
    assert (chat.state, chat.queued) == ("interrupted" if stopped else "error", 1)
    if stopped:
        assert [one.get("outcome") for one in run] == [{"type": "cancelled"}]
    else:
        assert [(one["type"], one["code"]) for one in run] == [("RUN_ERROR", "auth")]
    assert [one["type"] for one in page] == ["start", "abort" if stopped else "error"]


async def test_message_behind_open_calls_is_an_error() -> None:
    """The stream omits the calls: its page would see them twice, and another run would repeat a client's tool."""
    model = GatedModel(Reply(calls=[Call("ask_user", {})]))
    async with Engine("sqlite://", model=model) as engine:
        chat = await engine.create_chat(client_tools=[ClientTool("ask_user", "Ask the user.", {"type": "object"})])
        await engine.send_message(chat.id, "One")
        model.gate.set()
        await engine.wait(chat.id, timeout=60)
        waiting = await engine.send_message(chat.id, "Two")
        model.gate.set()
        chat = await engine.wait(chat.id, timeout=60)
        run, page = await both_of(engine, to_turn_range([waiting]))
    assert (chat.state, chat.queued) == ("requires_action", 1)
    assert [(one["type"], one["code"]) for one in run] == [("RUN_ERROR", "message-queued")]
    assert page == [{"type": "start"}, {"type": "error", "errorText": run[0]["message"]}]
    assert "open calls have to be answered first" in run[0]["message"]


@pytest.mark.parametrize("way", ["deleted", "cut while it waits", "cut in its turn"])
async def test_removed_message_is_an_error(way: str) -> None:
    """An answer to another question is none, and an empty answer is no success."""
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
        (ended_run,), (start, ended_page) = await both_of(engine, to_turn_range([mine]))
    assert (chat.state, chat.stop_reason) == ("waiting", "end_turn")
    assert (ended_run["type"], ended_run["code"]) == ("RUN_ERROR", "message-removed")
    assert (start["type"], ended_page) == ("start", {"type": "error", "errorText": ended_run["message"]})
    assert "taken out of the queue, or cut away" in ended_run["message"]


@pytest.mark.parametrize("later", ["alone", "before another", "under way"])
async def test_resumed_turn_streams_to_its_last_end(later: str) -> None:
    """A key expired and was renewed, and the turn continued: a page that opens then sees no failure."""
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
            tasks.start_soon(_listen, engine, TurnRange(0, chat=chat), recorder)
            await recorder.started.wait()
            await anyio.wait_all_tasks_blocked()
            model.gate.set()
    texts = [event.message.text for event in recorder.events if isinstance(event, MessageEvent)]
    ends = [event.stop_reason for event in recorder.events if isinstance(event, TurnFinishedEvent)]
    assert (texts, ends) == (["France?", "Paris."], ["error", "end_turn"])


async def _listen(engine: Engine, turns: TurnRange, recorder: Recorder) -> None:
    async for _ in stream_turns(engine, turns.chat.id, turns, recorder):
        pass


async def test_deleted_chat_ends_the_stream() -> None:
    async with Engine("sqlite://", model=ScriptedModel("Hello.")) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "Hi!")
        await engine.delete_chat(chat.id)
        (ended_run,), (start, ended_page) = await both_of(engine, TurnRange(0, chat=chat))
    assert (ended_run["type"], ended_run["code"]) == ("RUN_ERROR", "chat-deleted")
    assert "was deleted at" in ended_run["message"]
    assert (start, ended_page) == ({"type": "start"}, {"type": "error", "errorText": ended_run["message"]})


# Choices


THIEF = "openai:any@http://127.0.0.1:9/v1"
"""A model at an attacker's address, which would get the service's key."""
HEADERS = {"provider_options": {"extra_headers": {"Authorization": "Bearer mine"}}}
IDLE = Settings(run_worker=False)


@pytest.fixture
def model_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of created models; each of them is the demo model."""
    names: list[str] = []

    def model_named(name: str) -> Model:
        names.append(name)
        return DemoModel(name)

    monkeypatch.setattr(models, "model_named", model_named)
    return names


async def exported(**chosen: Any) -> str:
    """Return the lines of a chat from an engine that allows any model."""
    async with Engine("sqlite://", agents=[Agent("support", "demo")], settings=IDLE) as engine:
        chat = await engine.create_chat(**chosen)
        return "".join([line async for line in engine.export_chat(chat.id)])


def problem_of(answer: httpx.Response) -> tuple[int, str, str]:
    problem = answer.json()
    return answer.status_code, problem["type"], problem["detail"]


async def everything(service: Served) -> list[Chat]:
    return (await service.engine.list_chats()).items


@pytest.mark.parametrize(("who", "model"), [("ada", THIEF), ("operator", "demo ")])
async def test_undeclared_model_is_refused(model_names: list[str], who: str, model: str) -> None:
    """It is not even created: its name may name an address for the provider's key."""
    engine = Engine("sqlite://", agents=[Agent("support", "demo"), Agent("sales", "openai:gpt-5")], settings=IDLE)
    settings = replace(GENEROUS, models=["demo:mine"])
    async with served(engine, settings=settings) as service, service.client(who) as client:
        chat = (await client.post("/chats", json={"agent": "support"})).json()
        before = await everything(service)
        answers = [
            await client.post("/chats", json={"agent": "support", "model": model}),
            await client.post(f"/chats/{chat['id']}/configure", json={"model": model}),
            await client.post(f"/chats/{chat['id']}/configure", json={"agent": "sales", "model": model}),
        ]
        after = await everything(service)
    wanted = "must be one of 'demo', 'demo:mine', 'openai:gpt-5', or left out"
    detail = f"model: {wanted}; it was {model!r}; nothing was stored"
    assert {problem_of(answer) for answer in answers} == {(400, "urn:turnwise:problem:settings-error", detail)}
    assert after == before
    assert sorted(model_names) == ["demo", "openai:gpt-5"]


async def test_declared_models_are_accepted(model_names: list[str]) -> None:
    agents = [Agent("support", "openai:gpt-5"), Agent("sales")]
    engine = Engine("sqlite://", model="demo", agents=agents, settings=IDLE)
    async with served(engine, settings=replace(GENEROUS, models=[THIEF])) as service, service.client() as ada:
        for model in ("demo", "openai:gpt-5", THIEF):
            created = await ada.post("/chats", json={"agent": "sales", "model": model})
            assert (created.status_code, created.json()["model"]) == (201, model)
            path = f"/chats/{created.json()['id']}/configure"
            own = await ada.post(path, json={"model": None})
            again = await ada.post(path, json={"model": model})
            assert [own.json()["model"], again.json()["model"]] == [None, model]


@pytest.mark.parametrize(
    ("who", "parameters"), [("ada", {"provider_options": None}), ("operator", {"temperature": 1, **HEADERS})]
)
async def test_provider_options_are_refused(demo: Served, who: str, parameters: dict[str, Any]) -> None:
    """Options could replace the key, the prompt and the model; `None` would remove the agent's."""
    async with demo.client(who) as client:
        chat = (await client.post("/chats", json={"parameters": {"temperature": 1}})).json()
        answers = [
            await client.post("/chats", json={"parameters": parameters}),
            await client.post(f"/chats/{chat['id']}/configure", json={"parameters": parameters}),
        ]
    detail = (
        "parameters['provider_options']: must be left out: only the service's own agents have options there; "
        "nothing was stored"
    )
    assert {problem_of(answer) for answer in answers} == {(400, "urn:turnwise:problem:settings-error", detail)}
    assert [(one.id, one.parameters) for one in await everything(demo)] == [(chat["id"], {"temperature": 1})]


@pytest.mark.parametrize("chosen", [{"model": "demo:other"}, {"parameters": {"provider_options": {"seed": 1}}}])
async def test_imported_chat_obeys_the_same_choices(chosen: dict[str, Any]) -> None:
    lines, plain = await exported(**chosen), await exported(model="demo", parameters={"top_k": 1})
    engine = Engine("sqlite://", agents=[Agent("support", "demo")], settings=IDLE)
    async with served(engine) as service, service.client("operator") as operator:
        refused = await operator.post("/chats/import", content=lines)
        assert problem_of(refused)[:2] == (400, "urn:turnwise:problem:settings-error")
        assert await everything(service) == []
        taken = await operator.post("/chats/import", content=plain)
        assert (taken.status_code, taken.json()["model"]) == (201, "demo")


def search(query: str) -> str:
    """Search the handbook."""
    return query


def refund(order: str) -> str:
    """Pay an order back."""
    return order


CLERK = Agent("clerk", "demo", tools=[search, refund], settings=Settings(active_tools=["search"]))
CASHIER = Agent("cashier", "demo", tools=[refund])
LEFT_OUT = "active_tools: must leave out 'refund', which the agent's own settings leave out; nothing was stored"


def shop(*agents: Agent) -> Engine:
    return Engine("sqlite://", agents=agents or [CLERK, CASHIER], settings=IDLE)


@pytest.mark.parametrize("who", ["ada", "operator"])
async def test_disabled_tool_is_refused(who: str) -> None:
    tools = {"active_tools": ["search", "refund"]}
    async with served(shop()) as service, service.client(who) as client:
        chat = (await client.post("/chats", json={"agent": "clerk"})).json()
        other = (await client.post("/chats", json={"agent": "cashier"})).json()
        before = await everything(service)
        answers = [
            await client.post("/chats", json={"agent": "clerk", **tools}),
            await client.post(f"/chats/{chat['id']}/configure", json=tools),
            await client.post(f"/chats/{chat['id']}/configure", json=tools, headers={"If-Match": '"1"'}),
            await client.post(f"/chats/{other['id']}/configure", json={"agent": "clerk", **tools}),
        ]
        assert await everything(service) == before
    assert {problem_of(answer) for answer in answers} == {(400, "urn:turnwise:problem:settings-error", LEFT_OUT)}


async def test_concurrent_agent_change_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either request alone is accepted; after the other, this one would give the clerk a disabled tool."""
    async with served(shop()) as service, service.client() as ada:
        chat = (await ada.post("/chats", json={"agent": "cashier"})).json()
        configure = Handlers.configure

        async def overtaken(handlers: Handlers, chat_id: str, **changes: Any) -> Chat:
            monkeypatch.setattr(Handlers, "configure", configure)
            await configure(handlers, chat_id, agent="clerk")
            return await configure(handlers, chat_id, **changes)

        monkeypatch.setattr(Handlers, "configure", overtaken)
        refused = await ada.post(f"/chats/{chat['id']}/configure", json={"active_tools": ["refund"]})
        (left,) = await everything(service)
    assert problem_of(refused)[2] == LEFT_OUT
    assert (left.agent, left.active_tools) == ("clerk", None)
