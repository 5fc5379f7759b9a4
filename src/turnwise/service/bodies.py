"""The bodies of requests."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Discriminator, Field, JsonValue, StrictBool, StrictFloat, StrictInt, Tag

from turnwise.engine.admin.erase import Erasable
from turnwise.service.auth import Role
from turnwise.states.messages import FilePart, TextPart
from turnwise.states.names import WhenBusy

_MODEL: Final = "The name of a model that the service declares; a 400 for any other tells them all."
_PARAMETERS: Final = "Of model calls, each instead of the agent's of that name; all but `provider_options`."
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
    description: str
    input_schema: dict[str, Any] = Field(description="JSON schema of the arguments: an object schema.")
    deadline: StrictFloat | None = Field(None, description="Seconds the client has to answer; without it, for ever.")


class NewChat(_Body):
    """A chat to create."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"title": "A parcel", "metadata": {"tier": "gold"}}]})

    owner: str | None = Field(None, description="Whose chat it is; only an operator may name another than itself.")
    title: str | None = None
    metadata: dict[str, Any] | None = None
    agent: str | None = None
    system: str | None = None
    model: str | None = Field(None, description=_MODEL)
    parameters: dict[str, Any] | None = Field(None, description=_PARAMETERS)
    active_tools: list[str] | None = None
    client_tools: list[ClientToolBody] = []
    parent: str | None = None
    history: list[dict[str, Any]] = Field([], description="Messages that were said elsewhere.")


class Change(_Body):
    """A change, of which every field says something: what is left out stays."""


class ChatChange(Change):
    """Labels to change; what is left out stays."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"title": "The parcel to Lyon"}]})

    title: str | None = None
    metadata: dict[str, Any] = {}
    archived: StrictBool = False


class Configuration(Change):
    """Who answers, and how; what is left out stays, `null` is the agent's own."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "demo"}]})

    agent: str = ""
    model: str | None = Field(None, description=_MODEL)
    parameters: dict[str, Any] | None = Field(None, description=_PARAMETERS)
    active_tools: list[str] | None = None
    system: str | None = None


class NewMessage(_Body):
    """A message to send."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"content": "Where is my parcel?"}]})

    content: UserContent
    when_busy: WhenBusy = "queue"


class NewContent(_Body):
    """What a message is to say instead."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"content": "Where are my parcels?"}]})

    content: UserContent


class ToolResultBody(_Body):
    """The answer to a call."""

    call_id: str
    output: JsonValue
    is_error: StrictBool = False


class Submission(_Body):
    """The answers to all open calls of the client, each once."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"results": [{"call_id": "call_1", "output": "Friday"}]}]}
    )

    results: list[ToolResultBody]


class Reason(_Body):
    """Why a chat is stopped."""

    reason: str | None = None


class ForkPoint(_Body):
    """Where a fork begins."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"at_version": 4}]})

    at_version: StrictInt = Field(ge=0)


class ToErase(_Body):
    """What is to be erased."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"messages": ["m1"]}]})

    messages: list[str] = []
    what: list[Erasable] = []


class Permissions(BaseModel):
    """A principal, and what they may do."""

    name: str
    role: Role
    until: datetime | None
    may: list[str] = Field(description="Operations by their ids, and fields of operations as `operation.field`.")


class WriteDigest(BaseModel):
    """One write of a transition."""

    kind: str
    id: str
    digest: str


class AuditEntry(BaseModel):
    """One committed transition."""

    chat_id: str
    version: int
    trigger: str
    source: str | None
    target: str
    actor: str
    reason: str | None
    turn: int
    step: int
    attempt: int
    writes: list[WriteDigest]
    at: str
    prev: str
    hash: str
