"""Commands: every change that a client may ask for, each one transaction on one chat."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack, get_args

from turnwise.engine.apply import Chain, Script
from turnwise.engine.chat import Chat, SendReceipt, SubmissionReceipt, chat_of
from turnwise.engine.fork import inheritance_of
from turnwise.engine.hold import Desk
from turnwise.engine.reply import shown_reply
from turnwise.engine.settings import LONGEST
from turnwise.engine.views import erased
from turnwise.engine.worker import Worker
from turnwise.persistence.protocol import ChatStore, Committed
from turnwise.states.arguments import Arguments
from turnwise.states.calls import ClientTool, ToolResult
from turnwise.states.digests import as_json, canonical, digest, digest_of_answer
from turnwise.states.errors import (
    ConflictingReplay,
    DeadlineExpired,
    IllegalTransition,
    InvalidContent,
    MessageNotFound,
    SettingsError,
    ToolResultMismatch,
    TurnwiseError,
)
from turnwise.states.facts import Profile
from turnwise.states.messages import Content, Message, Part, parts_of
from turnwise.states.names import CallStatus, ChatState, Trigger, WhenBusy

CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Commands:
    """Changes chats on behalf of clients. Without a worker, chats wait in `pending` for one elsewhere."""

    desk: Desk
    worker: Worker | None

    @property
    def _store(self) -> ChatStore:
        return self.desk.store

    async def create(self, profile: Callable[[Chain], Profile]) -> Chat:
        """Create a chat."""
        committed = await self.desk.applier.create(
            new_chat_id(), lambda chain: chain.fire(Trigger.create, profile=profile(chain)), actor=CLIENT
        )
        return chat_of(committed.facts)

    async def fork(self, chat_id: str, at_version: int) -> Chat:
        """Create a chat that begins with another's history as of a version."""
        facts = await self._store.facts(chat_id)
        records = await self._store.audit(chat_id)
        if not 1 <= at_version <= len(records):
            raise SettingsError("at_version", f"must be from 1 to {len(records)}; it was {at_version}")
        history = await self._store.history(chat_id, at_version=at_version)

        def script(chain: Chain) -> None:
            profile = dataclasses.replace(
                facts.profile,
                created_at=chain.now,
                parent=chat_id,
                forked_from=f"{at_version}:{records[at_version - 1].hash}",
            )
            chain.fire(
                Trigger.create,
                profile=profile,
                inheritance=inheritance_of(facts, history, chain.now),
                reason=f"fork of {chat_id} at version {at_version}, {profile.forked_from}",
            )

        return chat_of((await self.desk.applier.create(new_chat_id(), script, actor=CLIENT)).facts)

    async def send(self, chat_id: str, content: Content, *, when_busy: WhenBusy, client_id: str | None) -> SendReceipt:
        """Accept a user message, once per `client_id`."""
        if when_busy not in get_args(WhenBusy):
            raise SettingsError("when_busy", f"must be one of {', '.join(get_args(WhenBusy))}; it was {when_busy!r}")
        parts = parts_of(content)
        content_digest = digest_of_parts(parts)
        canonical(client_id)

        def script(chain: Chain) -> None:
            chain.fire(
                Trigger.send_message,
                parts=parts,
                when_busy=when_busy,
                client_id=client_id,
                content_digest=content_digest,
            )

        try:
            committed = (
                await self._disturb(chat_id, script) if when_busy == "interrupt" else await self._act(chat_id, script)
            )
        except TurnwiseError:
            replayed = None if client_id is None else await self._replayed_message(chat_id, client_id, content_digest)
            if replayed is None:
                raise
            return replayed
        accepted = committed.decisions[0].facts
        message_id = f"m{accepted.serial}"
        queued = any(queued.id == message_id for queued in accepted.queue)
        return SendReceipt(chat_of(committed.facts), message_id, queued=queued, replayed=False)

    async def submit(self, chat_id: str, results: Sequence[ToolResult]) -> SubmissionReceipt:
        """Accept a client's tool results, once."""
        given = tuple(_as_json(result) for result in results)
        try:
            committed = await self.act(chat_id, Trigger.submit_tool_results, results=given)
        except (IllegalTransition, ToolResultMismatch) as refusal:
            return await self._replayed_submission(chat_id, given, refusal)
        accepted = committed.decisions[0].facts
        receipt_id = next(
            call.answer.receipt_id for call in accepted.calls if call.answer and call.call_id == given[0].call_id
        )
        return SubmissionReceipt(chat_of(committed.facts), receipt_id, replayed=False)

    async def interrupt(self, chat_id: str, reason: str | None) -> Chat:
        """Say stop. Saying it again changes nothing."""

        def script(chain: Chain) -> None:
            if chain.facts.state is not ChatState.interrupted:
                chain.fire(Trigger.interrupt, reason=reason)

        return chat_of((await self._disturb(chat_id, script)).facts)

    async def edit(self, chat_id: str, message_id: str, content: Content) -> Chat:
        """Replace a user message and cut what followed it."""
        parts = parts_of(content)
        while True:
            found = await self._store.cut_at(chat_id, message_id)
            if found is None or found[0].role != "user" or found[0].synthetic:
                await self._store.facts(chat_id)
                raise MessageNotFound(chat_id, message_id, expected="user message in its history")
            cut = found[1]

            def script(chain: Chain, cut: Any = cut) -> None:
                if chain.facts.history_version == cut.history_version:
                    chain.fire(Trigger.edit_message, cut=cut, parts=parts)

            committed = await self._act(chat_id, script)
            if committed.decisions:
                return chat_of(committed.facts)

    async def promote(self, chat_id: str, queued_id: str) -> Chat:
        """Move a queued message to the head and make it the next turn at once."""
        committed = await self._disturb(chat_id, lambda chain: chain.fire(Trigger.promote_queued, queued_id=queued_id))
        return chat_of(committed.facts)

    async def erase(self, chat_id: str, message_id: str) -> Chat:
        """Blank a message's payload."""
        while True:
            known = (await self._store.facts(chat_id)).history_version
            history = await self._store.history(chat_id)
            message = next((message for message in history if message.id == message_id), None)
            if message is None:
                raise MessageNotFound(chat_id, message_id, expected="message in its history")
            blank = erased(message)

            def script(chain: Chain, known: int = known, blank: Message = blank) -> None:
                if chain.facts.history_version == known:
                    chain.fire(Trigger.message_erased, erased=blank)

            committed = await self._act(chat_id, script)
            if committed.decisions:
                return chat_of(committed.facts)

    async def change(self, chat_id: str, trigger: Trigger, **arguments: Unpack[Arguments]) -> Chat:
        """Fire one trigger and return the chat."""
        return chat_of((await self.act(chat_id, trigger, **arguments)).facts)

    async def act(self, chat_id: str, trigger: Trigger, **arguments: Unpack[Arguments]) -> Committed:
        """Fire one trigger in one transaction."""
        return await self._act(chat_id, lambda chain: chain.fire(trigger, **arguments))

    async def _act(self, chat_id: str, script: Script) -> Committed:
        if self.worker is not None:
            return await self.worker.act(chat_id, script, actor=CLIENT)
        return await self.desk.applier.change(chat_id, script, actor=CLIENT)

    async def _disturb(self, chat_id: str, script: Script) -> Committed:
        """Run a script that may interrupt. Where nobody holds the chat it is settled in the same transaction."""
        while True:
            facts = await self._store.facts(chat_id)
            partial = await shown_reply(self._store, facts, self.desk.toolbox) if facts.lease is None else None
            shown = (partial.step, partial.attempt) if partial is not None else None
            overtaken = False

            def whole(chain: Chain, partial: Any = partial, shown: Any = shown) -> None:
                nonlocal overtaken
                before = chain.facts
                overtaken = before.lease is None and before.step.attempt_open and shown != _attempt(before)
                if overtaken:
                    return
                script(chain)
                after = chain.facts
                stopped = bool(chain.decisions) and after.state is ChatState.interrupted
                if stopped and not after.settled and after.lease is None:
                    chain.fire(Trigger.settled, partial=partial)

            committed = await self._act(chat_id, whole)
            if not overtaken:
                return committed

    async def _replayed_message(self, chat_id: str, client_id: str, content_digest: str) -> SendReceipt | None:
        receipt = await self._store.receipt(chat_id, client_id)
        if receipt is None:
            return None
        if receipt.content_digest != content_digest:
            raise ConflictingReplay(client_id=client_id)
        chat = chat_of(await self._store.facts(chat_id))
        return SendReceipt(chat, receipt.message_id, queued=receipt.queued, replayed=True)

    async def _replayed_submission(
        self, chat_id: str, results: Sequence[ToolResult], refusal: TurnwiseError
    ) -> SubmissionReceipt:
        """Return the first receipt if exactly this was accepted before; else say what is wrong."""
        calls = await self._store.calls(chat_id, [result.call_id for result in results])
        known = [(result, calls[result.call_id]) for result in results if result.call_id in calls]
        if not known or len({result.call_id for result in results}) != len(results) or len(known) != len(results):
            raise refusal
        expired = [call.call_id for _, call in known if call.status is CallStatus.timed_out]
        for result, call in known:
            if call.answer is None and (call.open or not call.is_client):
                raise refusal
            if call.answer is None and call.status is not CallStatus.timed_out:
                raise ConflictingReplay(call_id=call.call_id, outcome=call.status)
            if call.answer and call.answer.digest != digest_of_answer(result.output, is_error=result.is_error):
                raise ConflictingReplay(call_id=call.call_id)
        if expired:
            raise DeadlineExpired(expired)
        first = next(call.answer for _, call in known if call.answer)
        return SubmissionReceipt(chat_of(await self._store.facts(chat_id)), first.receipt_id, replayed=True)


