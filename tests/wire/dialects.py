"""The dialects of the wire: streams and errors of OpenAI, Anthropic and Google."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from support.wire.server import Answer
from turnwise.providers.pydantic_ai import PydanticAIModel

Connect = Callable[..., Awaitable[PydanticAIModel]]
"""Makes a model on the test's server in a dialect; options are those of `PydanticAIModel`."""


@dataclass(frozen=True)
class PlainReply:
    """A reply, independent of the dialect."""

    text: str = "Hello world."
    reasoning: str = ""
    signature: str = ""
    calls: Sequence[tuple[str, str, str]] = ()
    """Id, name, arguments."""


class Chat:
    """OpenAI's Chat Completions."""

    name = "openai"
    model = "openai:gpt-test@{url}/v1"
    finish_frames = 3
    """The number of final frames with the end and its reason."""

    def frames(self, reply: PlainReply) -> list[str]:
        deltas: list[dict[str, Any]] = (
            [{"role": "assistant", "content": ""}, {"reasoning_content": reply.reasoning}] if reply.reasoning else []
        )
        deltas += [{"content": word} for word in _words(reply.text)]
        for index, (call_id, name, arguments) in enumerate(reply.calls):
            opened = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
            deltas.append({"tool_calls": [opened]})
            deltas += [
                {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in _words(arguments)
            ]
        usage = {
            "prompt_tokens": 100,
            "completion_tokens": 20,
            "total_tokens": 120,
            "prompt_tokens_details": {"cached_tokens": 60},
            "completion_tokens_details": {"reasoning_tokens": 7},
        }
        reason = "tool_calls" if reply.calls else "stop"
        return [
            *(self._chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas),
            self._chunk([{"index": 0, "delta": {}, "finish_reason": reason}]),
            self._chunk([], usage=usage),
            "data: [DONE]\n\n",
        ]

    def error(self, status: int, code: str, message: str, **headers: str) -> Answer:
        return Answer.of({"error": {"message": message, "type": code, "code": code}}, status, **headers)

    def overloaded_frame(self) -> str:
        """Return the frame of an error within a stream."""
        error = {"message": "Overloaded", "type": "server_error", "code": "server_is_overloaded"}
        return f"data: {json.dumps({'error': error})}\n\n"

    def overflow(self) -> Answer:
        """Return the refusal of a prompt that is too long."""
        return self.error(400, "context_length_exceeded", "This model's maximum context length is 10 tokens.")

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> str:
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-test"}
        return f"data: {json.dumps({**chunk, 'choices': choices, **more})}\n\n"


class Responses(Chat):
    name = "openai-responses"
    model = "openai-responses:gpt-5@{url}/v1"
    finish_frames = 1

    def frames(self, reply: PlainReply) -> list[str]:
        output: list[dict[str, Any]] = []
        events: list[dict[str, Any]] = [{"type": "response.created", "response": self._response("in_progress", [])}]
        if reply.reasoning or reply.signature:
            events += self._reasoning(reply, output)
        if reply.text:
            events += self._message(reply.text, output)
        for call in reply.calls:
            events += self._call(call, output)
        events.append({"type": "response.completed", "response": self._response("completed", output)})
        return self._spelled(events)

    def ending(self, reply: PlainReply, ending: str, **response: Any) -> list[str]:
        """Return a stream that ends with another event than its completion, about this response."""
        last = {"type": ending, "response": {**self._response("in_progress", []), **response}}
        return [*self.frames(reply)[:-1], *self._spelled([last])]

    def overloaded_frame(self) -> str:
        """Return the frame of an error within a stream."""
        event = {"type": "error", "code": "server_is_overloaded", "message": "Overloaded", "param": None}
        return f"event: error\ndata: {json.dumps({**event, 'sequence_number': 9})}\n\n"

    def _spelled(self, events: Sequence[dict[str, Any]]) -> list[str]:
        return [
            f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n"
            for number, event in enumerate(events)
        ]

    def _reasoning(self, reply: PlainReply, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        place = {"item_id": "rs_1", "output_index": len(output), "summary_index": 0}
        summary = [{"type": "summary_text", "text": reply.reasoning}] if reply.reasoning else []
        item = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": reply.signature}
        output.append(item)
        deltas = [
            {"type": "response.reasoning_summary_text.delta", **place, "delta": word}
            for word in _words(reply.reasoning)
        ]
        opening = {
            "type": "response.reasoning_summary_part.added",
            **place,
            "part": {"type": "summary_text", "text": ""},
        }
        return [
            {
                "type": "response.output_item.added",
                "output_index": place["output_index"],
                "item": {**item, "summary": [], "encrypted_content": None},
            },
            *([opening] if summary else []),
            *deltas,
            {"type": "response.output_item.done", "output_index": place["output_index"], "item": item},
        ]

    def _message(self, text: str, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        place = {"item_id": "msg_1", "output_index": len(output), "content_index": 0}
        part = {"type": "output_text", "text": text, "annotations": []}
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
        output.append(item)
        at = {"output_index": place["output_index"]}
        return [
            {"type": "response.output_item.added", **at, "item": {**item, "status": "in_progress", "content": []}},
            {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
            *({"type": "response.output_text.delta", **place, "delta": word, "logprobs": []} for word in _words(text)),
            {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
            {"type": "response.content_part.done", **place, "part": part},
            {"type": "response.output_item.done", **at, "item": item},
        ]

    def _call(self, call: tuple[str, str, str], output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        call_id, name, arguments = call
        item = {
            "type": "function_call",
            "id": f"fc_{call_id}",
            "call_id": call_id,
            "name": name,
            "arguments": arguments,
            "status": "completed",
        }
        at = {"output_index": len(output)}
        place = {"item_id": item["id"], **at}
        output.append(item)
        return [
            {"type": "response.output_item.added", **at, "item": {**item, "arguments": "", "status": "in_progress"}},
            *({"type": "response.function_call_arguments.delta", **place, "delta": bit} for bit in _words(arguments)),
            {"type": "response.function_call_arguments.done", **place, "name": name, "arguments": arguments},
            {"type": "response.output_item.done", **at, "item": item},
        ]

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        usage = {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 0},
            "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 7},
            "total_tokens": 120,
        }
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": "gpt-5",
            "status": status,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage if status == "completed" else None,
        }


class Anthropic:
    name = "anthropic"
    model = "anthropic:claude-opus-5@{url}"
    finish_frames = 2

    def frames(self, reply: PlainReply) -> list[str]:
        blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        if reply.reasoning or reply.signature:
            deltas = [{"type": "thinking_delta", "thinking": word} for word in _words(reply.reasoning)]
            deltas.append({"type": "signature_delta", "signature": reply.signature})
            blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, deltas))
        if reply.text:
            words = [{"type": "text_delta", "text": word} for word in _words(reply.text)]
            blocks.append(({"type": "text", "text": ""}, words))
        for call_id, name, arguments in reply.calls:
            pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in _words(arguments)]
            blocks.append(({"type": "tool_use", "id": call_id, "name": name, "input": {}}, pieces))
        return self.stream(blocks, "tool_use" if reply.calls else "end_turn")

    def stream(self, blocks: Sequence[tuple[dict[str, Any], list[dict[str, Any]]]], stop_reason: str) -> list[str]:
        """Return the stream of a reply of these content blocks."""
        usage = {"input_tokens": 30, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 10}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": []}
        ending = {"stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 1}}
        events: list[dict[str, Any]] = [{"type": "message_start", "message": {**message, **ending}}, {"type": "ping"}]
        for index, (block, deltas) in enumerate(blocks):
            events.append({"type": "content_block_start", "index": index, "content_block": block})
            events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": index})
        reported = {"output_tokens": 20, "output_tokens_details": {"thinking_tokens": 7}}
        stop = {"stop_reason": stop_reason, "stop_sequence": None}
        events += [{"type": "message_delta", "delta": stop, "usage": reported}, {"type": "message_stop"}]
        return [_event(event) for event in events]

    def error(self, status: int, code: str, message: str, **headers: str) -> Answer:
        return Answer.of({"type": "error", "error": {"type": code, "message": message}}, status, **headers)

    def overloaded_frame(self) -> str:
        """Return the frame of an error within a stream."""
        return _event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})

    def overflow(self) -> Answer:
        """Return the refusal of a prompt that is too long."""
        return self.error(400, "invalid_request_error", "prompt is too long: 200 tokens > 100 maximum")


