"""pydantic-ai: `Agent` with a `FunctionModel`, its events handled as they come. Nothing is stored."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolReturnPart,
)
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from workload import CALLS, DELTA, TOOL_ARGUMENTS, TOOL_NAME, USER, Contestant, run_tool

_streamed: Counter[str] = Counter()


async def count(context: Any, events: AsyncIterable[Any]) -> None:
    """Count the characters that reach the caller."""
    async for event in events:
        if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            _streamed[context.deps] += len(event.delta.content_delta)
        elif isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
            _streamed[context.deps] += len(event.part.content)


async def lookup(query: str, limit: int, lang: str) -> str:  # noqa: ARG001 - as the model sees it
    """Look something up."""
    return await run_tool()


class PydanticAI(Contestant):
    """An agent; the history is kept by the caller."""

    title = "pydantic-ai (not stored)"
    keeps = "nothing"
    distributions = ("pydantic-ai-slim", "pydantic")
    imports = "from pydantic_ai import Agent"

    async def open(self) -> None:
        """Make the agent."""
        self._agent = Agent(FunctionModel(stream_function=self._stream), deps_type=str)
        self._agent.tool_plain(lookup)
        self._history: defaultdict[str, list[ModelMessage]] = defaultdict(list)

    async def close(self) -> None:
        """Do nothing: nothing is open."""

    async def turn(self, chat: str) -> int:
        """Run the agent."""
        history = self._history[chat]
        run = await self._agent.run(USER, deps=chat, message_history=history, event_stream_handler=count)
        history += run.new_messages()
        return _streamed.pop(chat)

    async def model_alone(self) -> None:
        """Iterate the answer."""
        answered = ToolReturnPart(tool_name=TOOL_NAME, content="", tool_call_id="")
        async for _ in self._stream([ModelRequest(parts=[answered])], None):
            pass

    async def _stream(self, messages: list[ModelMessage], _info: Any) -> AsyncIterator[Any]:
        CALLS["model"] += 1
        if not any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
            yield {0: DeltaToolCall(name=TOOL_NAME, json_args=TOOL_ARGUMENTS, tool_call_id=f"call-{CALLS['model']}")}
            return
        for _ in range(self.deltas):
            yield DELTA
