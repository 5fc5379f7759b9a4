"""The protocol of models. Adapters translate it for providers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec.structs import force_setattr

from turnwise.states.errors import SettingsError
from turnwise.states.messages import Message, Part, SourceType, TextPart, ToolCallPart
from turnwise.states.names import Executor, StopReason
from turnwise.states.usage import Usage
from turnwise.states.values.limits import Name
from turnwise.states.values.values import CheckedCall, Json, Value

Purpose = Literal["step", "summary", "title"]
PartType = Literal[
    "text_delta",
    "reasoning_delta",
    "tool_call_start",
    "tool_call_delta",
    "tool_call",
    "provider_result",
    "source",
    "file",
    "heartbeat",
    "usage",
    "finish",
]


class ProviderDefinition(Value, metaclass=CheckedCall, frozen=True):
    """A tool that a provider knows itself, in the provider's own words: it is sent as it stands.

    Raises:
        SettingsError: `tool` has no type or no name.
    """

    provider: Name
    """Whose tool it is, as `Model.provider` names it: `anthropic`."""
    tool: Mapping[str, Json]
    """What the provider reads: its `type`, its `name` and its options."""
    betas: Sequence[Name] = ()
    """The beta features that a request with this tool has to ask for."""

    def __post_init__(self) -> None:
        for key in ("type", "name"):
            value = self.tool.get(key)
            if not isinstance(value, str) or not value.strip():
                raise SettingsError(
                    f"tool.{key}",
                    f"must be text, as {self.provider} documents it: the definition of a tool has a type and a name, "
                    'such as {"type": "bash_20250124", "name": "bash"}',
                )
        force_setattr(self, "betas", tuple(self.betas))

    @property
    def name(self) -> str:
        """What the model calls."""
        return str(self.tool["name"])

    @property
    def type(self) -> str:
        """Which of the provider's tools it is, with its version."""
        return str(self.tool["type"])


class ToolSpec(Value, frozen=True):
    """A tool as the model sees it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON schema of the arguments: an object schema."""
    definition: ProviderDefinition | None = None
    """What is sent instead of description and schema, if the provider knows the tool itself."""


Severity = Literal["info", "warning", "error"]
"""How urgent a reminder is."""


class SentReminder(Value, frozen=True):
    """A reminder that a request holds."""

    producer: str
    """The name of the function that made it."""
    severity: Severity = "info"


class ModelRequest(Value, frozen=True, kw_only=True):
    """One model call. An adapter must not change it in place: the next request may hold the same messages."""

    purpose: Purpose
    chat_id: str
    messages: list[Message]
    step: int = 0
    attempt: int = 1
    system: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    parameters: Mapping[str, Any] = {}
    """Passed through: `ModelParameters` of `providers/parameters.py`."""
    reminders: tuple[SentReminder, ...] = ()
    """The producers of the reminders at the end of the messages, for observers."""
    has_results: bool = False
    """Whether the turn has a tool result: from then on nothing may force the model to call a tool."""
    answer_schema: Mapping[str, Any] | None = None
    """JSON schema to which the text of the answer must keep: an object schema. Only models that take one get one."""


class ModelPart(Value, frozen=True):
    """One piece of a streamed reply. `type` tells which fields count.

    | type | fields |
    | --- | --- |
    | `text_delta` | `text` |
    | `reasoning_delta` | `text`, `signature` (with or after the text it signs: it ends the part) |
    | `tool_call_start` | `id`, `name` |
    | `tool_call_delta` | `id`, `arguments` (a fragment of JSON text) |
    | `tool_call` | `id`, `name`, `arguments` (complete: mapping or JSON text), `executor`, `metadata` |
    | `provider_result` | `call_id`, `output`, `metadata` |
    | `source` | `url`, `title`, `id`, `source_type`, `metadata` |
    | `file` | `media_type`, `data` (base64) or `url`, `name` |
    | `heartbeat` | (the model has started to answer: from now on the attempt is paid) |
    | `usage` | `usage` (all that was reported so far: it counts if no `finish` has one) |
    | `finish` | `stop_reason`, `usage`, `context_limit`, `metadata` (`reason`, `response_id`, `response_model`) |

    Of a reply that took several requests, the `usage` is the sum, and `context_tokens` in the `metadata` of `finish` is
    the prompt of the last one.

    Arguments, outputs and metadata become JSON as they come: a tuple a list, a date its text. What has none, and text
    that is no text, is a failure of the model (`server_error`), which is asked again. So is a part of another type, but
    the model is not asked again.
    """

    type: PartType
    text: str = ""
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    arguments: str | Mapping[str, Any] | None = None
    executor: Executor | Literal["local", "client", "provider"] = Executor.local
    call_id: str | None = None
    output: Any = None
    url: str | None = None
    title: str | None = None
    source_type: SourceType | None = None
    """`None` is `url`."""
    media_type: str | None = None
    data: str | None = None
    stop_reason: StopReason | str | None = None
    usage: Usage | None = None
    context_limit: int | None = None
    metadata: Mapping[str, Any] | None = None


