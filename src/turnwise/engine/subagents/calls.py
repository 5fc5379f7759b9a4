"""Answers the calls of a chat to its subagents, as far as that is possible now."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from turnwise.engine.agents.delegate import MESSAGE, STEER, SUBAGENT, SUBAGENTS, TASK, subagent_id
from turnwise.engine.chat_ids import may_be_one
from turnwise.engine.subagents.answer import CallAnswer, combined_answers, lost, result_of, unreported_usage
from turnwise.engine.subagents.family import has_ended, is_any_above, stop_working, subagents_of
from turnwise.engine.transactions.chat_writer import UnitOfWork
from turnwise.engine.transactions.idempotency import digest_of_parts
from turnwise.engine.transactions.runtime import Runtime
from turnwise.logger import about, logger
from turnwise.states.arguments import SubagentAnswer
from turnwise.states.calls import SubagentResult, ToolCall
from turnwise.states.errors import (
    BudgetSpent,
    ChatDeleted,
    ChatExists,
    ChatNotFound,
    ChatUnreadable,
    EngineClosed,
    StoreError,
    TurnwiseError,
    VersionMismatch,
)
from turnwise.states.facts import Facts, Profile
from turnwise.states.messages import TextPart
from turnwise.states.names import SubagentAction
from turnwise.states.triggers import Create, SendMessage, SubmitToolResults
from turnwise.states.usage import Usage
from turnwise.states.values.plain import shown, type_name
from turnwise.states.values.values import Json

MOST_UNREPORTED: Final = 100
"""Subagents in the background that may still owe a chat their answers."""
_TITLE: Final = 80
"""Characters of a task that become the subagent's title."""


class _NotYetError(Exception):
    """A call cannot be answered yet; the event that it waits for makes a worker look at the chat again."""


class _RefusedError(Exception):
    """A call is refused; its result says why."""


