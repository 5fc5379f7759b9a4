"""The operations that each principal may use, and the models, parameters and tools that clients may choose."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import msgspec

from turnwise.engine.config.results import Chat
from turnwise.engine.engine import Engine
from turnwise.http_problems import ON_BEHALF_OF, NotAllowed
from turnwise.service.auth import Principal, Role
from turnwise.states.errors import SettingsError, TurnwiseError
from turnwise.states.names import DEFAULT_AGENT
from turnwise.states.values.plain import type_name

Restriction = Callable[[Principal, str, Chat | None], bool | Awaitable[bool]]
"""An application's own check, after the role's. It gets the principal, the name of the operation or field, and the chat
that the request names (`None` if there is none, or the principal may not see it), and returns whether to allow it."""

OWNERS_MAY: Final = frozenset(
    {
        "create_chat.title",
        "create_chat.agent",
        "create_chat.message",
        "create_chat.message_client_id",
        "list_chats",
        "list_ids",
        "count_chats",
        "watch_chats",
        "read_inbox",
        "list_agents",
        "read_principal",
        "get_chat",
        "list_messages",
        "read_transcript",
        "stream_events",
        "list_queue",
        "list_compactions",
        "list_subagents",
        "read_audit",
        "verify",
        "read_usage",
        "read_family_usage",
        "read_argument_schemas",
        "explain",
        "list_budgets",
        "draw",
        "read_tombstone",
        "get_file",
        "put_file",
        "send_message",
        "ask",
        "edit_message",
        "submit_tool_results",
        "interrupt",
        "resume",
        "mark_read",
        "fork",
        "edit_queued",
        "delete_queued",
        "promote_queued",
        "schedule",
        "unschedule",
        "list_schedules",
        "run_agui",
        "run_agui.tools",
        "chat_ai_sdk",
        "chat_ai_sdk.client_tools",
        "list_ui_messages",
        "resume_ai_sdk",
    }
)
"""What owners may do with their own chats by default.

An operation is named by its id in the OpenAPI document, which allows all of its fields except those in `APART`.
`operation.field` allows the operation with that field.
"""
APART: Final = frozenset({"create_chat.owner", "list_messages.view", "run_agui.tools", "chat_ai_sdk.client_tools"})
"""Fields that need a permission of their own: another owner of a chat, the `model` and `raw` views of a history, and
the tools that a front end's page defines."""


class Operation(msgspec.Struct, frozen=True):
    """An operation and the fields that the policy can allow one by one."""

    name: str
    is_read: bool
    """Whether the operation only reads."""
    fields: Mapping[str, Field]
    """The optional fields of the body, and the fields in `APART`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the operation and of its fields."""
        return (self.name, *(f"{self.name}.{field}" for field in self.fields))

    def find_used_fields(self, body: Mapping[str, Any]) -> Iterator[str]:
        """Yield the full names of the fields that a request body sets to other than their defaults."""
        for name, field in self.fields.items():
            keys = {name, field.other_key or name}
            if any(not field.is_usual(body[key]) for key in keys & body.keys()):
                yield f"{self.name}.{name}"


class Field(msgspec.Struct, frozen=True):
    """An optional field of a request."""

    usual: object
    """The default."""
    is_change: bool = False
    """Whether the default changes something, too, because only an absent field keeps the stored value."""
    other_key: str | None = None
    """A second key for the field in a body."""

    def is_usual(self, value: object) -> bool:
        """Whether a value has the same effect as omitting the field."""
        return not self.is_change and (value is None or value == self.usual)


