"""The lifetime of a model: who made it closes it."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import pytest

from turnwise import Agent, Engine, ProviderDefinition, Settings, SettingsError, tool
from turnwise.engine.agents import models
from turnwise.providers.cannot_ask import CannotAsk
from turnwise.providers.protocol import Model
from turnwise.providers.scripted import ScriptedModel


class Connected(ScriptedModel):
    """A model that tells whether its connections are open."""

    def __init__(self) -> None:
        super().__init__(["hello"])
        self.life: list[str] = []

    async def __aenter__(self) -> Self:
        self.life.append("opened")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.life.append("closed")


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Connected:
    """Return the model that every name stands for."""
    model = Connected()
    monkeypatch.setattr(models, "model_named", lambda name: model)
    return model


async def test_named_model_is_open_while_the_engine_is(named: Connected, open_engine: Any) -> None:
    async with open_engine("some:model") as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hi")).text == "hello"
        assert named.life == ["opened"]
    assert named.life == ["opened", "closed"]


async def test_model_of_a_chat_is_closed_with_the_engine(named: Connected, open_engine: Any) -> None:
    async with open_engine(ScriptedModel([])) as engine:
        await engine.create_chat(model="some:model")
        assert "closed" not in named.life
    assert named.life[-1] == "closed"


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the names of models whose keys there are: none at first. Others of `some:` cannot be asked."""
    there: set[str] = set()

    def model_named(name: str) -> Model:
        if name in there:
            return ScriptedModel([f"{name} says so"], takes_answer_schema="always")
        if name.startswith("some:"):
            raise CannotAsk("model", f"{name!r} needs a key")
        raise SettingsError("model", f"{name!r} is no model")

    monkeypatch.setattr(models, "model_named", model_named)
    return there


def shop() -> list[Agent]:
    """Return agents that check what their model can do."""

    @tool(definition=ProviderDefinition("anthropic", {"type": "computer_20250124", "name": "computer"}))
    async def computer() -> str:
        """Use the screen."""
        return "done"

    judge = Agent("judge", "some:judge", output=dict[str, int], output_mode="native")
    return [Agent("sales", "some:seller", tools=[computer]), judge, Agent("support", "some:helper")]


async def test_engine_without_a_worker_needs_no_keys(keys: set[str], open_engine: Any) -> None:
    """They are for the process that asks: those that face the internet shall have none."""
    async with open_engine(None, agents=shop(), settings=Settings(run_worker=False)) as engine:
        chats = [await engine.create_chat(agent=agent) for agent in ("sales", "judge", "support")]
        chosen = await engine.configure(chats[2].id, model="some:other")
        assert (chosen.model, engine.models) == ("some:other", {"some:judge", "some:seller", "some:helper"})
        with pytest.raises(SettingsError, match="is no model"):
            await engine.configure(chats[2].id, model="smoe:other")
        await engine.send_message(chosen.id, "hi")
        keys.update(("some:judge", "some:helper", "some:other"))
        async with open_engine(None, agents=shop()[1:]):
            assert (await engine.wait(chosen.id)).state == "waiting"
        assert (await engine.messages(chosen.id))[-1].text == "some:other says so"


@pytest.mark.parametrize(("model", "run_worker"), [("some:model", True), ("smoe:model", False)])
def test_missing_key_or_unknown_model_is_refused(keys: set[str], model: str, *, run_worker: bool) -> None:
    assert not keys
    with pytest.raises(SettingsError, match="needs a key" if run_worker else "is no model"):
        Engine("sqlite://", model=model, settings=Settings(run_worker=run_worker))


async def test_engine_lists_the_models_of_its_agents(named: Connected) -> None:
    agents = [Agent("support", "some:model"), Agent("sales"), Agent("research", ScriptedModel([]))]
    async with Engine("sqlite://", model="other:model", agents=agents) as engine:
        await engine.create_chat(agent="support", model="third:model")
        assert engine.models == {"some:model", "other:model"}
    assert Engine("sqlite://", model=named).models == set()
