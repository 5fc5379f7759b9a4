"""The bodies of requests."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import datetime
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    StrictBool,
    StrictFloat,
    StrictInt,
    Tag,
    WithJsonSchema,
    create_model,
)
from pydantic.fields import FieldInfo

from turnwise.engine.chats.declaration import UNCHANGED, Command, Unchanged
from turnwise.service.auth import Role
from turnwise.states.calls import ClientTool, ToolResult
from turnwise.states.messages import FilePart, TextPart

Parts = list[Annotated[TextPart | FilePart, Field(discriminator="type")]]


def _kind_of(content: object) -> str:
    return "text" if isinstance(content, str) else "parts"


UserContent = Annotated[Annotated[str, Tag("text")] | Annotated[Parts, Tag("parts")], Discriminator(_kind_of)]
"""What a user says: text, or a list of text and file parts."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ClientToolBody(_Body):
    """A tool that the model may call and only the client can run."""

    name: str
    """The tool's name."""
    description: str
    """What the tool does, for the model."""
    input_schema: dict[str, Any] = Field(description="JSON schema of the arguments: an object schema.")
    deadline: StrictFloat | None = Field(None, description="Seconds the client has to answer; without it, for ever.")
    output_schema: dict[str, Any] | None = Field(None, description="JSON schema of results, but for errors.")

    def value(self) -> ClientTool:
        """Return the tool."""
        schema = self.output_schema
        return ClientTool(self.name, self.description, self.input_schema, deadline=self.deadline, output_schema=schema)


class NewContent(_Body):
    """What a message is to say instead."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"content": "Where are my parcels?"}]})

    content: UserContent
    """The text, or a list of text and file parts."""


class ToolResultBody(_Body):
    """The answer to a call."""

    call_id: str
    """The id of the call."""
    output: JsonValue
    """The result, as JSON; for an approval true or false."""
    is_error: StrictBool = False
    """Whether the call failed."""
    attachments: list[FilePart] = Field([], description="Files that belong to the answer; the model sees them.")

    def value(self) -> ToolResult:
        """Return the answer."""
        return ToolResult(self.call_id, self.output, self.is_error, tuple(self.attachments))


_TYPES: Final[Mapping[str, Any]] = {
    "content": UserContent,
    "message": UserContent | None,
    "client_tools": list[ClientToolBody],
    "results": list[ToolResultBody],
    "history": list[dict[str, Any]] | None,
}
"""The types of fields whose arguments are more than JSON."""
_DESCRIPTIONS: Final[Mapping[str, str]] = {
    "owner": "Whose chat it is; only an operator may name another than itself.",
    "model": "The name of a model that the service declares; a 400 for any other names them all.",
    "parameters": "Of model calls, each instead of the agent's of that name; all but `provider_options`.",
    "history": "Messages that were said elsewhere.",
    "message": "What the user says first; it is sent with the creation, or neither is done.",
    "message_client_id": "The client's own id of that message; by default that of the request.",
}
_EXAMPLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "create_chat": {"title": "A parcel", "metadata": {"tier": "gold"}},
    "update_chat": {"title": "The parcel to Lyon"},
    "configure": {"model": "demo"},
    "fork": {"at_version": 4},
    "erase": {"messages": ["m1"]},
    "send_message": {"content": "Where is my parcel?"},
    "edit_message": {"content": "Where are my parcels?"},
    "edit_queued": {"content": "Where are my parcels?"},
    "submit_tool_results": {"results": [{"call_id": "call_1", "output": "Friday"}]},
}


def build_body_model(command: Command) -> type[BaseModel] | None:
    """Return the model of a command's body. A field whose absence keeps the stored value has no default."""
    if not command.has_body:
        return None
    name = "".join(map(str.capitalize, command.name.split("_"))) + "Body"
    example = _EXAMPLES.get(command.name)
    fields: dict[str, Any] = {field: _build_field(command, field) for field in command.fields}
    model = create_model(name, __base__=_Body, __doc__=command.doc.partition("\n")[0], **fields)
    if example is not None:
        model.model_config["json_schema_extra"] = {"examples": [dict(example)]}
    return model


def _build_field(command: Command, name: str) -> tuple[Any, Any]:
    hint = _TYPES.get(name) or _json_type(command.hints[name])
    default = command.parameters[name].default
    description = _DESCRIPTIONS.get(name)
    if default is UNCHANGED:
        return hint, Field(default_factory=lambda: UNCHANGED, description=description)
    if default is inspect.Parameter.empty:
        return hint, Field(description=description)
    return hint, Field(list(default) if isinstance(default, tuple) else default, description=description)


def _json_type(hint: Any) -> Any:
    """Return the type that reads a body's JSON; the command checks the rest."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [one for one in inner[1:] if isinstance(one, FieldInfo | WithJsonSchema)]
        return Annotated[_json_type(inner[0]), *bounds] if bounds else _json_type(inner[0])
    if origin in (Union, UnionType):
        return Union[tuple(_json_type(one) for one in inner if one is not Unchanged)]  # noqa: UP007 - of any number
    if origin is Literal or origin is None:
        return {bool: StrictBool, int: StrictInt, float: StrictFloat}.get(hint, hint)
    return dict[str, Any] if issubclass(origin, Mapping) else list[_json_type(inner[0])]  # type: ignore[misc]


class Permissions(BaseModel):
    """A principal, and what they may do."""

    name: str
    """The principal's name."""
    role: Role
    """The principal's role."""
    until: datetime | None
    """When the token expires."""
    may: list[str] = Field(description="Operations by their ids, and fields of operations as `operation.field`.")


class WriteDigest(BaseModel):
    """One write of a transition."""

    kind: str
    """The kind of the write, as in the format of the log."""
    id: str
    """What was written: depends on the kind."""
    digest: str
    """The SHA-256 of the content, or empty."""


class AuditEntry(BaseModel):
    """One committed transition."""

    chat_id: str
    """The chat's id."""
    version: int
    """The number of the record, from 1."""
    trigger: str
    """The trigger that was fired."""
    source: str | None
    """The state before; null for the first record."""
    target: str
    """The state after."""
    actor: str
    """Who caused the transition."""
    reason: str | None
    """Why, in turnwise's own words."""
    turn: int
    """The turn after the transition."""
    step: int
    """The step after the transition."""
    attempt: int
    """The attempt after the transition."""
    writes: list[WriteDigest]
    """What was written, as digests."""
    at: str
    """When it was committed."""
    prev: str
    """The hash of the record before."""
    hash: str
    """The hash of this record."""
