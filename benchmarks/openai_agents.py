"""openai-agents: `Runner.run_streamed` with a `SQLiteSession` per chat."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, SQLiteSession, Usage, function_tool, set_tracing_disabled
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
)
from workload import CALLS, DELTA, DELTAS, TOOL_ARGUMENTS, TOOL_NAME, USER, Contestant, run_tool

set_tracing_disabled(True)


def _response(output: list[Any]) -> Response:
    return Response(
        id="response",
        created_at=0,
        model="fake",
        object="response",
        output=output,
        parallel_tool_calls=False,
        tool_choice="auto",
        tools=[],
    )


def _text(text: str) -> ResponseOutputText:
    return ResponseOutputText(annotations=[], text=text, type="output_text", logprobs=[])


class FakeModel(Model):
    """Asks for the tool, then answers, in the events of the Responses API."""

    deltas = DELTAS

    async def get_response(self, *_args: Any, **_options: Any) -> ModelResponse:
        """Return nothing: the race streams."""
        return ModelResponse(output=[], usage=Usage(), response_id=None)

    async def stream_response(
        self, _instructions: str | None, history: str | list[Any], *_args: Any, **_options: Any
    ) -> AsyncIterator[Any]:
        """Yield a call after a user message, else the text."""
        CALLS["model"] += 1
        last = history[-1] if isinstance(history, list) else {"role": "user"}
        for event in self._call() if last.get("role") == "user" else self._answer():
            yield event

    def _call(self) -> Any:
        serial = CALLS["model"]
        call = ResponseFunctionToolCall(
            id=f"item-{serial}",
            call_id=f"call-{serial}",
            name=TOOL_NAME,
            arguments=TOOL_ARGUMENTS,
            type="function_call",
            status="completed",
        )
        added, done = "response.output_item.added", "response.output_item.done"
        yield ResponseOutputItemAddedEvent(item=call, output_index=0, sequence_number=0, type=added)
        yield ResponseOutputItemDoneEvent(item=call, output_index=0, sequence_number=1, type=done)
        yield ResponseCompletedEvent(response=_response([call]), sequence_number=2, type="response.completed")

    def _answer(self) -> Any:
        at: dict[str, Any] = {"item_id": "message", "output_index": 0, "content_index": 0}
        message = ResponseOutputMessage(
            id="message", content=[], role="assistant", status="in_progress", type="message"
        )
        yield ResponseOutputItemAddedEvent(
            item=message, output_index=0, sequence_number=0, type="response.output_item.added"
        )
        yield ResponseContentPartAddedEvent(**at, part=_text(""), sequence_number=1, type="response.content_part.added")
        for number in range(self.deltas):
            yield ResponseTextDeltaEvent(
                **at, delta=DELTA, logprobs=[], sequence_number=number + 2, type="response.output_text.delta"
            )
        text, number = DELTA * self.deltas, self.deltas + 2
        message = message.model_copy(update={"content": [_text(text)], "status": "completed"})
        yield ResponseTextDoneEvent(
            **at, text=text, logprobs=[], sequence_number=number, type="response.output_text.done"
        )
        yield ResponseContentPartDoneEvent(
            **at, part=_text(text), sequence_number=number + 1, type="response.content_part.done"
        )
        yield ResponseOutputItemDoneEvent(
            item=message, output_index=0, sequence_number=number + 2, type="response.output_item.done"
        )
        yield ResponseCompletedEvent(
            response=_response([message]), sequence_number=number + 3, type="response.completed"
        )


@function_tool
async def lookup(query: str, limit: int, lang: str) -> str:  # noqa: ARG001 - as the model sees it
    """Look something up."""
    return await run_tool()


class OpenAIAgents(Contestant):
    """A session per chat, all in one file."""

    title = "openai-agents (session)"
    keeps = "finished items"
    distributions = ("openai-agents", "openai")
    imports = "from agents import Agent, Runner, SQLiteSession, function_tool"

    async def open(self) -> None:
        """Make the agent."""
        self._model = FakeModel()
        self._agent = Agent(name="race", instructions="Help.", model=self._model, tools=[lookup])

    async def close(self) -> None:
        """Do nothing: a session is closed after each turn."""

    async def turn(self, chat: str) -> int:
        """Stream the events of a run."""
        self._model.deltas = self.deltas
        session = SQLiteSession(chat, self.directory / "sessions.db")
        characters = 0
        async for event in Runner.run_streamed(self._agent, USER, session=session).stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                characters += len(event.data.delta)
        session.close()
        return characters

    async def model_alone(self) -> None:
        """Iterate the answer."""
        self._model.deltas = self.deltas
        async for _ in self._model.stream_response(None, [{"type": "function_call_output"}]):
            pass