class SubagentCalls:
    """Answers the subagent calls of one chat: starts subagents, brings their answers, and passes messages to them."""

    def __init__(self, runtime: Runtime, parent: Facts) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._writer = runtime.writer
        self._parent = parent
        self._at_work: dict[str, bool] = {}
        """Cache of `_is_at_work`."""
        self._is_full = False
        """Whether a call found no room for its subagent: later calls find none either."""
        self._answers: Mapping[SubagentAction, Callable[[ToolCall], Awaitable[CallAnswer]]] = {
            "ask": self._ask,
            "start": self._start,
            "wait": self._wait,
            "message": self._message,
            "stop": self._stop,
            "list": self._list,
        }

    async def answer(self) -> None:
        """Answer calls, and begin subagents for which there is room. Then raise the first error that needs a retry.

        A worker that lacks the chat's agent does neither: it does not know how many may work.
        """
        failures: list[Exception] = []
        is_own = self._parent.profile.agent in self._runtime.agents
        for one in self._parent.open_calls if is_own else ():
            if not self._waits:
                break
            call = self._parent.calls.get(one.call_id)  # read again: its arguments may have been erased
            if call is not None and call.open and call.is_delegated:
                try:
                    await self._submit(call, await self._answer_to(call))
                except _NotYetError:
                    continue
                except Exception as error:  # noqa: BLE001 - the other calls go on
                    failures.append(error)
        if failures:
            raise failures[0]

    @property
    def _waits(self) -> bool:
        return self._parent.awaits is not None and not self._parent.archived

    async def _answer_to(self, call: ToolCall) -> CallAnswer:
        if call.refusal is not None:
            return CallAnswer(call.refusal, is_error=True)
        try:
            return await self._answers[call.subagent_action](call)
        except Exception as error:  # noqa: BLE001 - the call gets a result, also of a damaged subagent
            about = () if call.subagent is None else (lost(self._subagent_id(call), error),)
            return CallAnswer(self._in_words(error), about, is_error=True)

    def _in_words(self, error: Exception) -> str:
        """Return the text of an error for the model; raise errors that end or delay the answer."""
        is_passing = isinstance(error, StoreError) and error.passing
        is_of_parent = isinstance(error, ChatNotFound) and error.chat_id == self._parent.chat_id
        if is_passing or is_of_parent or isinstance(error, _NotYetError | EngineClosed):
            raise error
        if isinstance(error, _RefusedError | BudgetSpent):
            return str(error)
        if isinstance(error, ChatNotFound):
            return f"The subagent {'was deleted' if isinstance(error, ChatDeleted) else 'is not there'}."
        if isinstance(error, ChatUnreadable):
            return f"The subagent cannot be read: {error}"
        logger.exception("subagent_call_failed", error=error, **about(self._parent))
        return f"This failed: {type_name(error)}."

    async def _submit(self, call: ToolCall, answer: CallAnswer) -> None:
        result = SubagentResult(call.call_id, answer.output, answer.is_error)
        subagents = tuple(answer.subagents) or (SubagentAnswer(chat_id=self._parent.chat_id),)
        submission, actor = SubmitToolResults(results=(result,), subagents=subagents), f"chat:{subagents[0].chat_id}"
        committed = await self._writer.change(self._parent.chat_id, partial(_submit, submission), actor=actor)
        self._parent = committed.facts

    def _subagent_id(self, call: ToolCall) -> str:
        return subagent_id(self._parent.chat_id, call.call_id)

    # Tasks

    async def _ask(self, call: ToolCall) -> CallAnswer:
        subagent = await self._subagent_for(call)
        if not has_ended(subagent):
            raise _NotYetError
        output, is_error = await self._last_words(subagent)
        return CallAnswer(output, [await self._report(subagent, subagent.usage + subagent.subagents_usage)], is_error)

    async def _start(self, call: ToolCall) -> CallAnswer:
        subagent = await self._subagent_for(call)
        return CallAnswer({"subagent": subagent.chat_id}, [SubagentAnswer(chat_id=subagent.chat_id, owes=True)])

    async def _subagent_for(self, call: ToolCall) -> Facts:
        """Return the subagent of a call; begin it, if there is room."""
        name = self._subagent_id(call)
        try:
            subagent = await self._store.facts(name)
        except ChatDeleted:
            raise
        except ChatNotFound:
            return await self._begin(call, name)
        if (subagent.profile.parent, subagent.profile.parent_call) != (self._parent.chat_id, call.call_id):
            raise _RefusedError(f"Chat {name} is not its subagent.")
        return subagent

    async def _begin(self, call: ToolCall, name: str) -> Facts:
        """Create a subagent with its task, in one commit, if the parent is unchanged and so still waits."""
        task = call.arguments.get(TASK)
        if not isinstance(task, str):
            raise _RefusedError("Not started: its task was erased.")
        if call.subagent_action == "start" and len(self._parent.background) >= MOST_UNREPORTED:
            raise _RefusedError(
                f"Not started: wait for the {MOST_UNREPORTED} subagents first whose answers you have not received."
            )
        if self._is_full or not await self._has_room(call):
            raise _NotYetError
        parent = self._parent
        version, head = await self._store.head(parent.chat_id)
        title = " ".join(task.split())
        profile = Profile(
            created_at=parent.profile.created_at,
            agent=call.subagent or parent.profile.agent,
            owner=parent.profile.owner,
            title=title if len(title) <= _TITLE else f"{title[: _TITLE - 1]}…",
            metadata=parent.profile.metadata,
            parent=parent.chat_id,
            parent_call=call.call_id,
            parent_version=f"{version}:{head}",
            detached=call.subagent_detached,
            depth=parent.profile.depth + 1,
        )
        trace = self._runtime.observers.turn_trace(name)
        begin = partial(_begin, profile, SendMessage(parts=(TextPart(text=task),), trace=trace, asker=parent.chat_id))
        try:
            read_at = parent.chat_id, parent.version
            await self._writer.create(name, begin, actor=f"chat:{parent.chat_id}", parent=read_at, unchanged=True)
        except VersionMismatch:
            return await self._begin(await self._read_again(call), name)
        except ChatExists:
            logger.debug("subagent_started_elsewhere", chat_id=name)
            return await self._subagent_for(call)
        return await self._store.facts(name)

    async def _read_again(self, call: ToolCall) -> ToolCall:
        """Return a call after the chat has changed: perhaps its task was erased."""
        self._parent = await self._store.facts(self._parent.chat_id)
        self._at_work.clear()
        current = self._parent.calls.get(call.call_id)
        if current is None or not current.open or not self._waits:
            raise _NotYetError
        return current

    async def _has_room(self, call: ToolCall) -> bool:
        """Whether a call's subagent may begin. Earlier calls come first, so that all workers decide alike."""
        limit = self._runtime.agents.configuration(self._parent.profile).settings.subagents_at_once
        ids = [one.call_id for one in self._parent.open_calls]
        before = self._parent.open_calls[: ids.index(call.call_id)] if call.call_id in ids else self._parent.open_calls
        first = (self._subagent_id(one) for one in before if one.subagent is not None)
        working = 0
        for name in itertools.chain(self._parent.background, first):
            working += await self._is_at_work(name)
            if working >= limit:
                self._is_full = True
                break
        return not self._is_full

    async def _is_at_work(self, name: str) -> bool:
        if name not in self._at_work:
            try:
                self._at_work[name] = not has_ended(await self._store.facts(name))
            except (ChatDeleted, ChatUnreadable):
                self._at_work[name] = False
            except ChatNotFound:  # a missing background subagent does not work here
                self._at_work[name] = name not in self._parent.background
        return self._at_work[name]

    # Subagents in the background

    async def _wait(self, call: ToolCall) -> CallAnswer:
        parent = self._parent
        if SUBAGENTS in call.arguments:
            names = [*dict.fromkeys(call.arguments[SUBAGENTS])]
        elif any(one.subagent_action in ("start", "message") for one in parent.open_calls):
            raise _NotYetError  # the wait includes their subagents
        else:
            names = [*parent.background]
        news = {name: await self._answer_or_error(name) for name in names}
        output = combined_answers(news, call.output_limit_bytes)
        return CallAnswer(output, [answer for answers in news.values() for answer in answers.subagents])

    async def _answer_or_error(self, name: str) -> CallAnswer:
        try:
            return await self._read_answer(name)
        except Exception as error:  # noqa: BLE001 - the other answers count
            gone = [lost(name, error)] if name in self._parent.background else []
            return CallAnswer(self._in_words(error), gone, is_error=True)

    async def _read_answer(self, name: str) -> CallAnswer:
        subagent = await self._descendant(name)
        if not has_ended(subagent):
            raise _NotYetError
        output, is_error = await self._last_words(subagent)
        usage = await unreported_usage(self._store, self._parent.chat_id, subagent)
        return CallAnswer(output, [await self._report(subagent, usage)], is_error)

    async def _message(self, call: ToolCall) -> CallAnswer:
        subagent = await self._descendant(call.arguments.get(SUBAGENT))
        message = call.arguments.get(MESSAGE)
        if not isinstance(message, str):
            raise _RefusedError("Not sent: the message was erased.")
        parts = (TextPart(text=message),)
        client_id = f"{self._parent.chat_id}:{call.call_id}"
        if not await self._has_message(subagent, client_id):
            sending = SendMessage(
                parts=parts,
                when_busy="steer" if call.arguments.get(STEER) is True else "queue",
                client_id=client_id,
                content_digest=digest_of_parts(parts),
                trace=self._runtime.observers.turn_trace(subagent.chat_id),
                asker=self._parent.chat_id,
            )
            try:
                await self._writer.change(subagent.chat_id, sending, actor=f"chat:{self._parent.chat_id}")
            except TurnwiseError as error:
                # Another worker may have sent it meanwhile.
                if not await self._has_message(subagent, client_id):
                    if isinstance(error, StoreError):
                        raise
                    raise _RefusedError(f"The subagent did not get it: {error}") from error
        return CallAnswer({"subagent": subagent.chat_id}, [SubagentAnswer(chat_id=subagent.chat_id, owes=True)])

    async def _has_message(self, subagent: Facts, client_id: str) -> bool:
        return await self._store.receipt(subagent.chat_id, client_id) is not None

    async def _stop(self, call: ToolCall) -> CallAnswer:
        subagent = await self._descendant(call.arguments.get(SUBAGENT))
        committed = await self._writer.change(subagent.chat_id, stop_working, actor=f"chat:{self._parent.chat_id}")
        owes = subagent.chat_id in self._parent.background
        answer = SubagentAnswer(chat_id=subagent.chat_id, owes=owes)
        return CallAnswer({"subagent": subagent.chat_id, "state": committed.facts.state.value}, [answer])

    async def _list(self, _call: ToolCall) -> CallAnswer:
        subagents = await subagents_of(self._store, self._parent.chat_id)
        return CallAnswer(
            [
                {
                    "subagent": one.chat_id,
                    "agent": one.profile.agent,
                    "task": one.profile.title,
                    "state": one.state.value,
                }
                for one in subagents
            ]
        )

    async def _descendant(self, name: object) -> Facts:
        """Return a subagent of the chat, or one of theirs; other chats look like chats that never existed."""
        if isinstance(name, str) and may_be_one(name):
            try:
                subagent = await self._store.facts(name)
                if await is_any_above(self._store, subagent, lambda above: above.chat_id == self._parent.chat_id):
                    return subagent
            except (ChatNotFound, ChatUnreadable):
                if name in self._parent.background:
                    return await self._store.facts(name)
        raise _RefusedError(f"You have no subagent {shown(name)}.")

    # Answers of subagents

    async def _report(self, subagent: Facts, usage: Usage) -> SubagentAnswer:
        version, head = await self._store.head(subagent.chat_id)
        if version != subagent.version:
            raise _NotYetError  # it goes on; its worker answers when it rests again
        return SubagentAnswer(chat_id=subagent.chat_id, version=version, head=head, usage=usage)

    async def _last_words(self, subagent: Facts) -> tuple[Json, bool]:
        messages = await self._store.history(subagent.chat_id, after=subagent.turn.after)
        return result_of(subagent, messages, self._runtime.agents)


def _submit(submission: SubmitToolResults, unit: UnitOfWork) -> None:
    current = unit.facts.calls.get(submission.results[0].call_id)
    if unit.facts.awaits is not None and current is not None and current.open:
        unit.fire(submission)


def _begin(profile: Profile, task: SendMessage, unit: UnitOfWork) -> None:
    unit.fire(Create(profile=replace(profile, created_at=unit.now)))
    unit.fire(task)
