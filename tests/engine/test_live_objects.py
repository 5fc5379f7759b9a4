"""Nothing of a chat stays in memory once its engine is closed."""

import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from support.latches import Latch
from turnwise import Agent, ClientTool, CompactionPolicy, Engine, RetryPolicy, Settings, ToolResult, delegate, tool
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.model_errors import ModelError
from turnwise.states.usage import Usage

FULL: Final = Usage(input_tokens=90)
SHOW: Final = ClientTool(name="show", description="Shows.", input_schema={"type": "object", "properties": {}})


@tool
def look(where: dict[str, Any]) -> dict[str, Any]:
    """Look somewhere."""
    return {"seen": [where]}


@tool(policy="ask")
def pay(to: str) -> str:
    """Pay somebody."""
    return to


def calling(name: str, **arguments: Any) -> Reply:
    return Reply(calls=[Call(name, arguments, id="c")])


def failing(request: ModelRequest) -> Reply:
    """Fail with a new error each time: a reraised one retains all frames."""
    return Reply(error=ModelError("authentication", message="no key"))


async def plain(engine: Engine, chat_id: str) -> None:
    await engine.ask(chat_id, "hi")


async def answered(engine: Engine, chat_id: str) -> None:
    await engine.ask(chat_id, "hi")
    await engine.submit_tool_results(chat_id, [ToolResult("c", output=True)])
    await engine.wait(chat_id)


async def helped(engine: Engine, chat_id: str) -> None:
    await engine.send_message(chat_id, "hi")
    await engine.wait(chat_id)


async def interrupted(engine: Engine, chat_id: str) -> None:
    await engine.send_message(chat_id, "hi")
    async for event in engine.events(chat_id):
        if event.kind == "part":
            break
    await engine.interrupt(chat_id)
    await engine.wait(chat_id)


async def edited(engine: Engine, chat_id: str) -> None:
    await engine.ask(chat_id, "hi")
    await engine.edit_message(chat_id, "m1", "rather")
    await engine.wait(chat_id)


TURNS: Final[dict[str, tuple[list[Any], Callable[[Engine, str], Awaitable[None]]]]] = {
    "plain": (["Hello."], plain),
    "tool": ([calling("look", where={"a": [1, {"b": 2}]}), "Seen."], plain),
    "client call": ([calling("show"), "Shown."], answered),
    "approval": ([calling("pay", to="ann"), "Paid."], answered),
    "subagent": ([calling("ask_subagent", task="look"), "Done."], helped),
    "compaction": ([calling("look", where={}), Reply("Seen.", usage=FULL), "On."], plain),
    "interrupt": ([Reply("Hello", chunks=["Hel", "lo"], delay=1)], interrupted),
    "error": ([calling("look", where={}), failing], plain),
    "edit": ([calling("look", where={"a": []}), "Seen.", calling("look", where={}), "Again."], edited),
}


def live() -> Counter[str]:
    """Count live objects of turnwise's types. Values without containers count with their holders."""
    gc.collect()
    kinds = Counter(type(one) for one in gc.get_objects())
    return Counter(
        {kind.__qualname__: count for kind, count in kinds.items() if kind.__module__.startswith("turnwise.")}
    )


async def lived(kind: str, times: int) -> None:
    """Run a number of such turns, each in a new chat."""
    replies, turn = TURNS[kind]
    latch = Latch()
    settings = Settings(retry=RetryPolicy(attempts=1), compaction=CompactionPolicy(context_limit=100))
    model = ScriptedModel(replies * times, sleep=latch.pass_through)
    subagent = Agent("subagent", ScriptedModel(["Looked."] * times))
    agents = [Agent("own", model, tools=[look, pay, delegate(subagent)]), subagent]
    async with Engine("sqlite://", agents=agents, settings=settings) as engine:
        for _ in range(times):
            chat = await engine.create_chat(agent="own", client_tools=[SHOW])
            await turn(engine, chat.id)


@pytest.mark.parametrize("kind", TURNS)
@pytest.mark.parametrize("times", [10, pytest.param(100, marks=pytest.mark.deep)])
async def test_turns_leave_no_object_alive(kind: str, times: int) -> None:
    await lived(kind, 3)
    before = live()
    await lived(kind, times)
    assert live() - before == Counter()
