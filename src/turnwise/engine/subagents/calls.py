"""Helper calls: answers the calls of a chat that are for its helpers, as far as they can be answered now."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from turnwise.engine.agents.delegate import HELPER, HELPERS, MESSAGE, TASK, helper_id
from turnwise.engine.chat_ids import may_be_one
from turnwise.engine.subagents.answer import CallAnswer, lost, result_of, told_together
from turnwise.engine.subagents.family import has_ended, helpers_of, is_any_above, stop_working
from turnwise.engine.subagents.usage import unheard_usage
from turnwise.engine.transactions.apply import Act, Chain
from turnwise.engine.transactions.idempotency import digest_of_parts
from turnwise.engine.transactions.runtime import Runtime
from turnwise.logger import about, logger
from turnwise.states.arguments import HelperAnswer
from turnwise.states.calls import HelperResult, ToolCall
from turnwise.states.errors import (
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
from turnwise.states.names import HelperAction
from turnwise.states.triggers import Create, SendMessage, SubmitToolResults
from turnwise.states.usage import Usage
from turnwise.states.values.plain import shown, type_name
from turnwise.states.values.values import Json

UNHEARD: Final = 100
"""Helpers in the background whose answers a chat may have yet to hear."""
_TITLE: Final = 80
"""Characters of a task that become the helper's title."""


class _NotYetError(Exception):
    """A call cannot be answered before something else has happened; whatever does it looks at the chat again."""


class _RefusedError(Exception):
    """What a call wants cannot be done; the model is told why."""