class Policy(msgspec.Struct, frozen=True):
    """The permissions of each role: operators may do everything, auditors may read, `owners_may` lists those of owners.

    Raises:
        SettingsError: `owners_may` names an unknown operation or field.
    """

    operations: Mapping[str, Operation]
    owners_may: Collection[str]
    restriction: Restriction | None = None

    def __post_init__(self) -> None:
        for name in sorted(set(self.owners_may) - set(self.names)):
            raise SettingsError(
                "owners_may",
                "must name operations, by their ids in the OpenAPI document, or one field of an operation, as in "
                f"'update_chat.title'; there is no {name!r:.100}",
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all operations and fields."""
        return tuple(name for operation in self.operations.values() for name in operation.names)

    def allows(self, role: Role, name: str) -> bool:
        """Whether a role may use an operation or field."""
        operation, _, field = name.partition(".")
        if role != "owner":
            return role == "operator" or self.operations[operation].is_read
        if name in self.owners_may or (field and operation in self.owners_may and name not in APART):
            return True
        return not field and any(one in self.owners_may for one in self.operations[name].names)

    def refused_fields(self, role: Role, operation: str) -> list[str]:
        """Return the names of the fields and headers that a role may not use with an operation, or in vain."""
        one = self.operations[operation]
        refused = [field for field in one.fields if not self.allows(role, f"{operation}.{field}")]
        return refused if role == "operator" and not one.is_read else [*refused, ON_BEHALF_OF]

    async def check(self, principal: Principal, name: str, chat: Chat | None) -> None:
        """Raise `NotAllowed` unless the role and the application's `restriction` allow an operation or field."""
        operation, _, field = name.partition(".")
        what = f"the field {field!r} of {operation!r}" if field else repr(operation)
        if not self.allows(principal.role, name):
            roles = "'operator' or 'auditor'" if self.operations[operation].is_read else "'operator'"
            raise NotAllowed(principal.role, f"{roles} for {what}")
        if not await self._is_permitted(principal, name, chat):
            raise NotAllowed(principal.role, f"a permission of this service for {what}")

    async def permitted(self, principal: Principal) -> list[str]:
        """Return the names of the operations and fields that a principal may use, without regard to a chat."""
        allowed = [name for name in self.names if self.allows(principal.role, name)]
        return [name for name in allowed if await self._is_permitted(principal, name, None)]

    async def _is_permitted(self, principal: Principal, name: str, chat: Chat | None) -> bool:
        if self.restriction is None:
            return True
        try:
            answer = self.restriction(principal, name, chat)
            permitted: object = await answer if inspect.isawaitable(answer) else answer
        except TurnwiseError as error:  # a defect of the application, not an error of this request
            raise RuntimeError(f"policy failed: {error}") from error
        if not isinstance(permitted, bool):
            raise TypeError(f"policy returned {type_name(permitted)!r}; it has to return True or False")
        return permitted


class Choices(msgspec.Struct, frozen=True):
    """The models, parameters and tools that clients of a service may choose, operators included.

    The name of a model may hold an address, and options of its provider may hold headers and a whole other request: a
    free choice of them would send a stranger the provider's key and the agent's prompt. A tool that an agent's settings
    leave out stays unavailable to its chats, unless the application gives it to one.
    """

    engine: Engine
    models: frozenset[str]

    @classmethod
    def of(cls, engine: Engine, declared: Sequence[str]) -> Self:
        """Return the choice of the agents' own models, but for those whose names hold an address, and of others."""
        return cls(engine, frozenset(declared).union(name for name in engine.models if "://" not in name))

    def check(self, model: str | None, parameters: Mapping[str, Any] | None) -> None:
        """Refuse a model that the service does not declare, and options of its provider."""
        if model is not None and model not in self.models:
            names = ", ".join(map(repr, sorted(self.models)))
            allowed = f"must be one of {names}, or left out" if names else "must be left out: there is none to choose"
            raise SettingsError("model", f"{allowed}; it was {model!r:.100}")
        if parameters is not None and "provider_options" in parameters:
            raise SettingsError(
                "parameters['provider_options']", "must be left out: only the service's own agents have options there"
            )

    def check_tools(self, agent: str | None, active: Sequence[str] | None) -> None:
        """Refuse tools that the settings of the agent leave out."""
        if agent is None:  # the engine's only one, or else the one of that name
            only, *others = self.engine.agents
            agent = DEFAULT_AGENT if others else only
        left_out = self.engine.inactive_tools.get(agent, ())
        for name in active or ():
            if name in left_out:
                raise SettingsError(
                    "active_tools", f"must leave out {name!r:.100}, which the agent's own settings leave out"
                )

    def check_chat(self, chat: Chat) -> None:
        """Check the choices of an imported chat."""
        self.check(chat.model, chat.parameters)
        self.check_tools(chat.agent, chat.active_tools)
