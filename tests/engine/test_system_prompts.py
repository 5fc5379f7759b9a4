"""Which system prompt a chat has, how often one is made, and for how long it is kept."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from msgspec.structs import replace

from support.life import BLANK, NOW
from turnwise import Settings
from turnwise.engine.agents.agent import Agent
from turnwise.engine.agents.agents import Agents
from turnwise.engine.agents.system_prompts import MOST_KEPT, SystemPrompts
from turnwise.engine.results import Chat
from turnwise.engine.user_code import UserCalls
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.facts import Facts

AGENTS = Agents(
    [
        Agent("plain", ScriptedModel([]), system="as it is"),
        Agent("none", ScriptedModel([])),
        Agent("numbers", ScriptedModel([]), system=lambda chat: chat.id),
        Agent("wrong", ScriptedModel([]), system=lambda _chat: 7),  # type: ignore[arg-type, return-value]
    ],
    Settings(),
)


def chat(agent: str, *, chat_id: str = "c", turn: int = 1, system: str | None = None) -> Facts:
    profile = replace(BLANK.profile, agent=agent, system=system)
    return replace(BLANK, chat_id=chat_id, profile=profile, turn=replace(BLANK.turn, number=turn))


class Maker:
    """An agent's function: each prompt that it makes is another."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, chat: Chat) -> str:
        self.asked += 1
        return f"{self.asked}: {chat.id}"


async def prompt_of(prompts: SystemPrompts, facts: Facts, make: Any = None) -> str | None:
    configuration = AGENTS.configuration(facts.profile)
    if make is not None:
        configuration = replace(configuration, system=make)
    return await prompts.prompt_of(facts, configuration, UserCalls(), nullcontext)


@pytest.mark.parametrize(
    ("agent", "own", "prompt"),
    [
        ("plain", None, "as it is"),
        ("plain", "its own", "its own"),
        ("plain", "", ""),
        ("none", None, None),
        ("none", "its own", "its own"),
        ("numbers", "its own", "its own"),
    ],
)
async def test_own_prompt_precedes_the_agents(agent: str, own: str | None, prompt: str | None) -> None:
    prompts = SystemPrompts()
    assert await prompt_of(prompts, chat(agent, system=own)) == prompt
    assert [*prompts] == [], "nothing was made"


async def test_prompt_that_is_not_text_is_refused() -> None:
    prompts = SystemPrompts()
    with pytest.raises(TypeError, match="has to be text; the function returned int"):
        await prompt_of(prompts, chat("wrong"))
    assert [*prompts] == []


async def test_prompt_is_made_once_per_turn_and_agent() -> None:
    prompts, make = SystemPrompts(), Maker()
    for facts, made in (
        (chat("plain"), "1: c"),
        (chat("plain"), "1: c"),
        (chat("plain", turn=2), "2: c"),
        (chat("numbers", turn=2), "3: c"),
        (chat("numbers", turn=2), "3: c"),
        (chat("numbers", chat_id="d", turn=2), "4: d"),
        (chat("numbers", turn=2), "3: c"),
    ):
        assert await prompt_of(prompts, facts, make) == made
    prompts.forget("c")
    prompts.forget("never was")
    assert [*prompts] == ["d"]
    assert await prompt_of(prompts, chat("numbers", turn=2), make) == "5: c"


async def test_prompt_is_made_again_for_a_resumed_turn() -> None:
    """Its client may have stopped it, in whatever process: then nobody has told the worker to forget the first one."""
    prompts, make, begun = SystemPrompts(), Maker(), chat("plain")
    assert await prompt_of(prompts, begun, make) == "1: c"
    resumed = replace(begun, turn=replace(begun.turn, started_at=NOW))
    assert await prompt_of(prompts, resumed, make) == "2: c"
    assert await prompt_of(prompts, resumed, make) == "2: c"


async def test_oldest_prompt_leaves_the_cache() -> None:
    prompts, make = SystemPrompts(), Maker()
    for number in range(MOST_KEPT):
        await prompt_of(prompts, chat("numbers", chat_id=f"c{number}"), make)
    await prompt_of(prompts, chat("numbers", chat_id="c1", turn=2), make)
    assert len([*prompts]) == MOST_KEPT
    await prompt_of(prompts, chat("numbers", chat_id="one more"), make)
    assert len([*prompts]) == MOST_KEPT
    assert ("c0" in prompts, "c1" in prompts, "one more" in prompts) == (False, True, True)