class ModelReply(Value, frozen=True):
    """A whole reply: its parts, joined, and how it finished.

    The arguments of a tool call that came as JSON text with which no call may run stand under the one key
    `ARGUMENT_TEXT`.
    """

    parts: tuple[Part, ...]
    finish: ModelPart

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        """The tool calls, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCallPart))

    @property
    def usage(self) -> Usage | None:
        """What the provider reported."""
        return self.finish.usage


class Model(Protocol):
    """A language model behind a provider.

    Both methods raise `ModelError`, classified, or what the network or an SDK raises: an exception that names an HTTP
    status or a lost connection is classified by that. Cancelling either closes the connection to the provider. Neither
    retries. Anything else that they raise, be it the `StoreError` of a
    store that the model itself uses, is a failure of its code, and not tried again.

    A model that keeps its answers to `ModelRequest.answer_schema` says so in an attribute `takes_answer_schema`:
    `always`, or `without_tools` if it cannot do that while it is offered tools. Any other gets a tool to answer with.

    A model whose provider can search the web for it has an attribute `searches_web` that is true: only such a model is
    asked with the parameter `web_search`.

    A model that stands for several has them in an attribute `alternatives`: an agent that is given it is given those.

    A model may have a method `refuses_file(media_type, size)`, which returns why it does not take such a file, or
    `None`. The engine asks it before it loads a file from the file store, and tells the model what is left out.
    """

    @property
    def name(self) -> str:
        """The model's name, as the provider knows it."""
        ...

    @property
    def provider(self) -> str:
        """The provider's name, in lower case."""
        ...

    @property
    def context_limit(self) -> int | None:
        """The context window in tokens; `None` or 0 if unknown."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Yield the parts of a reply as they arrive; the last one is `finish`.

        An iterator that has `aclose`, as that of an `async def` with `yield` has, is closed when it is read no more.
        """
        ...

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Return a whole reply."""
        ...


@runtime_checkable
class TakesDefinitions(Protocol):
    """A model that may be offered tools which its provider knows itself. One without this method is offered none."""

    def refuses(self, definition: ProviderDefinition) -> str | None:
        """Return why the model cannot be offered a tool of its provider; `None` if it can."""
        ...


def refusal_of(model: Model, tools: Sequence[ToolSpec], parameters: Mapping[str, Any]) -> str | None:
    """Return why a model cannot be offered one of the tools, or cannot search the web; `None` if it can."""
    if parameters.get("web_search") and not getattr(model, "searches_web", False):
        return f"model {model.name!r} of {model.provider} cannot search the web by itself (parameters['web_search'])"
    for tool in tools:
        if (definition := tool.definition) is None:
            continue
        reason: str | None = f"only models of {definition.provider} can"
        if model.provider == definition.provider:
            reason = "it has no method `refuses`, by which a model takes them"
            if isinstance(model, TakesDefinitions):
                reason = model.refuses(definition)
        if reason is not None:
            return (
                f"tool {tool.name!r} is {definition.provider}'s own ({definition.type}), and model {model.name!r} of "
                f"{model.provider} cannot be offered it: {reason}"
            )
    return None


def alternatives_of(model: Model) -> Sequence[Model]:
    """Return the `alternatives` of a model, in their order, or the model itself."""
    several: Sequence[Model] = getattr(model, "alternatives", ())
    return [one for other in several for one in alternatives_of(other)] or [model]


TakesAnswerSchema = Literal["always", "without_tools"]
"""When a model keeps its answer to `ModelRequest.answer_schema`: always, or only where it is offered no tools."""


def takes_answer_schema(model: Model, *, beside_tools: bool) -> bool:
    """Return whether a model has an attribute `takes_answer_schema` that allows a schema."""
    says = getattr(model, "takes_answer_schema", None)
    return says == "always" or (says == "without_tools" and not beside_tools)
