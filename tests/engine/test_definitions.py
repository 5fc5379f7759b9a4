"""Tools that a provider knows itself: how they are declared, which models are offered them, and how calls run."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from support.engines import MakeModel, OpenEngine
from turnwise import (
    Agent,
    CompactionPolicy,
    Engine,
    FilePart,
    InvalidArgument,
    ModelReply,
    ProviderDefinition,
    Settings,
    SettingsError,
    Tool,
    ToolContext,
    ToolOutput,
    tool,
)
from turnwise.providers.protocol import ModelPart
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.digests import digest

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


def test_a_tool_has_the_name_of_its_definition_and_needs_no_description() -> None:
    assert (use.name, use.description, use.spec.definition) == ("computer", "", DEFINITION)
    assert use.schema["required"] == ["action"]
    assert tool(definition=DEFINITION, name="computer", policy="ask")(use.run).policy == "ask"


def test_a_definition_stays_as_it_was_declared() -> None:
    given: dict[str, Any] = {"type": "computer_20250124", "name": "computer", "sizes": {"width": 1}}
    betas = ["b1"]
    definition = ProviderDefinition("anthropic", given, betas)
    given["sizes"]["width"] = 2
    betas.append("b2")
    assert (definition.tool["sizes"], definition.betas) == ({"width": 1}, ("b1",))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"tool": {"name": "computer"}}, r"tool\.type: must be text, as anthropic documents it"),
        ({"tool": {"type": "computer_toolset_20260801"}}, r"tool\.name: must be text"),
        ({"tool": {"type": "computer_20250124", "name": " "}}, r"tool\.name: must be text"),
        ({"tool": {"type": 7, "name": "computer"}}, r"tool\.type: must be text"),
        ({"tool": {}}, r"tool\.type: must be text"),
        ({"tool": None}, "tool: must be"),
        ({"tool": {**SCREEN, "on": object()}}, "tool"),
        ({"tool": {**SCREEN, 7: "x"}}, "must have strings as keys"),
        ({"tool": {**SCREEN, "deep": float("nan")}}, "tool"),
        ({"provider": ""}, "provider"),
        ({"provider": 7}, "provider: must be"),
        ({"betas": "computer-use-2025-01-24"}, "betas: must be"),
        ({"betas": [7]}, r"betas\[0\]: must be"),
    ],
)
def test_a_definition_that_makes_no_sense_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        ProviderDefinition(**{"provider": "anthropic", "tool": SCREEN, **given})


def test_what_would_never_reach_the_model_is_refused() -> None:
    """A description beside a definition would be written for nobody."""
    for given in ({"name": "mouse"}, {"description": "Moves the mouse."}):
        with pytest.raises(
            SettingsError, match=f"tool 'computer': has a definition.*leave out {next(iter(given))}="
        ) as told:
            tool(definition=DEFINITION, **given)(use.run)
        assert "nothing was stored" in str(told.value)
    with pytest.raises(SettingsError, match="tool 'mouse': must be named 'computer'"):
        Tool(name="mouse", description="", schema={"type": "object"}, run=use.run, definition=DEFINITION)
    with pytest.raises(SettingsError, match="needs a name of 1 to 64 letters"):
        tool(definition=ProviderDefinition("anthropic", {**SCREEN, "name": "my computer"}))(use.run)
    with pytest.raises(InvalidArgument, match="definition: must be"):
        tool(definition=SCREEN)(use.run)  # type: ignore[call-overload]
    with pytest.raises(SettingsError, match="'x' has no type hint"):
        tool(definition=DEFINITION)(lambda x: x)


def test_two_tools_of_one_name_are_refused() -> None:
    @tool
    async def computer() -> None:
        """Compute."""

    with pytest.raises(SettingsError, match="two tools are named 'computer'"):
        Engine("sqlite://", model=claude(), tools=[computer, use])


async def test_a_call_runs_like_any_other_and_its_picture_is_the_results(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
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


async def test_a_function_may_take_whatever_the_provider_sends(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    """The provider knows the schema, and it may grow: `**arguments` takes the call as it is."""
    known: list[Any] = []

    @tool(definition=DEFINITION)
    async def anything(context: ToolContext, **arguments: Any) -> str:
        known.append((context.call_id, arguments))
        return "ok"

    given = {"action": "zoom", "region": [0, 0, 9, 9], "scale": "2"}
    async with open_engine(
        strict_model([Reply(calls=[Call("computer", given, id="c1")]), "ok"], provider="anthropic"), tools=[anything]
    ) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "Zoom.")
    assert known == [("c1", given)]


async def test_a_schema_of_ones_own_checks_the_arguments(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    schema = {"type": "object", "properties": {"action": {"enum": ["screenshot"]}}, "required": ["action"]}

    @tool(definition=DEFINITION, schema=schema)
    async def only_looks(**arguments: Any) -> Any:
        return arguments

    calls = [Call("computer", {"action": "type", "text": "rm"}), Call("computer", {"action": "screenshot"})]
    async with open_engine(
        strict_model([Reply(calls=calls), "ok"], provider="anthropic"), tools=[only_looks]
    ) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "Type.")
    refused, done = (message.result for message in result.messages if message.role == "tool")
    assert (refused.is_error, done.output) == (True, {"action": "screenshot"})
    assert 'must satisfy enum: ["screenshot"]' in refused.output


async def test_an_interrupt_and_a_timeout_stop_such_a_call(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    began = anyio.Event()

    @tool(definition=DEFINITION, timeout=0.01)
    async def slow(**arguments: Any) -> None:
        began.set()
        await anyio.sleep_forever()

    screenshot = Reply(calls=[Call("computer", {"action": "screenshot"})])
    async with open_engine(strict_model([screenshot, "late"], provider="anthropic"), tools=[slow]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "Look.")
        assert "outcome is unknown" in next(one.result.output for one in result.messages if one.role == "tool")
    began, endless = anyio.Event(), tool(definition=DEFINITION)(slow.run)
    async with open_engine(strict_model([screenshot], provider="anthropic"), tools=[endless]) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "Look.")
        await began.wait()
        await engine.interrupt(chat.id)
        rested = await engine.wait(chat.id, timeout=30)
        assert (rested.state, rested.settled) == ("interrupted", True)
        history = await engine.messages(chat.id)
    assert [message.result.outcome for message in history if message.role == "tool"] == ["interrupted"]


class Plain:
    """A model of the provider that has never heard of definitions."""

    name, provider, context_limit = "claude-proxy", "anthropic", None

    async def stream(self, request: Any) -> Any:
        yield ModelPart("finish", stop_reason="end_turn")

    async def generate(self, request: Any) -> ModelReply:
        return ModelReply((), ModelPart("finish", stop_reason="end_turn"))


class Choosy(Plain):
    """A model that takes definitions, but not this one."""

    def refuses(self, definition: ProviderDefinition) -> str | None:
        return f"it is too old for {definition.type}"


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("demo", r"model 'demo' of demo cannot be offered it: only models of anthropic can"),
        (ScriptedModel("ok"), r"model 'scripted' of scripted cannot be offered it: only models of anthropic can"),
        (Plain(), r"model 'claude-proxy' of anthropic cannot be offered it: it has no method `refuses`"),
        (Choosy(), r"cannot be offered it: it is too old for computer_20250124"),
    ],
)
def test_a_model_that_cannot_is_refused_by_name_where_it_is_declared(model: Any, why: str) -> None:
    said = rf"agent 'mouse': tool 'computer' is anthropic's own \(computer_20250124\), and {why}"
    with pytest.raises(SettingsError, match=said if "model" in why else f"agent 'mouse': .*{why}"):
        Engine("sqlite://", agents=[Agent("mouse", model, tools=[look, use])])


async def test_a_chat_is_refused_a_model_or_tools_that_do_not_go_together(open_engine: OpenEngine) -> None:
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


async def test_a_chat_whose_model_turns_out_unable_ends_in_error_with_that_sentence(open_engine: OpenEngine) -> None:
    """A deploy adds the tool to the agent of a chat that asks a model of its own: nobody declared the two together."""
    async with open_engine(claude(), tools=[look], settings=Settings(run_worker=False)) as engine:
        chat = await engine.create_chat(model="demo:x")
        await engine.send_message(chat.id, "hi")
    async with open_engine(claude(), tools=[look, use]) as engine:
        failed = await engine.wait(chat.id, timeout=30)
        assert failed.state == "error"
        assert failed.last_error is not None
        assert (failed.last_error.kind, failed.step) == ("bad_request", 1)
        assert "tool 'computer' is anthropic's own (computer_20250124), and model 'x' of demo cannot be offered it" in (
            failed.last_error.message
        )
        await engine.configure(chat.id, model=None, active_tools=["look"])
        await engine.configure(chat.id, model="demo:x")
        assert (await engine.resume(chat.id)).state != "error"
        assert (await engine.wait(chat.id, timeout=30)).state == "waiting"


async def test_nobody_is_refused_for_a_model_or_tools_that_they_have_not_chosen_now(open_engine: OpenEngine) -> None:
    """A deploy adds a tool that a chat's own model cannot be offered, and takes away one that another has active."""
    idle = Settings(run_worker=False)
    async with open_engine(claude(), tools=[look], settings=idle) as engine:
        chats = [await engine.create_chat(model="demo:x"), await engine.create_chat(active_tools=["look"])]
    async with open_engine(claude(), tools=[use], settings=idle) as engine:
        await engine.create_chat(model="demo:x", active_tools=[])  # the model is known here by now
        for chat in chats:
            assert (await engine.configure(chat.id, system="Be brief.")).version == chat.version + 1


