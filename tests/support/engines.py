"""Engines of tests, their models, and types of the fixtures `open_engine`, `open_chat` and `strict_model`."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from turnwise import Chat, Engine
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.testing.strict import StrictModel

OpenEngine = Callable[..., AbstractAsyncContextManager[Engine]]
"""Opens an engine on the test's database file, or on `store`; further options are the engine's."""

MakeModel = Callable[..., StrictModel]
"""Makes a model that checks every request by a strict provider's rules."""

OpenChat = Callable[..., AbstractAsyncContextManager[tuple[Engine, Chat, Any]]]
"""Opens an engine with a strict model of a script, or with the given model, and a chat; options are those of each."""


@asynccontextmanager
async def engine_with(url: str, *replies: Any, **options: Any) -> AsyncIterator[Engine]:
    """Open an engine with a model of these replies."""
    async with Engine(url, model=ScriptedModel([*replies]), **options) as engine:
        yield engine


def calling(name: str, **arguments: str) -> ScriptedModel:
    """Return a model that calls a tool, and then repeats the result."""

    def answer(request: ModelRequest) -> Reply:
        results = [message.result.output for message in request.messages if message.result is not None]
        return Reply(f"I have {results[0]}") if results else Reply(calls=[Call(name, arguments, id=f"{name}-1")])

    return ScriptedModel(answer)
