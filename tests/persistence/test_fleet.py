"""Figures of all chats for alerts, and the list of workers, on both stores."""

from datetime import UTC, datetime

import anyio
import pytest
from prometheus_client import CollectorRegistry

from support.gated_model import GatedModel
from turnwise import Agent, ClientTool, Engine, Observer, Settings, tool
from turnwise.engine.config.results import WorkerInfo
from turnwise.engine.observers.observer import ChatFigures
from turnwise.engine.observers.prometheus import PrometheusObserver
from turnwise.persistence.fleet import WorkerReport
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.scripted import Call, Reply
from turnwise.states.errors import ChatNotFound, QueueFull
from turnwise.states.names import ChatState
from turnwise.testing import ManualClock

BOTH = pytest.mark.parametrize("either_url", ["sqlite", "postgres"], indirect=True)
IDLE = Settings(run_worker=False)


@tool(policy="ask")
async def refund(cents: int) -> str:
    """Pay back."""
    return "paid"


REPORT = WorkerReport(started_at=datetime(2026, 1, 1, tzinfo=UTC), agents={}, max_running=1, lease=30)
PICK = ClientTool("pick", "Pick a date.", {"type": "object"})


def answer(request: ModelRequest) -> Reply:
    asked = request.messages[-1].text
    names = {"refund": Call("refund", {"cents": 5}), "pick": Call("pick", {})}
    return Reply(calls=[names[asked]]) if asked in names else Reply("Done.")


class Measures(Observer):
    """An observer that stores its measures."""

    def __init__(self) -> None:
        self.figures: list[ChatFigures] = []
        self.came = anyio.Event()
        self.refusals: list[tuple[str, type]] = []

    def measured(self, figures: ChatFigures) -> None:
        self.figures.append(figures)
        self.came.set()

    def refused(self, command: str, error: Exception) -> None:
        self.refusals.append((command, type(error)))


async def reported(engine: Engine) -> WorkerInfo:
    """Return the store's worker, once it has reported."""
    with anyio.fail_after(120):
        while not (found := await engine.workers()) or found[0].seen_at is None:  # noqa: ASYNC110 - no event
            await anyio.sleep(0.01)
    return found[0]


@BOTH
async def test_figures_of_all_chats_are_measured(either_url: str) -> None:
    """Chats by state, and the longest waiting and working times, grouped by the party that must act."""
    clock, gate = ManualClock(), anyio.Event()
    gate.set()
    model = GatedModel(answer, gate)
    async with Engine(either_url, model=model, tools=[refund], clock=clock) as engine:
        chats = [await engine.create_chat(client_tools=[PICK]) for _ in range(5)]
        for chat, text in zip(chats, ("refund", "pick", "hello", "hello"), strict=False):
            await engine.ask(chat.id, text)
        await engine.archive(chats[3].id)
        await engine.create_chat()
        clock.step(100)
        model.gate = anyio.Event()
        await engine.send_message(chats[4].id, "hello")
        await engine.wait(chats[4].id, until=[ChatState.streaming])
        clock.step(20)
        watching = Measures()
        async with Engine(either_url, model=model, observers=[watching], clock=clock):
            await watching.came.wait()
        model.gate.set()
    figures = watching.figures[0]
    states = {state: count for state, count in figures.states.items() if count}
    assert states == {"requires_action": 2, "waiting": 2, "streaming": 1}
    assert figures.archived == 1
    assert {name: round(seconds) for name, seconds in figures.oldest_actions.items()} == {
        "operator": 120,
        "client": 120,
    }
    assert {name: round(seconds) for name, seconds in figures.oldest_work.items()} == {"streaming": 20}


async def test_refusals_are_counted() -> None:
    registry = CollectorRegistry()
    watching, gate = Measures(), anyio.Event()
    settings = Settings(queue_limit=1)
    observers = [watching, PrometheusObserver(registry)]
    async with Engine("sqlite://", model=GatedModel("Done.", gate), settings=settings, observers=observers) as engine:
        chat = await engine.create_chat(message="hello")
        await engine.wait(chat.id, until=[ChatState.streaming])
        await engine.send_message(chat.id, "more")
        with pytest.raises(QueueFull):
            await engine.ask(chat.id, "too much")
        with pytest.raises(ChatNotFound):
            await engine.acting("jane").get_chat("nothing")
        gate.set()
    assert watching.refusals == [("ask", QueueFull), ("get_chat", ChatNotFound)]
    labels = {"command": "ask", "error": "queue_full"}
    assert registry.get_sample_value("turnwise_refusals_total", labels) == 1


@BOTH
async def test_workers_are_listed_with_what_they_hold(either_url: str) -> None:
    """Stopped workers leave the list; a worker without reports is not alive."""
    clock = ManualClock()
    model, agents = GatedModel("Done."), [Agent("sales"), Agent("support", tools=[refund])]
    async with Engine(either_url, model=model, agents=agents, settings=IDLE, clock=clock) as outside:
        async with Engine(either_url, model=model, agents=agents, clock=clock) as engine:
            chat = await engine.create_chat(agent="support", owner="ada", message="hello")
            await engine.wait(chat.id, until=[ChatState.streaming])
            worker = await reported(outside)
            assert (worker.is_alive, worker.max_running) == (True, 100)
            assert {"sales": (), "support": ("refund",)}.items() <= worker.agents.items()
            (held,) = worker.chats
            assert (held.chat_id, held.state, held.agent, held.owner) == (chat.id, "streaming", "support", "ada")
            assert held.worker == worker.name
            model.gate.set()
            await engine.wait(chat.id)
            assert [one.chats for one in await outside.workers()] == [[]]
        assert await outside.workers() == []


async def test_worker_that_reports_no_more_is_not_alive(tmp_path: object) -> None:
    clock = ManualClock()
    async with Engine(f"sqlite:///{tmp_path}/chats.db", model=GatedModel("Done."), clock=clock) as engine:
        assert (await reported(engine)).is_alive
        clock.step(200)
        assert not (await engine.workers())[0].is_alive
        clock.step(86_100)
        await engine._store.report_worker("later", REPORT)
        assert len(await engine.workers()) == 2
        clock.step(101)
        await engine._store.report_worker("later", REPORT)
        assert [one.name for one in await engine.workers()] == ["later"]
