"""Commands: the changes that a client may ask for, each one transaction on one chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from turnwise.engine import chat_ids
from turnwise.engine.blobs.allowed import parts_within
from turnwise.engine.blobs.sending import Sending
from turnwise.engine.commands.fork import fork_of
from turnwise.engine.commands.interrupt import interrupting
from turnwise.engine.commands.profile_changes import configuring, labelling
from turnwise.engine.config.results import Chat, SendReceipt, SubmissionReceipt, chat_of
from turnwise.engine.isolation.tasks import finish
from turnwise.engine.jobs.held_attempt import HeldAttempt
from turnwise.engine.subagents.family import is_wanted, stop_unless_it_stays, subagents_to_stop
from turnwise.engine.tools.edited_arguments import edited_arguments
from turnwise.engine.transactions.chat_writer import Change, UnitOfWork
from turnwise.engine.transactions.idempotency import (
    digest_of_parts,
    late_results,
    replayed_message,
    replayed_submission,
)
from turnwise.engine.transactions.runtime import Runtime
from turnwise.engine.worker.worker import Worker
from turnwise.persistence.protocol import ChatStore, Committed
from turnwise.states import triggers as t
from turnwise.states.calls import ToolResult
from turnwise.states.errors import (
    ChatArchived,
    ChatNotFound,
    DeadlineExpired,
    IllegalTransition,
    MessageNotFound,
    StoreError,
    ToolResultMismatch,
    TurnwiseError,
    VersionMismatch,
)
from turnwise.states.facts import Facts
from turnwise.states.messages import Content, Part
from turnwise.states.names import ChatState, WhenBusy
from turnwise.states.triggers import (
    DeadlinePassed,
    EditMessage,
    EditQueued,
    Interrupt,
    PromoteQueued,
    Resume,
    SendMessage,
    SubmitToolResults,
    Trigger,
)
from turnwise.states.values.digests import digest

if TYPE_CHECKING:
    from turnwise.engine.admin.admin import Admin

CLIENT: Final = "client"
"""The actor in the audit log if the caller names none."""


class Commands(msgspec.Struct, frozen=True):
    """Changes chats on behalf of `actor`. Without a worker, chats wait in `pending` for one elsewhere."""

    runtime: Runtime
    worker: Worker | None
    actor: str = CLIENT

    def acting(self, actor: str) -> Commands:
        """Return these commands on behalf of another actor."""
        return self if actor == self.actor else replace(self, actor=actor)

    @property
    def _store(self) -> ChatStore:
        return self.runtime.store

    def parts_of(self, content: Content) -> tuple[Part, ...]:
        """Return a client's content as parts.

        Raises:
            InvalidContent: it says nothing, cannot be stored, or is larger than a message may be.
        """
        return parts_within(self.runtime.settings, content)

    async def _accepted(self, sending: Sending, parts: tuple[Part, ...], client_id: str | None) -> tuple[Part, ...]:
        """Return the parts as they are stored, with large files as references.

        Raises:
            AcceptedBefore: a message of that `client_id` is stored: no file of this one is, whatever it says.
            InvalidContent: a file is not allowed.
            FileNotFound: the chat does not hold a file that is referred to.
        """
        has_new = any(map(self.runtime.files.is_inline, parts))
        if has_new and client_id is not None and await self._store.receipt(sending.chat_id, client_id) is not None:
            raise AcceptedBefore
        return await sending.accepted(parts)

    async def edit_queued(
        self, chat_id: str, queued_id: str, content: Content, *, if_version: int | None = None
    ) -> Chat:
        """Replace a queued message; it keeps its place."""
        parts = self.parts_of(content)
        async with Sending(self.runtime.files, chat_id) as sending:
            edit = EditQueued(queued_id=queued_id, parts=await sending.accepted(parts))
            return await self.change(chat_id, edit, if_version=if_version)

    async def create(self, begin: Change, *, chat_id: str | None = None, parent: tuple[str, int] | None = None) -> Chat:
        """Create a chat, of that id if one is given; `begin` fires `create`."""
        created = self.runtime.writer.create(chat_id or chat_ids.new_chat_id(), begin, actor=self.actor, parent=parent)
        return chat_of((await finish(created)).facts)

    async def fork(self, chat_id: str, at_version: int) -> Chat:
        """Create a chat that begins with another's history as of a version."""
        while True:
            # If something of it is erased before the fork is there, the history is read again: it would say it.
            with suppress(VersionMismatch):
                begin, parent = await fork_of(self._store, chat_id, at_version)
                return await self.create(begin, parent=parent)

    async def send(self, chat_id: str, content: Content, *, when_busy: WhenBusy, client_id: str | None) -> SendReceipt:
        """Accept a user message, once per `client_id`."""
        parts = self.parts_of(content)
        content_digest = None if client_id is None else digest_of_parts(parts)
        act = self._interrupting if when_busy == "interrupt" else self._act
        try:
            async with Sending(self.runtime.files, chat_id) as sending:
                message = SendMessage(
                    parts=await self._accepted(sending, parts, client_id),
                    when_busy=when_busy,
                    client_id=client_id,
                    content_digest=content_digest,
                    trace=self.runtime.observers.turn_trace(chat_id),
                )
                committed = await act(chat_id, message)
        except TurnwiseError as refusal:
            # What was accepted once has its receipt, on whatever ground the same message is refused now: the chat may
            # be archived or busy, and a store that lost its answer may have committed. It is asked for only here: the
            # store takes no `client_id` twice, so a new message need not be looked up first.
            return await replayed_message(self._store, chat_id, client_id, content_digest, refusal)
        accepted = committed.decisions[0].facts
        message_id = f"m{accepted.serial}"
        after = committed.facts
        queued = any(queued.id == message_id for queued in (after.queue[1:] if after.promote else after.queue))
        seq = committed.before.last_seq
        return SendReceipt(chat_of(committed.facts), message_id, queued=queued, replayed=False, seq=seq)

    async def submit(
        self, chat_id: str, results: Sequence[ToolResult], *, if_version: int | None = None
    ) -> SubmissionReceipt:
        """Accept a client's tool results, once."""
        copies = tuple(ToolResult(one.call_id, one.output, one.is_error) for one in results)

        def accept(unit: UnitOfWork) -> None:
            late = late_results(copies, unit.facts, unit.now)
            if late or unit.accepts(DeadlinePassed()):
                unit.fire(DeadlinePassed())  # no sweep has come by yet, so this commit expires the calls
            if not late:
                toolbox = self.runtime.agents.toolbox(unit.facts.profile_of_calls)
                limit = self.runtime.settings.message_limit_bytes
                edited = edited_arguments(toolbox, unit.facts.open_calls, copies, limit_bytes=limit)
                unit.fire(SubmitToolResults(results=copies, edited=edited))

        subagent = await self._store.facts(chat_id)
        if not await is_wanted(self._store, subagent):
            await self.acting(f"chat:{subagent.profile.parent}").stop_subagent(chat_id)
        try:
            committed = await self._act(chat_id, _at_version(if_version), accept)
        except (IllegalTransition, ToolResultMismatch, ChatArchived, VersionMismatch) as refusal:
            # Results that come again find their calls closed; the receipt is with these.
            return await replayed_submission(self._store, chat_id, copies, refusal)
        if late := late_results(copies, committed.before, committed.at):
            raise DeadlineExpired(late)
        accepted = next(one.facts for one in committed.decisions if one.trigger is t.SubmitToolResults)
        answers = [call.answer for result in copies if (call := accepted.calls.get(result.call_id)) and call.answer]
        return SubmissionReceipt(chat_of(committed.facts), answers[0].receipt_id, replayed=False)

    async def interrupt(self, chat_id: str, reason: str | None) -> Chat:
        """Interrupt a chat. Interrupting it again takes back a promotion that waits, and else changes nothing.

        With `Settings.promote_after_interrupt` it takes back none: the queue goes on after any interrupt.
        """

        def stop(unit: UnitOfWork) -> None:
            is_again = unit.facts.state is ChatState.interrupted
            if not is_again or (not unit.limits.promote_after_interrupt and unit.accepts(Interrupt())):
                unit.fire(Interrupt(), reason=reason)

        return chat_of((await self._interrupting(chat_id, stop)).facts)

    async def edit(
        self,
        chat_id: str,
        message_id: str,
        content: Content,
        *,
        client_id: str | None = None,
        if_version: int | None = None,
    ) -> Chat:
        """Replace a user message and cut what followed it, once per `client_id`."""
        parts = self.parts_of(content)
        content_digest = digest([message_id, digest_of_parts(parts)])
        try:
            async with Sending(self.runtime.files, chat_id) as sending:
                return await self._edit(
                    chat_id,
                    message_id,
                    _at_version(if_version),
                    parts=await self._accepted(sending, parts, client_id),
                    client_id=client_id,
                    content_digest=content_digest,
                )
        except TurnwiseError as refusal:
            return (await replayed_message(self._store, chat_id, client_id, content_digest, refusal)).chat

    async def _edit(
        self,
        chat_id: str,
        message_id: str,
        permission: Callable[[UnitOfWork], None],
        *,
        parts: tuple[Part, ...],
        client_id: str | None,
        content_digest: str,
    ) -> Chat:
        trace = self.runtime.observers.turn_trace(chat_id)
        while True:
            message_and_cut = await self._store.cut_at(chat_id, message_id)
            if message_and_cut is None or message_and_cut[0].role != "user" or message_and_cut[0].synthetic:
                await self._store.facts(chat_id)
                raise MessageNotFound(chat_id, message_id, expected="user message in its history")
            attempt = None if self.worker is None else self.worker.attempt_of(chat_id)
            edit = EditMessage(
                cut=message_and_cut[1],
                parts=parts,
                client_id=client_id,
                content_digest=content_digest,
                trace=trace,
                usage=None if attempt is None else attempt.usage,
            )

            # The cut was read outside the transaction: if the history has changed since, nothing fires and it is read
            # again.
            def rewrite(unit: UnitOfWork, edit: EditMessage = edit, attempt: HeldAttempt | None = attempt) -> None:
                if unit.facts.history_version == edit.cut.history_version:
                    goes_on = attempt is None or attempt.is_of(unit.facts.step)
                    unit.fire(edit if goes_on else replace(edit, usage=None))

            committed = await finish(self._act_and_stop_subagents(chat_id, permission, rewrite))
            if committed.decisions:
                return chat_of(committed.facts)

    async def _act_and_stop_subagents(self, chat_id: str, *changes: Change) -> Committed:
        committed = await self._act(chat_id, *changes)
        if committed.decisions:
            await self._stop_subagents(committed.before)
        return committed

    async def _stop_subagents(self, before: Facts) -> None:
        """Stop the subagents that a chat no longer waits for; if this fails, their workers will notice."""
        parent = self.acting(f"chat:{before.chat_id}")
        for subagent in subagents_to_stop(before):
            with suppress(ChatNotFound, StoreError):
                await parent.stop_subagent(subagent)

    async def stop_subagent(self, subagent: str) -> None:
        """Interrupt a subagent, unless it rests or is to work on alone."""
        await self._interrupting(subagent, stop_unless_it_stays)

    async def update(self, chat_id: str, labels: Mapping[str, Any], *, if_version: int | None) -> Chat:
        """Change the labels of a chat, and whether it is archived, all in one transaction; what is as given stays.

        Raises:
            SettingsError: nothing is given.
        """
        return chat_of((await self._act(chat_id, _at_version(if_version), labelling(labels))).facts)

    async def configure(self, chat_id: str, choices: Mapping[str, Any], *, if_version: int | None = None) -> Chat:
        """Change who answers in a chat, or how; what is not given stays.

        Raises:
            SettingsError: nothing is given, or there is no such agent, model, parameter or tool.
        """
        change = await configuring(self.runtime.agents, choices)
        return chat_of((await self._act(chat_id, _at_version(if_version), change)).facts)

    async def resume(self, chat_id: str) -> Chat:
        """Go on after an interrupt or an error."""
        return await self.change(chat_id, Resume(trace=self.runtime.observers.turn_trace(chat_id)))

    async def promote(self, chat_id: str, queued_id: str) -> Chat:
        """Move a queued message to the head and make it the next turn at once."""
        return chat_of((await self._interrupting(chat_id, PromoteQueued(queued_id=queued_id))).facts)

    @property
    def upkeep(self) -> Admin:
        """What can be done to a whole chat, on behalf of the same actor."""
        from turnwise.engine.admin.admin import Admin  # noqa: PLC0415 - takes long to import, and few chats need it

        return Admin(self.runtime, self._act, self.actor)

    async def change(self, chat_id: str, trigger: Trigger, *, if_version: int | None = None) -> Chat:
        """Fire one trigger in one transaction and return the chat."""
        return chat_of((await self._act(chat_id, _at_version(if_version), trigger)).facts)

    async def _act(self, chat_id: str, *changes: Change) -> Committed:
        if self.worker is not None:
            return await self.worker.act(chat_id, *changes, actor=self.actor)
        return await finish(self.runtime.writer.change(chat_id, *changes, actor=self.actor))

    async def _interrupting(self, chat_id: str, change: Change) -> Committed:
        stop = interrupting(self.runtime, self._act, chat_id, change, stop_subagents=self._stop_subagents)
        return await finish(stop)


class AcceptedBefore(TurnwiseError):
    """A message or an edit with this `client_id` was accepted before."""


def _at_version(if_version: int | None) -> Callable[[UnitOfWork], None]:
    """Return the change that refuses a chat which is at another version than the caller has seen."""

    def check(unit: UnitOfWork) -> None:
        if if_version is not None and unit.facts.version != if_version:
            raise VersionMismatch(unit.facts.chat_id, if_version, unit.facts.version)

    return check
