"""Finds the new messages and answers in the history that a front end sends."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Final

import msgspec
from ag_ui.core import RunAgentInput
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from turnwise.service.bodies import ClientToolBody
from turnwise.service.protocols.ai_sdk import as_text
from turnwise.service.protocols.pieces import has_failed
from turnwise.states.calls import ToolResult
from turnwise.states.files import is_digest
from turnwise.states.messages import FilePart, TextPart, ToolResultPart
from turnwise.states.names import WhenBusy

Content = list[TextPart | FilePart]


class NewInput(msgspec.Struct, frozen=True):
    """All messages of the user after the last answer, by the client's ids, and answers to calls."""

    messages: list[tuple[str, Content]] = msgspec.field(default_factory=list)
    answers: dict[str, ToolResult] = msgspec.field(default_factory=dict)
    """By the id of the call. Some may have been answered before, or by the server."""
    known_calls: frozenset[str] = frozenset()
    """Calls that are in the client's messages."""
    answered: frozenset[str] = frozenset()
    """Those of them whose results are there, too."""
    behind: str | None = None
    """The answer after which the messages come, by the client's id."""
    edited: str | None = None
    """The message that the client says it has edited."""
    when_busy: WhenBusy = "queue"

    def has_result(self, result: ToolResultPart) -> bool:
        """Whether the client's messages, those of the AI SDK, hold a result as it is stored."""
        answer = self.answers.get(result.call_id)
        if answer is None or result.call_id not in self.answered:
            return False
        output = as_text(result.output) if has_failed(result) else result.output
        return (answer.output, answer.is_error) == (output, has_failed(result))


def _without_unknown(request: object) -> object:
    """Leave out messages and parts of kinds that later versions of AG-UI bring: no run fails for them."""
    if not isinstance(request, dict) or not isinstance(messages := request.get("messages"), list):
        return request
    readable = [_with_known_parts(one) for one in messages if not _is_unknown(one, "role", _ROLES)]
    return {**request, "messages": readable}


def _with_known_parts(message: object) -> object:
    if not isinstance(message, dict) or not isinstance(parts := message.get("content"), list):
        return message
    readable = [one for one in parts if not _is_unknown(one, "type", _PARTS)]
    sources = [one.get("source") if isinstance(one, dict) else None for one in readable]
    complete = [one for one, source in zip(readable, sources, strict=True) if not _is_unknown(source, "type", _SOURCES)]
    return {**message, "content": complete}


def _is_unknown(one: object, name: str, kinds: Collection[str]) -> bool:
    return isinstance(one, dict) and isinstance(kind := one.get(name), str) and kind not in kinds


_ROLES: Final = frozenset({"developer", "system", "assistant", "user", "tool", "activity", "reasoning"})
_PARTS: Final = frozenset({"text", "image", "audio", "video", "document"})
_SOURCES: Final = frozenset({"data", "url", "file"})

AGUIRequest = Annotated[RunAgentInput, BeforeValidator(_without_unknown)]
"""What an AG-UI client sends, as far as it is known here."""


class UIMessage(BaseModel):
    """A message of the AI SDK."""

    id: str
    """The message's id."""
    role: str
    """`user`, `assistant` or `system`."""
    parts: list[dict[str, Any]]
    """Its parts, as the AI SDK declares them."""


