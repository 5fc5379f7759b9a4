"""Creates chats, once per `client_id`, and forks: new chats with their parent's history at a version."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from turnwise.engine import chat_ids
from turnwise.engine.blobs.sending import Sending
from turnwise.engine.blobs.streams import check_message
from turnwise.engine.config.results import Chat, chat_of
from turnwise.engine.config.settings import LONGEST
from turnwise.engine.prompt.imported_history import History, imported_history, inheritance_of
from turnwise.engine.prompt.imported_message import NO_REFERENCE
from turnwise.engine.tools.limited_checks import TO_DECLARE, limited
from turnwise.engine.tools.schemas import check_name, check_schema, check_valid
from turnwise.engine.transactions.chat_writer import Change, UnitOfWork
from turnwise.engine.transactions.idempotency import digest_of_parts, first_receipt
from turnwise.engine.transactions.runtime import Runtime
from turnwise.persistence.protocol import ChatStore
from turnwise.states.calls import ClientTool
from turnwise.states.errors import (
    ChatDeleted,
    ChatExists,
    ChatNotFound,
    ConflictingReplay,
    InvalidContent,
    SettingsError,
)
from turnwise.states.facts import Facts, Profile
from turnwise.states.messages import Content, FilePart, Message
from turnwise.states.names import Audience, Tail
from turnwise.states.triggers import Create, SendMessage
from turnwise.states.turn_limits import answer_accepted
from turnwise.states.values.checked import fit
from turnwise.states.values.limits import at_most


class ChatCreation(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a new chat, see `Chats.create_chat`."""

    runtime: Runtime
    actor: str
    system: str | None = None
    client_tools: Sequence[ClientTool] = ()
    owner: str | None = None
    title: str | None = None
    metadata: Mapping[str, Any] | None = None
    parent: str | None = None
    agent: str | None = None
    model: str | None = None
    parameters: Mapping[str, Any] | None = None
    active_tools: Sequence[str] | None = None
    history: History | None = None
    message: Content | None = None
    message_client_id: str | None = None
    client_id: str | None = None

    async def create(self) -> Chat:
        runtime = self.runtime
        limit = runtime.settings.message_limit_bytes
        fit("system", at_most(limit), self.system or "")
        history = () if self.history is None else self.history
        imported = imported_history(history, limit=limit, refusal=runtime.files.refusal)
        message = self._first_message()
        own_id = None if self.client_id is None else chat_ids.chat_id_for(self.owner, self.client_id)
        # A repeated request gets its chat, even if it would be refused now.
        if own_id is not None and (chat := await self._created_before(own_id, message)) is not None:
            return chat
        agent, client_tools = await self._chosen()

        def begin(unit: UnitOfWork) -> None:
            profile = self._profile(agent, client_tools, created_at=unit.now, imported=len(imported))
            inheritance = imported.inheritance(unit.now) if imported else None
            reason = f"imported messages: {len(imported)}" if imported else None
            unit.fire(Create(profile=profile, inheritance=inheritance), reason=reason)

        chat_id = own_id or chat_ids.new_chat_id()
        try:
            async with Sending(runtime.files, chat_id) as sending:
                imported = await imported.with_parts(sending.imported)
                if message is not None:
                    parts = await sending.imported(message.parts)
                    message = replace(message, parts=parts, trace=runtime.observers.turn_trace(chat_id))
                if message is None:
                    created = await runtime.writer.create(chat_id, begin, actor=self.actor)
                else:
                    created = await runtime.writer.create_and_adopt(chat_id, begin, message, actor=self.actor)
                return chat_of(created.facts)
        except ChatExists:
            chat = None if own_id is None else await self._created_before(own_id, message)
            if chat is None:
                raise
            return chat

    def _first_message(self) -> SendMessage | None:
        """Return the message to send, with its files not stored yet."""
        if self.message is None:
            return None
        try:
            parts = check_message(self.runtime.settings, self.message)
        except InvalidContent as error:
            raise InvalidContent(error.problem, argument="message") from None
        if any(isinstance(part, FilePart) and part.blob is not None for part in parts):
            raise InvalidContent(f"the first message of a chat {NO_REFERENCE}", argument="message")
        client_id = self.message_client_id or self.client_id
        content_digest = None if client_id is None else digest_of_parts(parts)
        return SendMessage(parts=parts, client_id=client_id, content_digest=content_digest)

    async def _created_before(self, chat_id: str, message: SendMessage | None) -> Chat | None:
        """Return the chat that the same request created; `None` if there is none."""
        store = self.runtime.store
        try:
            chat = chat_of(await store.facts(chat_id))
        except ChatDeleted:
            raise
        except ChatNotFound:
            return None
        if message is None:
            await store.confirm()
        elif await first_receipt(store, chat_id, message.client_id, message.content_digest) is None:
            raise ConflictingReplay(client_id=self.client_id)
        return chat

    async def _chosen(self) -> tuple[str, tuple[ClientTool, ...]]:
        """Return the agent and the client's tools, checked against each other and the chat's own choices."""
        agents = self.runtime.agents
        agent = agents.chosen(self.agent)
        client_tools = check_client_tools(self.client_tools)
        await agents.check(self.model, self.parameters)
        agents.check_client_tools(agent, client_tools)
        agents.check_active(agent, self.active_tools, client_tools)
        agents.check_tool_choice(agent, self.parameters, client_tools)
        agents.check_offer(agent, self.model, self.active_tools, self.parameters)
        if self.parent is not None:
            await self.runtime.store.facts(self.parent)
        return agent, client_tools

    def _profile(
        self, agent: str, client_tools: tuple[ClientTool, ...], *, created_at: datetime, imported: int
    ) -> Profile:
        given = {name: getattr(self, name) for name in _OF_PROFILE}
        own = {
            "created_at": created_at,
            "agent": agent,
            "parameters": None if self.parameters is None else dict(self.parameters),
            "active_tools": None if self.active_tools is None else tuple(self.active_tools),
            "client_tools": client_tools,
            "metadata": dict(self.metadata or {}),
            "imported": imported,
        }
        return Profile(**{**given, **own})


