"""Turns: send, edit, answer calls, interrupt, resume, compact, clear, and the queue."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager, aclosing
from datetime import datetime
from typing import Any, Generic

import msgspec

from turnwise.engine.agents.agent import Agent, Output
from turnwise.engine.chats.declaration import command
from turnwise.engine.chats.reports import Reports
from turnwise.engine.config.results import Chat, SendReceipt, SubmissionReceipt, TurnResult
from turnwise.engine.isolation.clock import fail_after
from turnwise.engine.subscriptions.turns import TurnReader
from turnwise.states.calls import ToolResult
from turnwise.states.errors import SettingsError
from turnwise.states.events import Event
from turnwise.states.messages import Content, QueuedMessage, ScheduledMessage
from turnwise.states.names import WhenBusy, WhenDue
from turnwise.states.values.checked import checked
from turnwise.states.values.limits import Label, Name, Ordinal, ScheduleId, Seconds


class Question(msgspec.Struct, Generic[Output], frozen=True):
    """A message whose turn is waited for."""

    chat_id: str
    content: Content
    client_id: str | None
    agent: Agent[Any, Output] | None
    """The agent whose type the answer has."""
    at_once: bool
    """Whether to look once instead of waiting."""


class Turns(Reports):
    """What can be done with the turns of chats."""

    @abstractmethod
    async def _answer(self, question: Question[Output]) -> TurnResult[Output]:
        """Send a message and return the result of its turn."""

    @abstractmethod
    def _after(self, receipt: SendReceipt) -> AbstractContextManager[None]:
        """Let errors in the block say that the message of the receipt is stored."""

    @command("POST", "/chats/{chat_id}/messages", 202)
    async def send_message(
        self,
        chat_id: str,
        content: Content,
        *,
        when_busy: WhenBusy = "queue",
        client_id: Name | None = None,
    ) -> SendReceipt:
        """Accept a user message: it is answered next, or waits in the queue.

        While the chat works, `when_busy` decides: "queue" waits for a turn of its own, "steer" enters the next model
        request of the current turn, "interrupt" stops the current turn, and "reject" raises `ChatBusy`.

        The same `client_id` with the same content returns the first receipt, `replayed`.

        Args:
            chat_id: the chat.
            content: the message.
            when_busy: what to do while the chat works.
            client_id: the client's own id of the message.

        Raises:
            ChatBusy: the chat works and `when_busy` is "reject".
            QueueFull: the queue has reached its limit of messages or bytes.
            ConflictingReplay: the `client_id` was used for other content.
            InvalidContent: the message is empty, cannot be stored, or is too large.
        """

    @checked
    async def ask(
        self,
        chat_id: str,
        content: Content,
        *,
        client_id: Name | None = None,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the contract's word
        agent: Agent[Any, Output] | None = None,
    ) -> TurnResult[Output]:
        """Send a message and wait for the end of its turn, or until the chat rests.

        With `agent` the chat's agent is checked first, and a type checker knows the type of `TurnResult.output`.
        The same `client_id` with the same content sends nothing again, and returns the result of the same turn.

        If the chat waits for its client, or is interrupted, the message may stay in the queue; the result's
        `message_state` says so.

        Raises:
            TimeoutError: it took longer than `timeout` seconds, or, with 0, the turn has not ended yet. The message
                stays and the turn goes on: ask again with the same `client_id`.
            EngineClosed: the engine was closed, or released its subscribers, before that.
            SettingsError: the chat has another agent than `agent`; nothing was sent.
            StoreError: the message is stored, but its turn cannot be followed (`written` is `"unknown"`).
            TurnwiseError: the message is refused, see `send_message`.
        """
        with fail_after(timeout or None):  # 0 sends, and looks once
            if agent is not None and (actual := (await self.get_chat(chat_id)).agent) != agent.name:
                problem = f"{agent.name!r} does not answer in this chat: its agent is {actual!r}"
                raise SettingsError("agent", problem)
            return await self._answer(Question(chat_id, content, client_id, agent, at_once=timeout == 0))

    @checked
    async def stream(
        self,
        chat_id: str,
        content: Content,
        *,
        when_busy: WhenBusy = "queue",
        client_id: Name | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Send a message and yield the events of the turn that answers it, from the message on, until the chat rests.

        Nothing is yielded while the message waits in the queue, or if the chat rests before its turn begins. Without
        `turn_finished` the turn has not ended. The same `client_id` yields the same turn again.

        Raises:
            EngineClosed: the engine was closed, or released its subscribers; events up to then are yielded.
            StoreError: the message is stored, but its turn cannot be followed (`written` is `"unknown"`).
            TurnwiseError: the message is refused, see `send_message`.
        """
        receipt = await self.send_message(chat_id, content, when_busy=when_busy, client_id=client_id)
        with self._after(receipt):
            following = self.events(chat_id, after=receipt.seq, until_rest=True)
            async with aclosing(TurnReader(following, receipt).events()) as events:
                async for event in events:
                    yield event

    @command("POST", "/chats/{chat_id}/tool-results", 202, repeatable=True)
    async def submit_tool_results(
        self,
        chat_id: str,
        results: Sequence[ToolResult],
        *,
        if_version: Ordinal | None = None,
    ) -> SubmissionReceipt:
        """Answer the open client calls: all of them, each once. The same submission again returns the first receipt.

        Args:
            chat_id: the chat.
            results: one result for each open client call.
            if_version: the version that the caller has seen; another one is refused.

        Raises:
            ToolResultMismatch: the results do not name exactly the open client calls.
            ConflictingReplay: a call was answered before, with other content or by an interrupt.
            DeadlineExpired: the deadline of a call has passed; turnwise has closed the call.
            IllegalTransition: the chat does not wait for results.
            VersionMismatch: the chat has changed since `if_version`, and these results are not what changed it.
        """

    @command("POST", "/chats/{chat_id}/interrupt", 202)
    async def interrupt(self, chat_id: str, *, reason: Label | None = None) -> Chat:
        """Stop the chat. The part of the reply that was shown stays, open calls are closed, the queue waits.

        A message waits in the queue until its turn starts.

        Args:
            chat_id: the chat.
            reason: why, for operators; an erasure can remove it.
        """

    @command("POST", "/chats/{chat_id}/resume", 202)
    async def resume(
        self,
        chat_id: str,
    ) -> Chat:
        """Continue after an interrupt or an error: with the queue, or with the unfinished answer."""

    @command("PATCH", "/chats/{chat_id}/messages/{message_id}", 202)
    async def edit_message(
        self,
        chat_id: str,
        message_id: str,
        content: Content,
        *,
        client_id: Name | None = None,
        if_version: Ordinal | None = None,
    ) -> Chat:
        """Replace a user message; the messages after it and the queue are removed.

        The same edit with the same `client_id` again changes nothing and returns the chat as it stands.

        Args:
            chat_id: the chat.
            message_id: the user message.
            content: what the message says from now on.
            client_id: the client's own id of the edit.
            if_version: the version that the caller has seen; another one is refused.

        Raises:
            MessageNotFound: the history has no such user message.
            ConflictingReplay: the `client_id` was used for another message or edit.
            VersionMismatch: the chat has changed since `if_version`.
        """

    @command("POST", "/chats/{chat_id}/compact", 202, operation="compact")
    async def request_compaction(
        self,
        chat_id: str,
    ) -> Chat:
        """Compact a chat now, whatever its size: one in `waiting`, or in `interrupted` or `error` with an empty queue.

        Raises:
            NothingToCompact: there is no message to summarize.
        """

    @command("POST", "/chats/{chat_id}/clear", 202, operation="clear")
    async def clear_context(
        self,
        chat_id: str,
    ) -> Chat:
        """Clear the context: the model sees nothing that was said before; the transcript stays.

        It is accepted in `waiting`, and in `interrupted` and `error` with an empty queue.
        """

    @command("GET", "/chats/{chat_id}/queue", operation="list_queue")
    async def queued(self, chat_id: str) -> list[QueuedMessage]:
        """Return the queued messages, next one first."""

    @command("PATCH", "/chats/{chat_id}/queue/{queued_id}", 202)
    async def edit_queued(
        self,
        chat_id: str,
        queued_id: str,
        content: Content,
        *,
        if_version: Ordinal | None = None,
    ) -> Chat:
        """Replace a queued message; it keeps its place.

        Args:
            chat_id: the chat.
            queued_id: the queued message.
            content: what the message says from now on.
            if_version: the version that the caller has seen; another one is refused.

        Raises:
            VersionMismatch: the chat has changed since `if_version`.
        """

    @command("DELETE", "/chats/{chat_id}/queue/{queued_id}", 202)
    async def delete_queued(self, chat_id: str, queued_id: str, *, if_version: Ordinal | None = None) -> Chat:
        """Remove a message from the queue.

        Raises:
            VersionMismatch: the chat has changed since `if_version`.
        """

    @command("POST", "/chats/{chat_id}/queue/{queued_id}/promote", 202)
    async def promote_queued(
        self,
        chat_id: str,
        queued_id: str,
    ) -> Chat:
        """Make a queued message the next turn at once; the current turn is interrupted and its partial answer stays."""

    @command("POST", "/chats/{chat_id}/schedules", 201)
    async def schedule(  # noqa: PLR0913 - the contract
        self,
        chat_id: str,
        content: Content,
        *,
        at: datetime | None = None,
        every: str | None = None,
        timezone: str | None = None,
        when_busy: WhenDue = "queue",
        id: ScheduleId | None = None,  # noqa: A002 - the contract
    ) -> ScheduledMessage:
        """Schedule a message, once or repeatedly. The same `id` replaces the schedule.

        The message is sent as by `send_message`, at most `Settings.poll_interval` seconds late. After an outage, a
        series that missed several times sends one message. Archived and deleted chats have no schedules.

        Args:
            chat_id: the chat.
            content: the message.
            at: the time, with an offset from UTC, or in `timezone`.
            every: the times of a series, as a cron expression of five fields: `0 9 * * 1` is Mondays at nine.
            timezone: the time zone of `every`, or of an `at` without an offset, such as `Europe/Berlin`; UTC by
                default.
            when_busy: while the chat works, the message waits in the queue, steers the current turn, or is skipped.
                While the queue is full, or a budget is spent, it stays due. A series skips a time
                if the message before it still waits.
            id: letters, digits, `.`, `_` and `-`; turnwise gives one by default.

        Raises:
            InvalidArgument: not exactly one of `at` and `every` is given, or there is no such time or time zone.
            QueueFull: the chat has as many scheduled messages, or bytes in them, as it may.
            InvalidContent: the message is empty, cannot be stored, or is too large.
        """

    @command("DELETE", "/chats/{chat_id}/schedules/{id}", 204)
    async def unschedule(self, chat_id: str, id: ScheduleId) -> None:  # noqa: A002 - the contract
        """Cancel a scheduled message.

        Raises:
            MessageNotFound: nothing is scheduled under that id.
        """

    @command("GET", "/chats/{chat_id}/schedules", operation="list_schedules")
    async def schedules(self, chat_id: str) -> list[ScheduledMessage]:
        """Return the scheduled messages, the next one first."""
