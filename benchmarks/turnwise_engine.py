"""turnwise: an engine on SQLite, durability full, its events followed to the end of the turn."""

from __future__ import annotations

from collections.abc import AsyncIterator

from workload import CALLS, DELTA, DELTAS, TOOL_ARGUMENTS, TOOL_NAME, USER, Contestant, run_tool

from turnwise import Engine, ModelPart, ModelReply, ModelRequest, Settings, tool
from turnwise.providers.reply_builder import join


@tool
async def lookup(query: str, limit: int, lang: str) -> str:  # noqa: ARG001 - as the model sees it
    """Look something up."""
    return await run_tool()


class FakeModel:
    """Asks for the tool, then answers."""

    name = "fake"
    provider = "fake"
    context_limit = None
    deltas = DELTAS

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Yield a call after a user message, else the text."""
        CALLS["model"] += 1
        if request.messages and request.messages[-1].role == "user":
            yield ModelPart("tool_call", id=f"call-{CALLS['model']}", name=TOOL_NAME, arguments=TOOL_ARGUMENTS)
        else:
            for _ in range(self.deltas):
                yield ModelPart("text_delta", text=DELTA)
        yield ModelPart("finish", stop_reason="end_turn")

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Return the same, whole."""
        return join([part async for part in self.stream(request)])


class Turnwise(Contestant):
    """The engine, embedded."""

    title = "turnwise"
    keeps = "everything shown"
    distributions = ("turnwise",)
    imports = "from turnwise import Engine, tool"

    async def open(self) -> None:
        """Start an engine with a worker in this process."""
        self._model = FakeModel()
        self._engine = Engine(
            f"sqlite:///{self.directory}/chats.db",
            model=self._model,
            tools=[lookup],
            settings=Settings(max_running=500, durability="full"),
        )
        await self._engine.__aenter__()
        self._seen: dict[str, tuple[str, int]] = {}

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.__aexit__(None, None, None)

    async def turn(self, chat: str) -> int:
        """Send the message and follow the chat until the turn is finished."""
        self._model.deltas = self.deltas
        if chat not in self._seen:
            chat_id, cursor = (await self._engine.create_chat(message=USER)).id, 0
        else:
            chat_id, cursor = self._seen[chat]
            await self._engine.send_message(chat_id, USER)
        characters = 0
        async for event in self._engine.events(chat_id, after=cursor):
            if event.kind == "part" and event.part.type == "text":
                characters += len(event.part.delta or "")
            elif event.kind == "turn_finished":
                self._seen[chat] = (chat_id, event.seq)
                break
        return characters

    def chat_id(self, chat: str) -> str:
        """Return the id of a chat that has had a turn."""
        return self._seen[chat][0]

    async def model_alone(self) -> None:
        """Iterate the answer."""
        self._model.deltas = self.deltas
        async for _ in self._model.stream(ModelRequest(purpose="step", chat_id="", messages=[])):
            pass