_OF_PROFILE: Final = frozenset(ChatCreation.__struct_fields__) & frozenset(Profile.__struct_fields__)
"""The fields that a profile takes over."""


def check_client_tools(tools: Sequence[ClientTool]) -> tuple[ClientTool, ...]:
    """Return the tools that a client declares, checked, except against the agent's tools."""
    taken: set[str] = set()
    with limited(TO_DECLARE):
        for tool in tools:
            _check(tool, taken)
            taken.add(tool.name)
    return tuple(tools)


def _check(tool: ClientTool, taken: Collection[str]) -> None:
    whose = f"client tool {tool.name!r}"
    check_name(whose, tool.name)
    if tool.name in taken:
        raise SettingsError(whose, "needs a name of its own; another tool has this one")
    check_schema(whose, tool.input_schema)
    if tool.output_schema is not None:
        check_valid(whose, tool.output_schema)
    if tool.deadline is not None and not 0 < tool.deadline <= LONGEST:
        raise SettingsError(
            whose, f"deadline must be above 0 s, and {LONGEST:.0f} s (30 years) at most; it was {tool.deadline}"
        )


async def fork_of(store: ChatStore, chat_id: str, at_version: int) -> tuple[Change, tuple[str, int]]:
    """Return the change that begins a fork of a chat, and the parent's id and version that was read."""
    facts = await store.facts(chat_id)
    records = await store.audit(chat_id)
    if not 1 <= at_version <= len(records):
        raise SettingsError("at_version", f"must be from 1 to {len(records)}; it was {at_version}")
    history = await store.history(chat_id, at_version=at_version)
    answered = await _is_answered_by_a_call(store, chat_id, history)
    fork = Fork(facts, history, at_version, records[at_version - 1].hash, answered_by_call=answered)
    return fork, (chat_id, facts.version)


class Fork(msgspec.Struct, frozen=True):
    """Creates a chat with the history of its parent at a version."""

    parent: Facts
    history: Sequence[Message]
    at_version: int
    hash: str
    """Of the parent's record of that version."""
    answered_by_call: bool
    """Whether the history ends with an answer that was given by a call."""

    def __call__(self, unit: UnitOfWork) -> None:
        parent, forked_from = self.parent, f"{self.at_version}:{self.hash}"
        profile = replace(
            parent.profile,
            created_at=unit.now,
            parent=parent.chat_id,
            ancestors=ancestors_of(parent.profile),
            forked_from=forked_from,
            parent_call=None,
            parent_version=None,
            detached=False,
            depth=0,
        )
        inheritance = inheritance_of(parent, self.history, unit.now)
        is_whole = len(inheritance.messages) == len(self.history)  # no call was open
        if is_whole and self.at_version >= parent.history_version:
            inheritance = replace(inheritance, tail=parent.history.tail)  # messages do not always show it
        elif is_whole and self.answered_by_call and inheritance.tail is Tail.awaits_answer:
            inheritance = replace(inheritance, tail=Tail.answered)
        reason = f"fork of {parent.chat_id} at version {self.at_version}, {forked_from}"
        unit.fire(Create(profile=profile, inheritance=inheritance), reason=reason)


async def _is_answered_by_a_call(store: ChatStore, chat_id: str, history: Sequence[Message]) -> bool:
    """Return whether a history ends with the results of a step that gave the turn's answer by a call."""
    last = next((message for message in reversed(history) if message.audience is Audience.everyone), None)
    if last is None or last.result is None:
        return False
    results = [message.result for message in history if message.step == last.step and message.result is not None]
    calls = await store.calls(chat_id, [result.call_id for result in results])
    return answer_accepted(calls.values())


def ancestors_of(parent: Profile) -> tuple[str, ...]:
    """Return the chats above the parent of a fork that its history may come from."""
    above = parent.parent if parent.forked_from is not None else None
    return () if above is None else (above, *parent.ancestors)
