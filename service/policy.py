"""The policy: which operations of the service a principal may do, and with which fields."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from turnwise.engine.results import Chat
from turnwise.service.auth import Principal, Role
from turnwise.service.problems import NotAllowed
from turnwise.states.errors import SettingsError, TurnwiseError
from turnwise.states.plain import type_name

Narrowing = Callable[[Principal, str, Chat | None], bool | Awaitable[bool]]
"""Returns whether a principal may do an operation, or use a field of it, that its role allows; of a chat that the
request names and the principal may see."""

OWNERS_MAY: Final = frozenset(
    {
        "create_chat.title",
        "create_chat.agent",
        "list_chats",
        "list_ids",
        "list_agents",
        "read_principal",
        "get_chat",
        "list_messages",
        "read_transcript",
        "stream_events",
        "list_queue",
        "list_compactions",
        "list_helpers",
        "read_audit",
        "verify",
        "read_usage",
        "read_family_usage",
        "read_argument_schemas",
        "explain",
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
        "fork",
        "edit_queued",
        "delete_queued",
        "promote_queued",
        "run_agui",
        "run_agui.tools",
        "chat_ai_sdk",
        "chat_ai_sdk.client_tools",
        "list_ui_messages",
        "resume_ai_sdk",
    }
)
"""What owners may do with their own chats unless the settings say otherwise.

The name of an operation is its id in the OpenAPI document. It allows the operation with all of its fields but those of
`APART`; `operation.field` allows it with that field.
"""
APART: Final = frozenset({"create_chat.owner", "list_messages.view", "run_agui.tools", "chat_ai_sdk.client_tools"})
"""Fields that the name of their operation does not allow: another owner of a chat, the views of a history that are not
the user's, and the tools that a front end's page brings along."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as the policy knows it."""

    name: str
    is_read: bool
    """Whether it changes nothing."""
    fields: Mapping[str, Field]
    """Those that have a name of their own: the optional ones of its body, and those of `APART`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the operation and of its fields."""
        return (self.name, *(f"{self.name}.{field}" for field in self.fields))

    def used_in(self, body: Mapping[str, Any]) -> Iterator[str]:
        """Yield the names of the fields that the body of a request uses."""
        for name, field in self.fields.items():
            keys = {name, field.other_key or name}
            if any(not field.is_usual(body[key]) for key in keys & body.keys()):
                yield f"{self.name}.{name}"


@dataclass(frozen=True, slots=True)
class Field:
    """An optional field of a request."""

    usual: object
    """Its default, which says no more than its absence."""
    is_change: bool = False
    """Whether every value says something: the field's absence leaves what there is."""
    other_key: str | None = None
    """Another key under which a body may hold it."""

    def is_usual(self, value: object) -> bool:
        """Return whether a value says no more than the field's absence."""
        return not self.is_change and (value is None or value == self.usual)


@dataclass(frozen=True, slots=True)
class Policy:
    """Who may do what. An operator may do everything, an auditor what only reads, an owner what the settings name.

    Raises:
        SettingsError: `owners_may` names an operation or a field that there is not.
    """

    operations: Mapping[str, Operation]
    owners_may: Collection[str]
    narrowing: Narrowing | None = None

    def __post_init__(self) -> None:
        for name in sorted(set(self.owners_may) - set(self.names)):
            raise SettingsError(
                "owners_may",
                "must name operations, by their ids in the OpenAPI document, or one field of an operation, as in "
                f"'update_chat.title'; there is no {name!r:.100}",
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all operations, and of their fields."""
        return tuple(name for operation in self.operations.values() for name in operation.names)

    def allows(self, role: Role, name: str) -> bool:
        """Return whether a role may do an operation, or use a field of it."""
        operation, _, field = name.partition(".")
        if role != "owner":
            return role == "operator" or self.operations[operation].is_read
        if name in self.owners_may or (field and operation in self.owners_may and name not in APART):
            return True
        return not field and any(one in self.owners_may for one in self.operations[name].names)

    def refused_fields(self, role: Role, operation: str) -> list[str]:
        """Return the fields of an operation that a role may not use."""
        fields = self.operations[operation].fields
        return [field for field in fields if not self.allows(role, f"{operation}.{field}")]

    async def check(self, principal: Principal, name: str, chat: Chat | None) -> None:
        """Check that a principal may do an operation, or use a field of it.

        Args:
            principal: who.
            name: of the operation or field.
            chat: the one that the request names, if the principal may see it.

        Raises:
            NotAllowed: the role does not allow it, or the narrowing function.
        """
        operation, _, field = name.partition(".")
        what = f"the field {field!r} of {operation!r}" if field else repr(operation)
        if not self.allows(principal.role, name):
            roles = "'operator' or 'auditor'" if self.operations[operation].is_read else "'operator'"
            raise NotAllowed(principal.role, f"{roles} for {what}")
        if not await self._is_permitted(principal, name, chat):
            raise NotAllowed(principal.role, f"a permission of this service for {what}")

    async def permitted(self, principal: Principal) -> list[str]:
        """Return the names of what a principal may do, as far as that does not depend on a chat."""
        allowed = [name for name in self.names if self.allows(principal.role, name)]
        return [name for name in allowed if await self._is_permitted(principal, name, None)]

    async def _is_permitted(self, principal: Principal, name: str, chat: Chat | None) -> bool:
        if self.narrowing is None:
            return True
        try:
            answer = self.narrowing(principal, name, chat)
            permitted: object = await answer if inspect.isawaitable(answer) else answer
        except TurnwiseError as error:  # a problem of a request to turnwise; here it is one of the application's code
            raise RuntimeError(f"policy failed: {error}") from error
        if not isinstance(permitted, bool):
            raise TypeError(f"policy returned {type_name(permitted)!r}; it has to return True or False")
        return permitted
