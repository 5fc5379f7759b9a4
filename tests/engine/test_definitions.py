"""Tools that a provider knows itself: how they are declared, which models are offered them, and how calls run."""

from __future__ import annotations

from typing import Any

import pytest

from support.engines import MakeModel, OpenEngine
from turnwise import (
    Agent,
    Engine,
    FilePart,
    ProviderDefinition,
    Settings,
    SettingsError,
    Tool,
    ToolOutput,
    tool,
)
from turnwise.providers.scripted import Call, Reply, ScriptedModel

SCREEN = {"type": "computer_20250124", "name": "computer", "display_width_px": 1024, "display_height_px": 768}
DEFINITION = ProviderDefinition("anthropic", SCREEN, betas=["computer-use-2025-01-24"])
PICTURE = FilePart(media_type="image/png", data="aGVsbG8=")


@tool(definition=DEFINITION)
async def use(action: str, coordinate: list[int] | None = None) -> ToolOutput:
    return ToolOutput([action, coordinate], (PICTURE,))


@tool
async def look() -> str:
    """Look."""
    return "seen"


def claude(*replies: Any, **options: Any) -> ScriptedModel:
    return ScriptedModel(list(replies), provider="anthropic", name="claude", **options)


def test_tool_has_the_name_of_its_definition() -> None:
    assert (use.name, use.description, use.spec.definition) == ("computer", "", DEFINITION)
    assert use.schema["required"] == ["action"]
    assert tool(definition=DEFINITION, name="computer", policy="ask")(use.run).policy == "ask"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"tool": {"name": "computer"}}, r"tool\.type: must be text, as anthropic documents it"),
        ({"tool": {"type": "computer_toolset_20260801"}}, r"tool\.name: must be text"),
        ({"tool": {**SCREEN, "deep": float("nan")}}, "tool"),
        ({"provider": ""}, "provider"),
        ({"betas": "computer-use-2025-01-24"}, "betas: must be"),
        ({"betas": [7]}, r"betas\[0\]: must be"),
    ],
)
def test_invalid_definition_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        ProviderDefinition(**{"provider": "anthropic", "tool": SCREEN, **given})


def test_definition_excludes_name_and_description() -> None:
    """A description beside a definition would be written for nobody."""
    for given in ({"name": "mouse"}, {"description": "Moves the mouse."}):
        with pytest.raises(SettingsError, match=f"tool 'computer': has a definition.*leave out {next(iter(given))}="):
            tool(definition=DEFINITION, **given)(use.run)
    with pytest.raises(SettingsError, match="tool 'mouse': must be named 'computer'"):
        Tool(name="mouse", description="", schema={"type": "object"}, run=use.run, definition=DEFINITION)
    with pytest.raises(SettingsError, match="needs a name of 1 to 64 letters"):
        tool(definition=ProviderDefinition("anthropic", {**SCREEN, "name": "my computer"}))(use.run)


async def test_defined_tool_runs_with_checked_arguments(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    calls = [Call("computer", {"action": "screenshot", "coordinate": ["1", 2]}), Call("computer", {"coordinate": []})]
    model = strict_model([Reply(calls=calls), "I see."], provider="anthropic")
    async with open_engine(model, tools=[use, look]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "Look.")
    done, wrong = (message.result for message in result.messages if message.role == "tool")
    assert (done.output, done.attachments) == (["screenshot", [1, 2]], (PICTURE,))
    assert wrong.is_error
    assert "Invalid arguments for computer: action: Field required" in wrong.output
    assert [spec.definition for spec in model.requests[0].tools] == [DEFINITION, None]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("demo", r"model 'demo' of demo cannot be offered it: only models of anthropic can"),
        (ScriptedModel("ok"), r"model 'scripted' of scripted cannot be offered it: only models of anthropic can"),
    ],
)
def test_agent_refuses_a_model_that_cannot_take_the_tool(model: Any, why: str) -> None:
    problem = rf"agent 'mouse': tool 'computer' is anthropic's own \(computer_20250124\), and {why}"
    with pytest.raises(SettingsError, match=problem):
        Engine("sqlite://", agents=[Agent("mouse", model, tools=[look, use])])


async def test_chat_refuses_incompatible_model_and_tools(open_engine: OpenEngine) -> None:
    settings = Settings(active_tools=["look"])
    async with open_engine(claude("ok"), tools=[look, use]) as engine:
        chat = await engine.create_chat()
        refused = "this chat: tool 'computer' is anthropic's own.*model 'x' of demo"
        with pytest.raises(SettingsError, match=refused):
            await engine.create_chat(model="demo:x")
        with pytest.raises(SettingsError, match=refused):
            await engine.configure(chat.id, model="demo:x")
        assert await engine.get_chat(chat.id) == chat
        moved = await engine.configure(chat.id, model="demo:x", active_tools=["look"])
        with pytest.raises(SettingsError, match=refused):
            await engine.configure(chat.id, active_tools=["computer"])
        assert await engine.get_chat(chat.id) == moved
        assert (await engine.ask(chat.id, "hi")).stop_reason == "end_turn"
        assert (await engine.configure(chat.id, system="Be brief.")).version > moved.version
    async with open_engine("demo", tools=[look, use], settings=settings) as engine:
        await engine.create_chat()
        with pytest.raises(SettingsError, match="tool 'computer' is anthropic's own"):
            await engine.create_chat(active_tools=["computer"])
        assert len((await engine.list_chats()).items) == 2
