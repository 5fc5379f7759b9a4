"""Long chats: a request works only on what is new in it, and says exactly what it would say without that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from support.wire.dialects import DIALECTS, Connect, Dialect, Said
from support.wire.server import Answer, Server
from turnwise import ChatState, Engine, LoopState, tool
from turnwise.providers.per_message import PerMessage
from turnwise.providers.protocol import ModelPart, ModelReply, ModelRequest
from turnwise.providers.pydantic_ai import PydanticAIModel
from turnwise.states.messages import Message

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


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
        """Ask the model."""
        self.requests.append(request)
        return await self.model.generate(request)


@tool
async def look(path: str) -> dict[str, str]:
    """Look at a file."""
    return {"seen": path}


def _remind(state: LoopState) -> Sequence[str]:
    return [f"step {state.step}"]


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count: the id of each message, whenever something is worked out of it."""
    ids: list[str] = []
    original = PerMessage.__init__

    def counting(self: PerMessage[object], work: Callable[[Message], object]) -> None:
        def counted(message: Message) -> object:
            ids.append(message.id)
            return work(message)

        original(self, counted)

    monkeypatch.setattr(PerMessage, "__init__", counting)
    return ids


@each_dialect
async def test_a_request_works_only_on_the_messages_that_are_new_in_it(
    dialect: Dialect, server: Server, connect: Connect, worked: list[str]
) -> None:
    """However long the chat is: each message is checked once and converted once."""
    calling = Answer(dialect.frames(Said("I look.", calls=[("call_1", "look", '{"path": "a"}')])))
    server.script = [answer for _ in range(12) for answer in (calling, Answer(dialect.frames(Said("Seen."))))]
    counts: list[int] = []
    async with Engine("sqlite://", model=await connect(dialect), tools=[look], reminders=[_remind]) as engine:
        chat = await engine.create_chat()
        for number in range(12):
            worked.clear()
            assert (await engine.ask(chat.id, f"Look, {number}.")).text == "Seen."
            counts.append(len(worked))

    first, *later = counts
    reminders = 2
    assert first == 2 * len(["question", "call", "result"]) + reminders
    assert later == [2 * len(["last answer", "question", "call", "result"]) + reminders] * 11


@each_dialect
async def test_a_request_says_what_a_fresh_adapter_would_say_after_every_kind_of_change(
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
