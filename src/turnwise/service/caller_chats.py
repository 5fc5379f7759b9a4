"""The chats that the caller of a request may see and change: overrides hold the differences between roles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from turnwise.engine.admin.erase import Erasure
from turnwise.engine.admin.explain import Explanation
from turnwise.engine.chat_ids import chat_id_for
from turnwise.engine.chats.declaration import CommandCall, changes_of
from turnwise.engine.commands.acting import ActingChats
from turnwise.engine.config.results import Chat, Page, SubmissionReceipt
from turnwise.persistence.tombstone import Tombstone
from turnwise.service.caller import Caller
from turnwise.service.pages import chat_at, first_page, list_position
from turnwise.service.problems import rest_of_request
from turnwise.states.calls import ToolResult
from turnwise.states.errors import ChatDeleted, ChatNotFound, InvalidContent
from turnwise.states.messages import Content
from turnwise.states.names import Audience

_MOST_CHATS: Final = 1000
"""The most chats of a page, which may be large each."""
_UNREADABLE_TOO: Final = frozenset({"erase", "explain", "repair", "subagents", "verify"})
"""Commands that take a chat that cannot be read, too."""


class CallerChats(ActingChats):
    """The chats of an engine, with the caller as the actor. A chat that the caller may not see is not found."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller.engine, caller.actor)
        self._caller = caller

    async def _run(self, call: CommandCall) -> Any:
        arguments = call.arguments
        chat_id, is_list = arguments.get("chat_id"), call.command.is_read and "owner" in arguments
        if chat_id is not None:  # commands without one are about all chats: of those, owners may use lists alone
            await (self._caller.check_sees if call.command.name in _UNREADABLE_TOO else self._caller.chat)(chat_id)
        if is_list and (chat_id is None or arguments["owner"] is not None):
            call = replace(call, arguments={**arguments, "owner": self._list_owner(arguments["owner"])})
        return await super()._run(call)

    async def list_chats(
        self, *, owner: str | None = None, limit: int = 50, after: str | None = None, **wanted: Any
    ) -> Page[Chat]:
        """List chats, newest first, a page at a time."""
        before = None if after is None else await chat_at(self._caller, after)
        page = await self._caller.engine.list_chats(
            owner=self._list_owner(owner), limit=min(limit, _MOST_CHATS), after=before, **wanted
        )
        items = first_page(page.items)
        has_more = page.next is not None or len(items) < len(page.items)
        return Page(items, list_position(items[-1].id, items[-1].created_at) if has_more else None)

    def _list_owner(self, owner: str | None) -> str | None:
        """Return the owner whose chats are listed. Owners see their own only."""
        return owner if self._caller.principal.sees_all else self._caller.principal.name

    async def create_chat(
        self, *, owner: str | None = None, message: Content | None = None, client_id: str | None = None, **fields: Any
    ) -> Chat:
        """Create a chat, and send its first message, if one is given.

        An owner's chats are its own; an operator may name another owner, or none.

        The same `Idempotency-Key` for the same owner creates and sends nothing again: the answer is the chat that there
        is, or 409 if its first message is another.
        """
        caller = self._caller
        if message is not None:
            await caller.check("send_message")
        whose = owner if caller.principal.sees_all or owner is not None else caller.principal.name
        chat = None if client_id is None else await self._created_before(chat_id_for(whose, client_id))
        if chat is not None:  # with the same message, or else it is refused
            key = fields.get("message_client_id")
            return await caller.chats.create_chat(
                owner=whose, message=message, message_client_id=key, client_id=client_id
            )
        if (parent := fields.get("parent")) is not None:
            await caller.chat(parent)
        caller.service.choices.check(fields.get("model"), fields.get("parameters"))
        caller.service.choices.check_tools(fields.get("agent"), fields.get("active_tools"))
        if (history := fields.get("history")) is not None and not caller.principal.sees_all:
            _check_shown(history)
        return await caller.chats.create_chat(owner=whose, message=message, client_id=client_id, **fields)

    async def _created_before(self, chat_id: str) -> Chat | None:
        """Return the chat of an earlier request, even if it would be refused now."""
        try:
            return await self._caller.engine.get_chat(chat_id)
        except ChatDeleted:
            raise
        except ChatNotFound:
            return None

    async def configure(self, chat_id: str, *, if_version: int | None = None, **fields: Any) -> Chat:
        """Change who answers, or how, from the next model call on."""
        caller, chat = self._caller, await self._caller.chat(chat_id)
        changes = changes_of(**fields)
        caller.service.choices.check(changes.get("model"), changes.get("parameters"))

        async def configured(seen: Chat, version: int) -> Chat:
            caller.service.choices.check_tools(changes.get("agent") or seen.agent, changes.get("active_tools"))
            return await caller.chats.configure(chat_id, **changes, if_version=version)

        return await caller.as_seen(chat, configured, if_version=if_version)

    async def subagents(self, chat_id: str) -> list[Chat]:
        """List the chats to which the chat has delegated calls."""
        return [chat for chat in await super().subagents(chat_id) if self._caller.sees(chat)]

    async def submit_tool_results(
        self, chat_id: str, results: Sequence[ToolResult], *, if_version: int | None = None
    ) -> SubmissionReceipt:
        """Answer all open calls of the client, once."""
        return await self._caller.submit(await self._caller.chat(chat_id), results, if_version=if_version)

    async def erase(self, chat_id: str, **wanted: Any) -> Erasure:
        """Erase messages, or whole kinds of content, for good. The audit log still verifies."""
        erasure = await super().erase(chat_id, **wanted)
        with rest_of_request():
            return replace(erasure, forks=await self._caller.filter_visible(erasure.forks))

    async def delete_chat(self, chat_id: str, *, if_version: int | None = None) -> Tombstone:
        """Delete a resting chat, or one that cannot be read, for good, and return what is left of it."""
        caller = self._caller
        with suppress(ChatDeleted):  # an operator gets the same tombstone again
            await caller.check_sees(chat_id)
        left = await caller.chats.delete_chat(chat_id, if_version=if_version)
        with rest_of_request():
            return replace(
                left, forks=await caller.filter_visible(left.forks), children=await caller.filter_visible(left.children)
            )

    async def tombstone(self, chat_id: str) -> Tombstone | None:
        """Return the tombstone of a deleted chat, for operators and auditors; `null` if the chat still exists."""
        if self._caller.principal.sees_all:
            return await self._caller.engine.tombstone(chat_id)
        await self._caller.check_sees(chat_id)
        return None

    async def explain(self, chat_id: str) -> Explanation:
        """Return where the chat stands, and why it is not moving; operators also get a provider's own error."""
        explained = await super().explain(chat_id)
        if explained.last_error is None or self._caller.principal.sees_all:
            return explained
        return replace(explained, last_error=explained.last_error.public)


def _check_shown(history: Sequence[Any]) -> None:
    """Refuse messages and fields of an owner's history that users cannot see."""
    for place, message in enumerate(history):
        if message.get("audience") == Audience.model:
            problem = f"history[{place}].audience: must not be 'model': only an operator may say what users do not see"
            raise InvalidContent(problem, argument=f"history[{place}].audience")
        parts = message.get("parts")
        hidden = [name for part in (parts if isinstance(parts, list) else ()) for name in _find_hidden(part)]
        if hidden:
            problem = f"history[{place}].parts: must not have {hidden[0]!r}, which is the provider's own; leave it out"
            raise InvalidContent(problem, argument=f"history[{place}].parts")


def _find_hidden(part: Any) -> Iterator[str]:
    """Yield the names of the fields of a part, and of its files, that clients do not get."""
    if isinstance(part, dict):
        yield from (name for name in ("metadata", "signature") if part.get(name) is not None)
        attachments = part.get("attachments")
        for file in attachments if isinstance(attachments, list) else ():
            yield from _find_hidden(file)