class HelperCalls:
    """Answers the calls of one chat that are for helpers: begins these, brings what they say, and tells them more.

    Args:
        runtime: what the engine's parts share.
        act: changes chats.
        parent: the chat.
    """

    def __init__(self, runtime: Runtime, act: Act, *, parent: Facts) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._act = act
        self._parent = parent
        self._at_work: dict[str, bool] = {}
        """Whether helpers work, or are to begin before others, as far as that was asked."""
        self._is_full = False
        """Whether there was no room for the helper of a call; then there is none for those behind it."""
        self._answers: Mapping[HelperAction, Callable[[ToolCall], Awaitable[CallAnswer]]] = {
            "ask": self._ask,
            "start": self._start,
            "wait": self._wait,
            "message": self._message,
            "stop": self._stop,
            "list": self._list,
        }

    async def answer(self) -> None:
        """Answer what can be answered; begin the helpers for which there is room.

        A worker that lacks the chat's agent does neither: it does not know how many may work.

        Raises:
            Exception: that is what the first call ran into that has to be looked at again; all others were looked at.
        """
        failures: list[Exception] = []
        is_own = self._parent.profile.agent in self._runtime.agents.runs
        for one in self._parent.open_calls if is_own else ():
            if not self._waits:
                break
            call = self._parent.calls.get(one.call_id)  # as it stands now: what it says may have been erased
            if call is not None and call.open and call.is_delegated:
                try:
                    await self._submit(call, await self._answer_to(call))
                except _NotYetError:
                    continue
                except Exception as error:  # noqa: BLE001 - the calls behind this one are not held up by it
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
            return await self._answers[call.helper_action](call)
        except Exception as error:  # noqa: BLE001 - whatever a helper and its rows hold, the call gets a result
            about = () if call.helper is None else (lost(self._id_of(call), error),)
            return CallAnswer(self._in_words(error), about, is_error=True)

    def _in_words(self, error: Exception) -> str:
        """Return what the model is told of an error; raise it if nobody is there to tell, or not yet."""
        is_passing = isinstance(error, StoreError) and error.passing
        is_of_parent = isinstance(error, ChatNotFound) and error.chat_id == self._parent.chat_id
        if is_passing or is_of_parent or isinstance(error, _NotYetError | EngineClosed):
            raise error
        if isinstance(error, _RefusedError):
            return str(error)
        if isinstance(error, ChatNotFound):
            return f"The helper {'was deleted' if isinstance(error, ChatDeleted) else 'is not there'}."
        if isinstance(error, ChatUnreadable):
            return f"The helper cannot be read: {error}"
        logger.exception("helper_call_failed", error=error, **about(self._parent))
        return f"This failed: {type_name(error)}."

    async def _submit(self, call: ToolCall, answer: CallAnswer) -> None:
        result = HelperResult(call.call_id, answer.output, answer.is_error)
        helpers = tuple(answer.helpers) or (HelperAnswer(chat_id=self._parent.chat_id),)

        def submit(chain: Chain) -> None:
            current = chain.facts.calls.get(call.call_id)
            if chain.facts.awaits is not None and current is not None and current.open:
                chain.fire(SubmitToolResults(results=(result,), helpers=helpers))

        committed = await self._act(self._parent.chat_id, submit, actor=f"chat:{helpers[0].chat_id}")
        self._parent = committed.facts

    def _id_of(self, call: ToolCall) -> str:
        return helper_id(self._parent.chat_id, call.call_id)

    # Tasks

    async def _ask(self, call: ToolCall) -> CallAnswer:
        helper = await self._helper_for(call)
        if not has_ended(helper):
            raise _NotYetError
        output, is_error = await self._last_words(helper)
        return CallAnswer(output, [await self._heard(helper, helper.usage + helper.helpers_usage)], is_error)

    async def _start(self, call: ToolCall) -> CallAnswer:
        helper = await self._helper_for(call)
        return CallAnswer({"helper": helper.chat_id}, [HelperAnswer(chat_id=helper.chat_id, owes=True)])

    async def _helper_for(self, call: ToolCall) -> Facts:
        """Return the helper that a call makes; begin it, if there is room."""
        name = self._id_of(call)
        try:
            helper = await self._store.facts(name)
        except ChatDeleted:
            raise
        except ChatNotFound:
            return await self._begin(call, name)
        if (helper.profile.parent, helper.profile.helps) != (self._parent.chat_id, call.call_id):
            raise _RefusedError(f"Chat {name} is not its helper.")
        return helper

    async def _begin(self, call: ToolCall, name: str) -> Facts:
        """Make a helper and give it its task, in one commit, if the parent stands as it was read: it waits then."""
        task = call.arguments.get(TASK)
        if not isinstance(task, str):
            raise _RefusedError("Not begun: its task was erased.")
        if call.helper_action == "start" and len(self._parent.background) >= UNHEARD:
            raise _RefusedError(f"Not begun: wait for the {UNHEARD} helpers first whose answers you have not heard.")
        if self._is_full or not await self._has_room(call):
            raise _NotYetError
        parent = self._parent
        version, head = await self._store.head(parent.chat_id)

        def begin(chain: Chain) -> None:
            profile = parent.profile
            helper = Profile(
                created_at=chain.now,
                agent=call.helper or profile.agent,
                owner=profile.owner,
                title=_title_of(task),
                metadata=profile.metadata,
                parent=parent.chat_id,
                helps=call.call_id,
                helps_at=f"{version}:{head}",
                stays=call.helper_stays,
                depth=profile.depth + 1,
            )
            chain.fire(Create(profile=helper))
            trace = self._runtime.observers.turn_trace(name)
            chain.fire(SendMessage(parts=(TextPart(text=task),), trace=trace, asker=parent.chat_id))

        try:
            read_at = parent.chat_id, parent.version
            await self._runtime.applier.create(
                name, begin, actor=f"chat:{parent.chat_id}", parent=read_at, unchanged=True
            )
        except VersionMismatch:
            return await self._begin(await self._read_again(call), name)
        except ChatExists:
            logger.debug("helper_begun_by_another", chat_id=name)
            return await self._helper_for(call)
        return await self._store.facts(name)

    async def _read_again(self, call: ToolCall) -> ToolCall:
        """Return a call as it stands now that the chat has changed: perhaps its task was erased."""
        self._parent = await self._store.facts(self._parent.chat_id)
        self._at_work.clear()
        current = self._parent.calls.get(call.call_id)
        if current is None or not current.open or not self._waits:
            raise _NotYetError
        return current

    async def _has_room(self, call: ToolCall) -> bool:
        """Whether a call's helper may begin: those of the calls before it come first, so all workers begin the same."""
        limit = self._runtime.agents.configuration(self._parent.profile).settings.helpers_at_once
        before = itertools.takewhile(lambda one: one.call_id != call.call_id, self._parent.open_calls)
        first = (self._id_of(one) for one in before if one.helper is not None)
        working = 0
        for name in itertools.chain(self._parent.background, first):
            working += await self._is_at_work(name)
            if working >= limit:
                self._is_full = True
                break
        return not self._is_full

    async def _is_at_work(self, name: str) -> bool:
        """Whether a helper works, or is to begin."""
        if name not in self._at_work:
            try:
                self._at_work[name] = not has_ended(await self._store.facts(name))
            except (ChatDeleted, ChatUnreadable):
                self._at_work[name] = False
            except ChatNotFound:  # one in the background was begun elsewhere: it does not work here
                self._at_work[name] = name not in self._parent.background
        return self._at_work[name]

    # Helpers in the background

    async def _wait(self, call: ToolCall) -> CallAnswer:
        parent = self._parent
        if HELPERS in call.arguments:
            names = [*dict.fromkeys(call.arguments[HELPERS])]
        elif any(one.helper_action in ("start", "message") for one in parent.open_calls):
            raise _NotYetError  # those are to be waited for, too
        else:
            names = [*parent.background]
        heard = {name: await self._news_of(name) for name in names}
        said = told_together(heard, call.output_limit_bytes)
        return CallAnswer(said, [answer for news in heard.values() for answer in news.helpers])

    async def _news_of(self, name: str) -> CallAnswer:
        try:
            return await self._said_by(name)
        except Exception as error:  # noqa: BLE001 - what the others say is heard all the same
            gone = [lost(name, error)] if name in self._parent.background else []
            return CallAnswer(self._in_words(error), gone, is_error=True)

    async def _said_by(self, name: str) -> CallAnswer:
        helper = await self._descendant(name)
        if not has_ended(helper):
            raise _NotYetError
        output, is_error = await self._last_words(helper)
        usage = await unheard_usage(self._store, self._parent.chat_id, helper)
        return CallAnswer(output, [await self._heard(helper, usage)], is_error)

    async def _message(self, call: ToolCall) -> CallAnswer:
        helper = await self._descendant(call.arguments.get(HELPER))
        message = call.arguments.get(MESSAGE)
        if not isinstance(message, str):
            raise _RefusedError("Not told: the message was erased.")
        parts = (TextPart(text=message),)
        client_id = f"{self._parent.chat_id}:{call.call_id}"
        if not await self._was_told(helper, client_id):
            sending = SendMessage(
                parts=parts,
                client_id=client_id,
                content_digest=digest_of_parts(parts),
                trace=self._runtime.observers.turn_trace(helper.chat_id),
                asker=self._parent.chat_id,
            )
            try:
                await self._act(helper.chat_id, sending, actor=f"chat:{self._parent.chat_id}")
            except TurnwiseError as error:
                # Another worker, which looks after the chat too, may have told it meanwhile.
                if not await self._was_told(helper, client_id):
                    if isinstance(error, StoreError):
                        raise
                    raise _RefusedError(f"The helper was not told: {error}") from error
        return CallAnswer({"helper": helper.chat_id}, [HelperAnswer(chat_id=helper.chat_id, owes=True)])

    async def _was_told(self, helper: Facts, client_id: str) -> bool:
        return await self._store.receipt(helper.chat_id, client_id) is not None

    async def _stop(self, call: ToolCall) -> CallAnswer:
        helper = await self._descendant(call.arguments.get(HELPER))
        committed = await self._act(helper.chat_id, stop_working, actor=f"chat:{self._parent.chat_id}")
        owes = helper.chat_id in self._parent.background
        answer = HelperAnswer(chat_id=helper.chat_id, owes=owes)
        return CallAnswer({"helper": helper.chat_id, "state": committed.facts.state.value}, [answer])

    async def _list(self, _call: ToolCall) -> CallAnswer:
        return CallAnswer([_entry_of(helper) for helper in await helpers_of(self._store, self._parent.chat_id)])

    async def _descendant(self, name: object) -> Facts:
        """Return a helper of the chat, or of a helper of it; others are not told apart from those that never were."""
        if isinstance(name, str) and may_be_one(name):
            try:
                helper = await self._store.facts(name)
                if await is_any_above(self._store, helper, lambda above: above.chat_id == self._parent.chat_id):
                    return helper
            except (ChatNotFound, ChatUnreadable):
                if name in self._parent.background:  # it is known to be one
                    return await self._store.facts(name)
        raise _RefusedError(f"You have no helper {shown(name)}.")

    # What helpers say

    async def _heard(self, helper: Facts, usage: Usage) -> HelperAnswer:
        version, head = await self._store.head(helper.chat_id)
        if version != helper.version:
            raise _NotYetError  # it has moved on, and its worker looks again when it comes to rest
        return HelperAnswer(chat_id=helper.chat_id, version=version, head=head, usage=usage)

    async def _last_words(self, helper: Facts) -> tuple[Json, bool]:
        """Return what a helper said last, and whether that is an error."""
        messages = await self._store.history(helper.chat_id, after=helper.turn.after)
        return result_of(helper, messages, self._runtime.agents)


def _entry_of(helper: Facts) -> dict[str, Json]:
    """Return what a list says of a helper."""
    profile = helper.profile
    return {"helper": helper.chat_id, "agent": profile.agent, "task": profile.title, "state": helper.state.value}


def _title_of(task: str) -> str:
    line = " ".join(task.split())
    return line if len(line) <= _TITLE else line[: _TITLE - 1] + "…"