async def test_a_summary_by_another_provider_is_asked_without_the_tool(open_engine: OpenEngine) -> None:
    """It calls no tool; refusing it would leave the chat without compactions."""
    writer = ScriptedModel([], summary="We looked.")
    model = claude("I see.", "Still.")
    settings = Settings(compaction=CompactionPolicy(model=writer))
    async with open_engine(model, tools=[look, use], settings=settings) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "Look.")
        await engine.request_compaction(chat.id)
        await engine.wait(chat.id, timeout=30)
        assert [made.summary.splitlines()[-1] for made in await engine.compactions(chat.id)] == ["We looked."]
    assert [[spec.name for spec in request.tools] for request in writer.requests] == [["look"]]
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["look", "computer"]]


async def test_the_log_says_which_definition_was_offered(open_engine: OpenEngine) -> None:
    model = claude("ok")
    async with open_engine(model, tools=[use, look]) as engine:
        chat = await engine.create_chat()
        answer = (await engine.ask(chat.id, "hi")).messages[-1]
    spec = model.requests[0].tools[0]
    ordinary = [["computer", "", dict(spec.schema)], ["look", "Look.", look.schema]]
    own = ["anthropic", SCREEN, ["computer-use-2025-01-24"]]
    assert answer.tools_digest == digest([[*ordinary[0], *own], ordinary[1]])


async def test_only_active_definitions_are_offered_and_run(open_engine: OpenEngine) -> None:
    model = claude(Reply(calls=[Call("computer", {"action": "screenshot"})]), "ok")
    async with open_engine(model, tools=[use, look], settings=Settings(active_tools=["look"])) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "Look.")
    assert [spec.name for spec in model.requests[0].tools] == ["look"]
    assert result.messages[2].result.output == "There is no tool named 'computer'. Tools: look."


async def test_what_a_model_does_to_a_definition_changes_no_other_request(open_engine: OpenEngine) -> None:
    def spoil(request: Any) -> str:
        request.tools[0].definition.tool["name"] = "spoilt"
        return "ok"

    model = claude(spoil, spoil)
    async with open_engine(model, tools=[use]) as engine:
        chat = await engine.create_chat()
        first = (await engine.ask(chat.id, "hi")).messages[-1]
        second = (await engine.ask(chat.id, "hi")).messages[-1]
    assert first.tools_digest == second.tools_digest
    assert DEFINITION.tool["name"] == "computer"
