"""Checked by mypy and pyright and never run: users' code type-checks, and each mistake below is found."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, assert_type

from turnwise import (
    Agent,
    Chat,
    ChatState,
    ClientTool,
    Engine,
    Message,
    Model,
    ModelPart,
    ModelReply,
    ModelRequest,
    Page,
    SendReceipt,
    Settings,
    SubmissionReceipt,
    TextPart,
    Tool,
    ToolContext,
    ToolResult,
    Transcript,
    TurnResult,
    Verdict,
    fold,
    tool,
    verify_export,
)
from turnwise.providers.demo import DemoModel
from turnwise.providers.scripted import ScriptedModel
from turnwise.testing import ManualClock


@tool
async def bare(path: str) -> str:
    """Read a file."""
    return path


@tool(parallel_safe=True, crash="at_least_once")
def declared(path: str, context: ToolContext) -> str:
    """Read a file."""
    return path + assert_type(context.idempotency_key, str)


assert_type(bare, Tool)
assert_type(declared, Tool)


@dataclass
class Deps:
    """What the tools of an agent need."""

    customer: str


@dataclass
class Resolution:
    """What an agent's answer is."""

    refunded: bool


@tool
async def uses(ctx: ToolContext[Deps]) -> str:
    """Use the deps."""
    assert_type(ctx.chat, Chat)
    return assert_type(ctx.deps.customer, str)


@asynccontextmanager
async def open_deps(chat: Chat) -> AsyncGenerator[Deps]:
    """Open the deps of a chat."""
    yield Deps(chat.owner or "")


support: Agent[Deps, Resolution] = Agent("support", "demo", tools=[uses], output=Resolution)
plain = Agent("plain", system=lambda chat: chat.agent)
inferred = Agent("inferred", "demo", output=Resolution, output_mode="tool")
assert_type(inferred, Agent[Any, Resolution])


async def use_agents() -> None:
    """Run several agents."""
    async with Engine("sqlite://", model="demo", agents=[support, plain], deps=open_deps) as engine:
        chat = await engine.create_chat(agent="support", parameters={"temperature": 0.5}, active_tools=["uses"])
        result = await engine.ask(chat.id, "Hi.", agent=support)
        assert_type(result, TurnResult[Resolution])
        assert_type(result.output, Resolution | None)
        assert_type((await engine.ask(chat.id, "Hi.", agent=inferred)).output, Resolution | None)
        assert_type(await engine.configure(chat.id, agent="plain", model=None), Chat)
        earlier = await engine.messages(chat.id)
        assert_type(await engine.create_chat(history=[*earlier, {"role": "user", "content": "Hi."}]), Chat)


class Own:
    """A model, without inheriting from anything."""

    name = "own"
    provider = "example"
    context_limit: int | None = None

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Say how many messages there are."""
        yield ModelPart("text_delta", text=str(len(request.messages)))
        yield ModelPart("finish", stop_reason="end_turn")

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Say the same."""
        parts = (TextPart(text=request.chat_id),)
        return ModelReply(parts=parts, finish=ModelPart("finish", stop_reason="end_turn"))


own: Model = Own()
scripted: Model = ScriptedModel(["Hello."])
demo: Model = DemoModel()


async def use() -> None:
    """Use an engine as a service does."""
    async with Engine("sqlite://", model=own, tools=[bare, declared], clock=ManualClock()) as engine:
        assert_type(engine, Engine)
        chat = await engine.create_chat(client_tools=[ClientTool("ask", "Ask.", {"type": "object"}, deadline=3.5)])
        assert_type(chat, Chat)
        assert_type(chat.state, ChatState)
        assert_type(await engine.list_chats(state="waiting"), Page[Chat])
        assert_type(await engine.send_message(chat.id, "Hi.", when_busy="interrupt"), SendReceipt)
        assert_type(await engine.send_message(chat.id, [TextPart(text="Hi.")]), SendReceipt)
        assert_type(await engine.ask(chat.id, "Hi."), TurnResult)
        assert_type(await engine.submit_tool_results(chat.id, [ToolResult("c1", {"any": ["json"]})]), SubmissionReceipt)
        assert_type(await engine.messages(chat.id, view="model"), list[Message])
        assert_type(await engine.wait(chat.id, until=["waiting", ChatState.error], timeout=1), Chat)
        assert_type(await engine.verify(chat.id), Verdict)
        assert_type(verify_export(await engine.export_audit(chat.id)), Verdict)

        async for event in engine.events(chat.id):
            assert_type(fold([event]), Transcript)
            if event.kind == "part":
                assert_type(event.part.delta, str | None)
            elif event.kind == "message":
                assert_type(event.message, Message)
            elif event.kind == "status":
                assert_type(event.state, ChatState)


async def mistakes(engine: Engine) -> None:
    """Each line is wrong. mypy reports an unused ignore if it misses one; pyright honours none."""
    Settings(max_step=50)  # type: ignore[call-arg]
    Settings(durability="some")  # type: ignore[arg-type]
    await engine.send_message("c", "Hi.", when_busy="wait")  # type: ignore[arg-type]
    await engine.send_message("c", 42)  # type: ignore[arg-type]
    await engine.messages("c", view="all")  # type: ignore[arg-type]
    await engine.create_chat(prompt="You are terse.")  # type: ignore[call-arg]
    Engine("sqlite://", model=object())  # type: ignore[arg-type]
    tool(crash="never")  # type: ignore[call-overload]
    await engine.configure("c", agent=None)  # type: ignore[arg-type]
    (await engine.get_chat("c")).state = ChatState.error  # type: ignore[misc] # what is returned is frozen
    Agent("a", output=int, output_mode="text")  # type: ignore[arg-type]
    await engine.create_chat(history="Hi.")  # type: ignore[arg-type]
    _ = (await engine.ask("c", "Hi.", agent=support)).output.cents  # type: ignore[union-attr]


@tool
async def mistaken(ctx: ToolContext[Deps]) -> str:
    """Read an unknown field of the deps."""
    return str(ctx.deps.owner)  # type: ignore[attr-defined]
