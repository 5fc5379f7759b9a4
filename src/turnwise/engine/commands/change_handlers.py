"""Handlers of the methods that change one chat: each is one transaction, on behalf of one actor."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from msgspec.structs import replace

from turnwise.engine import chat_ids
from turnwise.engine.blobs.sending import Sending
from turnwise.engine.blobs.streams import parts_within
from turnwise.engine.commands.create import fork_of
from turnwise.engine.commands.interrupt import Interrupter
from turnwise.engine.commands.report_handlers import ReportHandlers
from turnwise.engine.commands.submission import Submission
from turnwise.engine.config.results import Chat, SendReceipt, SubmissionReceipt, chat_of
from turnwise.engine.isolation.tasks import Lifetime, run_shielded
from turnwise.engine.jobs.held_attempt import HeldAttempt
from turnwise.engine.subagents.family import is_wanted, stop_unless_it_stays
from turnwise.engine.subscriptions.broadcast import Broadcaster
from turnwise.engine.transactions.chat_writer import Change, UnitOfWork
from turnwise.engine.transactions.idempotency import (
    digest_of_parts,
    first_receipt,
    late_results,
    replayed_submission,
)
from turnwise.engine.transactions.runtime import Runtime
from turnwise.engine.transactions.schedules import Scheduler
from turnwise.engine.worker.worker import Worker
from turnwise.persistence.protocol import Committed, DuplicateReceipt
from turnwise.states import triggers as t
from turnwise.states.arguments import Cut
from turnwise.states.calls import ToolResult
from turnwise.states.errors import (
    ChatArchived,
    ChatBusy,
    DeadlineExpired,
    IllegalTransition,
    MessageNotFound,
    QueueFull,
    ToolResultMismatch,
    VersionMismatch,
)
from turnwise.states.messages import Content, FilePart, Part, QueuedMessage, ScheduledMessage
from turnwise.states.names import ChatState, WhenBusy
from turnwise.states.triggers import (
    ClearContext,
    DeleteQueued,
    EditMessage,
    EditQueued,
    Interrupt,
    PromoteQueued,
    RequestCompaction,
    Resume,
    SendMessage,
    Unschedule,
)
from turnwise.states.values.digests import digest

if TYPE_CHECKING:
    from turnwise.engine.admin.admin import Admin

CLIENT: Final = "client"
"""The actor in the audit log if the caller names none."""


class ChangeHandlers(ReportHandlers):
    """The methods that change one chat. Without a worker, chats wait in `pending` for one elsewhere."""

    def __init__(
        self,
        runtime: Runtime,
        worker: Worker | None,
        broadcaster: Broadcaster,
        lifetime: Lifetime,
        actor: str = CLIENT,
    ) -> None:
        super().__init__(runtime, broadcaster, lifetime)
        self._worker = worker
        self._actor = actor

    async def fork(self, chat_id: str, *, at_version: int) -> Chat:
        while True:
            # After an erasure before the commit the history is read again: the fork would hold the erased content.
            with suppress(VersionMismatch):
                begin, parent = await fork_of(self._store, chat_id, at_version)
                forked = self._runtime.writer.create(chat_ids.new_chat_id(), begin, actor=self._actor, parent=parent)
                return chat_of((await forked).facts)

    async def send_message(
        self, chat_id: str, content: Content, *, when_busy: WhenBusy = "queue", client_id: str | None = None
    ) -> SendReceipt:
        parts = self._parts_of(content)
        content_digest = None if client_id is None else digest_of_parts(parts)
        change = self._interrupter.interrupt if when_busy == "interrupt" else self._change
        if first := await first_receipt(self._store, chat_id, client_id, content_digest):
            return first
        try:
            async with Sending(self._runtime.files, chat_id) as sending:
                message = SendMessage(
                    parts=await sending.store_parts(parts),
                    when_busy=when_busy,
                    client_id=client_id,
                    content_digest=content_digest,
                    trace=self._runtime.observers.turn_trace(chat_id),
                )
                committed = await change(chat_id, message)
        except (DuplicateReceipt, ChatBusy, QueueFull):  # perhaps because of a concurrent copy of the request
            if first := await first_receipt(self._store, chat_id, client_id, content_digest):
                return first
            raise
        accepted = committed.decisions[0].facts
        message_id = f"m{accepted.serial}"
        after = committed.facts
        queued = any(queued.id == message_id for queued in (after.queue[1:] if after.promote else after.queue))
        seq = committed.before.last_seq
        return SendReceipt(chat_of(committed.facts), message_id, queued=queued, replayed=False, seq=seq)

    async def submit_tool_results(
        self, chat_id: str, results: Sequence[ToolResult], *, if_version: int | None = None
    ) -> SubmissionReceipt:
        copies = tuple(map(self._checked_result, results))
        subagent = await self._store.facts(chat_id)
        if not await is_wanted(self._store, subagent):
            parent = Interrupter(self._runtime, f"chat:{subagent.profile.parent}")
            await parent.interrupt(chat_id, stop_unless_it_stays)
        try:
            async with Sending(self._runtime.files, chat_id) as sending:
                stored = [replace(one, attachments=await sending.store_parts(one.attachments)) for one in copies]
                submission = Submission(tuple(stored), self._runtime)
                committed = await self._change(chat_id, AtVersion(if_version), submission)
        except (IllegalTransition, ToolResultMismatch, ChatArchived, VersionMismatch) as refusal:
            # Results that come again find their calls closed; the calls have the receipt.
            return await replayed_submission(self._store, chat_id, copies, refusal)
        if late := late_results(copies, committed.before, committed.at):
            raise DeadlineExpired(late)
        accepted = next(one.facts for one in committed.decisions if one.trigger is t.SubmitToolResults)
        answers = [call.answer for result in copies if (call := accepted.calls.get(result.call_id)) and call.answer]
        return SubmissionReceipt(chat_of(committed.facts), answers[0].receipt_id, replayed=False)

    def _checked_result(self, result: ToolResult) -> ToolResult:
        files = self._parts_of(result.attachments) if result.attachments else ()
        return ToolResult(result.call_id, result.output, result.is_error, cast("tuple[FilePart, ...]", files))

    async def interrupt(self, chat_id: str, *, reason: str | None = None) -> Chat:
        """Interrupt a chat. A second interrupt only cancels a waiting promotion.

        With `Settings.promote_after_interrupt` it cancels none: the queue goes on after any interrupt.
        """
        return chat_of((await self._interrupter.interrupt(chat_id, partial(_interrupt_once, reason))).facts)

    async def resume(self, chat_id: str) -> Chat:
        return await self._changed(chat_id, Resume(trace=self._runtime.observers.turn_trace(chat_id)))

    async def edit_message(
        self,
        chat_id: str,
        message_id: str,
        content: Content,
        *,
        client_id: str | None = None,
        if_version: int | None = None,
    ) -> Chat:
        parts = self._parts_of(content)
        content_digest = digest([message_id, digest_of_parts(parts)])
        if first := await first_receipt(self._store, chat_id, client_id, content_digest):
            return first.chat
        try:
            async with Sending(self._runtime.files, chat_id) as sending:
                accepted, trace = await sending.store_parts(parts), self._runtime.observers.turn_trace(chat_id)
                while True:  # until the history stays unchanged between the reading of the cut and the commit
                    attempt = None if self._worker is None else self._worker.attempt_of(chat_id)
                    edit = EditMessage(
                        cut=await self._cut_at(chat_id, message_id),
                        parts=accepted,
                        client_id=client_id,
                        content_digest=content_digest,
                        trace=trace,
                        usage=None if attempt is None else attempt.usage,
                    )
                    changes = AtVersion(if_version), Rewrite(edit, attempt)
                    changing = self._interrupter.change_and_stop_subagents(chat_id, *changes)
                    committed = await run_shielded(changing)
                    if committed.decisions:
                        return chat_of(committed.facts)
        except (DuplicateReceipt, MessageNotFound, VersionMismatch):  # as above
            if first := await first_receipt(self._store, chat_id, client_id, content_digest):
                return first.chat
            raise

    async def _cut_at(self, chat_id: str, message_id: str) -> Cut:
        message_and_cut = await self._store.cut_at(chat_id, message_id)
        if message_and_cut is None or message_and_cut[0].role != "user" or message_and_cut[0].synthetic:
            await self._store.facts(chat_id)
            raise MessageNotFound(chat_id, message_id, expected="user message in its history")
        return message_and_cut[1]

    async def request_compaction(self, chat_id: str) -> Chat:
        return await self._changed(chat_id, RequestCompaction())

    async def clear_context(self, chat_id: str) -> Chat:
        return await self._changed(chat_id, ClearContext())

    async def queued(self, chat_id: str) -> list[QueuedMessage]:
        return list((await self._store.facts(chat_id)).queue)

    async def edit_queued(
        self, chat_id: str, queued_id: str, content: Content, *, if_version: int | None = None
    ) -> Chat:
        parts = self._parts_of(content)
        async with Sending(self._runtime.files, chat_id) as sending:
            edit = EditQueued(queued_id=queued_id, parts=await sending.store_parts(parts))
            return await self._changed(chat_id, edit, if_version=if_version)

    async def delete_queued(self, chat_id: str, queued_id: str, *, if_version: int | None = None) -> Chat:
        return await self._changed(chat_id, DeleteQueued(queued_id=queued_id), if_version=if_version)

    async def promote_queued(self, chat_id: str, queued_id: str) -> Chat:
        return chat_of((await self._interrupter.interrupt(chat_id, PromoteQueued(queued_id=queued_id))).facts)

    async def schedule(self, chat_id: str, content: Content, **times: Any) -> ScheduledMessage:
        return await Scheduler(self._runtime, chat_id, self._actor)(content, **times)

    async def unschedule(self, chat_id: str, id: str) -> None:  # noqa: A002 - the contract
        await self._changed(chat_id, Unschedule(schedule_id=id))

    async def schedules(self, chat_id: str) -> list[ScheduledMessage]:
        return sorted((await self._store.facts(chat_id)).schedules, key=lambda message: message.due)

    @property
    def _admin(self) -> Admin:
        """Operations on whole chats, on behalf of the same actor."""
        from turnwise.engine.admin.admin import Admin  # noqa: PLC0415 - takes long to import, and few chats need it

        return Admin(self._runtime, self._actor)

    def _parts_of(self, content: Content) -> tuple[Part, ...]:
        return parts_within(self._runtime.settings, content)

    async def _changed(self, chat_id: str, change: Change, *, if_version: int | None = None) -> Chat:
        return chat_of((await self._change(chat_id, AtVersion(if_version), change)).facts)

    async def _change(self, chat_id: str, *changes: Change) -> Committed:
        return await self._runtime.writer.change(chat_id, *changes, actor=self._actor)

    @property
    def _interrupter(self) -> Interrupter:
        return Interrupter(self._runtime, self._actor)


class AtVersion(msgspec.Struct, frozen=True):
    """Refuses a chat which is at another version than the caller has seen."""

    if_version: int | None

    def __call__(self, unit: UnitOfWork) -> None:
        if self.if_version is not None and unit.facts.version != self.if_version:
            raise VersionMismatch(unit.facts.chat_id, self.if_version, unit.facts.version)


class Rewrite(msgspec.Struct, frozen=True):
    """Edits a message, unless the history has changed since the cut was read: then nothing fires."""

    edit: EditMessage
    attempt: HeldAttempt | None
    """The attempt that runs here, whose usage the edit counts."""

    def __call__(self, unit: UnitOfWork) -> None:
        """Fire the edit; without the usage if another attempt runs by now."""
        if unit.facts.history_version == self.edit.cut.history_version:
            goes_on = self.attempt is None or self.attempt.is_of(unit.facts.step)
            unit.fire(self.edit if goes_on else replace(self.edit, usage=None))


def _interrupt_once(reason: str | None, unit: UnitOfWork) -> None:
    is_again = unit.facts.state is ChatState.interrupted
    if not is_again or (not unit.limits.promote_after_interrupt and unit.accepts(Interrupt())):
        unit.fire(Interrupt(), reason=reason)