class AISDKRequest(BaseModel):
    """What `DefaultChatTransport` of the AI SDK sends, and what its option `body` may add."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "tab-1",
                    "messages": [{"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Hello!"}]}],
                }
            ]
        }
    )

    id: str = Field(description="The client's own name of the chat, or the id of a chat.", min_length=1)
    messages: list[UIMessage] = Field(description="What the page shows, the new message last.")
    trigger: str | None = Field(None, description="`submit-message` or `regenerate-message`.")
    message_id: str | None = Field(None, alias="messageId", description="The message that the page has edited.")
    when_busy: WhenBusy = Field("queue", description="What becomes of a new message while the chat works.")
    agent: str | None = Field(None, description="Who answers, if the chat is new.")
    client_tools: list[ClientToolBody] = Field([], description="Tools that the page runs, if the chat is new.")


def new_input_of_ai_sdk(request: AISDKRequest) -> NewInput:
    """Find the new messages and answers in a request of an AI SDK page."""
    messages: list[tuple[str, Content]] = []
    behind: UIMessage | None = None
    for message in reversed(request.messages):
        if message.role != "user":
            behind = message
            break
        messages.insert(0, (message.id, [part for one in message.parts if (part := _ui_part(one)) is not None]))
    calls = [part for message in request.messages for part in message.parts if "toolCallId" in part]
    last = () if behind is None else behind.parts
    answers = [answer for part in last if "toolCallId" in part and (answer := _ui_answer(part)) is not None]
    return NewInput(
        _without_blank(messages),
        {answer.call_id: answer for answer in answers},
        frozenset(str(part["toolCallId"]) for part in calls),
        frozenset(str(part["toolCallId"]) for part in calls if str(part.get("state")).startswith("output-")),
        behind=None if behind is None else behind.id,
        edited=request.message_id,
        when_busy=request.when_busy,
    )


def _ui_part(part: dict[str, Any]) -> TextPart | FilePart | None:
    match part.get("type"):
        case "text":
            return TextPart(text=part.get("text", ""))
        case "file":
            return FilePart(media_type=part.get("mediaType", ""), url=part.get("url", ""), name=part.get("filename"))
        case "data-file":
            return _stored_file(part.get("data"))
    return None


def _stored_file(data: object) -> FilePart | None:
    """Return a file that the chat's store keeps; `None` for a part of the page's own that has this type, too."""
    if not isinstance(data, dict) or not isinstance(digest := data.get("digest"), str) or not is_digest(digest):
        return None
    return FilePart(media_type=data.get("mediaType", ""), blob=digest, name=data.get("name"))


def _ui_answer(part: dict[str, Any]) -> ToolResult | None:
    call_id = str(part["toolCallId"])
    match part.get("state"):
        case "output-available":
            return ToolResult(call_id, part.get("output"))
        case "output-error":
            return ToolResult(call_id, part.get("errorText"), is_error=True)
        case "approval-responded":
            approval = part["approval"] if isinstance(part.get("approval"), dict) else {}
            reason = {"reason": approval["reason"]} if approval.get("reason") else {}
            return ToolResult(call_id, {"approved": approval.get("approved") is True, **reason})
    return None


def new_input_of_agui(request: RunAgentInput) -> NewInput:
    """Find the new messages and answers in a request of an AG-UI client."""
    messages: list[tuple[str, Content]] = []
    answers: dict[str, ToolResult] = {}
    behind: str | None = None
    for message in reversed(request.messages):
        if message.role == "assistant":
            behind = message.id
            break
        if message.role == "user":
            messages.insert(0, (message.id, _agui_content(message.content)))
        elif message.role == "tool":
            parts = _agui_content(message.content)
            text = "".join(part.text for part in parts if isinstance(part, TextPart))
            files = tuple(part for part in parts if isinstance(part, FilePart))
            answers[message.tool_call_id] = ToolResult(
                message.tool_call_id, message.error or text, message.error is not None, files
            )
    for entry in request.resume or ():
        payload = entry.payload if entry.status == "resolved" else False
        answers[entry.interrupt_id] = ToolResult(entry.interrupt_id, payload)
    call_ids = [call.id for one in request.messages if one.role == "assistant" for call in one.tool_calls or ()]
    answered = [one.tool_call_id for one in request.messages if one.role == "tool"]
    return NewInput(_without_blank(messages), answers, frozenset(call_ids), frozenset(answered), behind)


def _without_blank(messages: list[tuple[str, Content]]) -> list[tuple[str, Content]]:
    """Leave out blank messages, which pages send again with every request."""
    return [
        (name, content)
        for name, content in messages
        if any(isinstance(part, FilePart) or part.text.strip() for part in content)
    ]


def _agui_content(content: Any) -> Content:
    if isinstance(content, str):
        return [TextPart(text=content)]
    parts = (TextPart(text=part.text) if part.type == "text" else _agui_file(part) for part in content)
    return [part for part in parts if part is not None]


def _agui_file(part: Any) -> FilePart | None:
    """Return a file; `None` for one that another agent stores."""
    source, media_type = part.source, part.source.mime_type or "application/octet-stream"
    where = {"data": "data", "url": "url", "file": "blob"}[source.type]
    if where == "blob" and not is_digest(source.value):
        return None
    return FilePart(media_type=media_type, **{where: source.value})
