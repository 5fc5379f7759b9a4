"""What clients choose of the way in which a chat is run is among what the service declares."""

from dataclasses import replace
from typing import Any

import httpx
import pytest

from support.served import GENEROUS, Served, served
from turnwise import Agent, Chat, Engine, Settings
from turnwise.engine.agents import models
from turnwise.providers.demo import DemoModel
from turnwise.providers.protocol import Model

THIEF = "openai:any@http://127.0.0.1:9/v1"
"""A model at an address of the thief's own: whoever asks it sends the key of the service there."""
HEADERS = {"provider_options": {"extra_headers": {"Authorization": "Bearer mine"}}}
IDLE = Settings(run_worker=False)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write down the names of which models are made; each of them is the demo model."""
    names: list[str] = []

    def model_named(name: str) -> Model:
        names.append(name)
        return DemoModel(name)

    monkeypatch.setattr(models, "model_named", model_named)
    return names


async def exported(**chosen: Any) -> str:
    """Return the lines of a chat that was created where anything may be chosen."""
    async with Engine("sqlite://", agents=[Agent("support", "demo")], settings=IDLE) as engine:
        chat = await engine.create_chat(**chosen)
        return "".join([line async for line in engine.export_chat(chat.id)])


def problem_of(answer: httpx.Response) -> tuple[int, str, str]:
    problem = answer.json()
    return answer.status_code, problem["type"], problem["detail"]


async def everything(service: Served) -> list[Chat]:
    return (await service.engine.list_chats()).items


@pytest.mark.parametrize(("who", "model"), [("ada", THIEF), ("operator", "demo ")])
async def test_undeclared_model_is_refused(made: list[str], who: str, model: str) -> None:
    """It is not even made: its name may tell where the provider's key is to be sent."""
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
    assert sorted(made) == ["demo", "openai:gpt-5"]


async def test_declared_models_are_accepted(made: list[str]) -> None:
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
    """It could replace the key, the prompt and the model; `None` would take away what the agent says there."""
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
        configure = service.engine.configure

        async def overtaken(chat_id: str, **changes: Any) -> Chat:
            monkeypatch.setattr(service.engine, "configure", configure)
            await configure(chat_id, agent="clerk")
            return await configure(chat_id, **changes)

        monkeypatch.setattr(service.engine, "configure", overtaken)
        refused = await ada.post(f"/chats/{chat['id']}/configure", json={"active_tools": ["refund"]})
        (left,) = await everything(service)
    assert problem_of(refused)[2] == LEFT_OUT
    assert (left.agent, left.active_tools) == ("clerk", None)
