"""Long chats: a request works only on what is new in it, and says exactly what it would say without that."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.wire.dialects import DIALECTS, Connect, Dialect, Said

from support.wire.server import Answer, Server
from turnwise import ChatState, Engine, tool
from turnwise.providers.protocol import ModelPart, ModelReply, ModelRequest
from turnwise.providers.pydantic_ai import PydanticAIModel

OTHERS = [pytest.param(dialect, marks=pytest.mark.deep) for dialect in DIALECTS[1:]]


class Overheard:
    """A real model whose requests are kept."""

    def __init__(self, model: PydanticAIModel) -> None:
        self.model = model
        self.name, self.provider, self.context_limit = model.name, model.provider, None
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Ask the model."""
        self.requests.append(request)
        async for part in self.model.stream(request):
            yield part

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Ask the model, and keep no request: only summaries and titles are asked for like this."""
        return await self.model.generate(request)


@tool
async def look(path: str) -> dict[str, str]:
    """Look at a file."""
    return {"seen": path}


@pytest.mark.parametrize("dialect", [DIALECTS[0], *OTHERS], ids=lambda dialect: dialect.name)
async def test_request_equals_that_of_a_new_adapter_after_changes(
    dialect: Dialect, server: Server, connect: Connect
) -> None:
    """Edits, erasure and boundaries change the history under the adapter's feet."""
    calling = Answer(dialect.frames(Said("I look.", calls=[("call_1", "look", '{"path": "a"}')])))
    server.script = [calling, Answer(dialect.frames(Said("Seen.")))]
    model = Overheard(await connect(dialect))
    async with Engine("sqlite://", model=model, tools=[look]) as engine:
        chat = await engine.create_chat(system="Be terse.")
        await engine.ask(chat.id, "The first secret.")
        second = await engine.send_message(chat.id, "The second secret.")
        await engine.wait(chat.id)
        await engine.edit_message(chat.id, second.message_id, "An edited question.")
        await engine.wait(chat.id)
        first = next(message for message in await engine.messages(chat.id) if message.role == "user")
        await engine.erase_message(chat.id, first.id)
        await engine.ask(chat.id, "A third question.")
        edited = len(model.requests)
        await engine.clear_context(chat.id)
        chat_after = (await engine.ask(chat.id, "A fourth question.")).chat
        assert chat_after.state is ChatState.waiting

    said = [asked.body for asked in server.asked]
    assert len(said) == len(model.requests) > edited
    for request, body in zip(model.requests, said, strict=True):
        fresh = await connect(dialect)
        async for _ in fresh.stream(request):
            pass
        assert server.asked[-1].body == body
    told = [str(body) for body in said]
    assert "The second secret." in "".join(told)
    assert "secret" not in told[edited - 1]
    assert "An edited question." in told[edited - 1]
    assert "edited" not in told[-1]