class Google(Chat):
    """Gemini's generateContent, of a model that accepts a schema beside tools."""

    name = "google"
    model = "google:gemini-3-pro-preview@{url}"
    finish_frames = 1

    def frames(self, reply: PlainReply, finish: str = "STOP", **counts: int) -> list[str]:
        """Return the frames of a reply's stream: start, content, end."""
        called = [
            {"functionCall": {"name": name, "args": json.loads(arguments), "id": id_}}
            for id_, name, arguments in reply.calls
        ]
        parts = [*([{"text": reply.text}] if reply.text else []), *called]
        return [self._frame([]), self._frame(parts), self._frame([], finish, candidatesTokenCount=20, **counts)]

    def _frame(self, parts: list[dict[str, Any]], finish: str | None = None, **counts: int) -> str:
        candidate = {"content": {"role": "model", "parts": parts}, "finishReason": finish, "index": 0}
        usage = {"promptTokenCount": 100, "candidatesTokenCount": 1, **counts}
        return f"data: {json.dumps({'candidates': [candidate], 'usageMetadata': usage, 'responseId': 'r1'})}\n\n"


DIALECTS = (Chat(), Responses(), Anthropic())
Dialect = Chat | Anthropic


def _event(event: dict[str, Any]) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


def _words(text: str) -> list[str]:
    """Cut the text in two, so that everything is streamed in pieces."""
    middle = len(text) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]