def new_chat_id() -> str:
    """Return an id that no chat has. Ids rise with time, so that chats of one hour lie together on the disk."""
    return f"c{time.time_ns() // 1_000_000:011x}{secrets.token_hex(7)}"


def digest_of_parts(parts: Sequence[Part]) -> str:
    """Return the digest by which a repeated message is recognised."""
    return digest([part.model_dump(mode="json") for part in parts])


def check_client_tools(tools: Sequence[ClientTool], local: Mapping[str, Any]) -> tuple[ClientTool, ...]:
    """Check what a client declares.

    Raises:
        SettingsError: a name is taken or given twice, a schema is no object schema, a deadline is not positive.
    """
    seen: set[str] = set()
    for tool in tools:
        if tool.name in local or tool.name in seen:
            raise SettingsError(f"client tool {tool.name!r}", "needs a name of its own; another tool has this one")
        if not isinstance(tool.input_schema, Mapping) or tool.input_schema.get("type") != "object":
            raise SettingsError(
                f"client tool {tool.name!r}", 'needs a JSON schema of type "object", e.g. {"type": "object"}'
            )
        if tool.deadline is not None and not 0 < tool.deadline <= LONGEST:
            raise SettingsError(
                f"client tool {tool.name!r}",
                f"deadline must be above 0 s, and {LONGEST:.0f} s (30 years) at most; it was {tool.deadline}",
            )
        seen.add(tool.name)
    return tuple(tools)


def _attempt(facts: Any) -> tuple[int, int]:
    return facts.step.number, facts.step.attempt


def _as_json(result: ToolResult) -> ToolResult:
    try:
        return ToolResult(result.call_id, as_json(result.output), result.is_error)
    except InvalidContent as error:
        raise InvalidContent(f"the output of call {result.call_id!r}: {error.problem}") from error
