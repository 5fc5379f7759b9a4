"""Helpers: begins the chats to which calls are delegated, brings their answers back, and stops those nobody waits for.

Everything here follows from what is stored, and may be done again: the id of a helper follows from its call, and a call
is answered once. So what a crash cuts off is done by the next look at the parent, by any worker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import anyio

from turnwise.engine.agents.answer_format import ANSWER_TOOL
from turnwise.engine.agents.delegate import TASK, helper_id
from turnwise.engine.apply import Act, Chain
from turnwise.engine.family import AT_REST, stop_working
from turnwise.engine.user_code import described
from turnwise.engine.worker.leased_chat import Runtime
from turnwise.logger import logger
from turnwise.states.arguments import HelperAnswer
from turnwise.states.calls import ToolCall, ToolResult
from turnwise.states.errors import ChatDeleted, ChatExists, ChatNotFound, ChatUnreadable
from turnwise.states.facts import Facts, Profile
from turnwise.states.messages import Message, TextPart
from turnwise.states.names import CallStatus, ChatState
from turnwise.states.triggers import Create, SendMessage, SubmitToolResults
from turnwise.states.usage import NO_USAGE
from turnwise.states.values import Json

AT_ONCE: Final = 10
"""Chats whose helpers one worker looks after at a time."""
SWEPT: Final = 100
"""Chats that wait for helpers of which a sweep looks after."""
_TITLE: Final = 80
"""Characters of a task that become the helper's title."""


@dataclass(slots=True)
class _Look:
    """A look after the helpers of one chat."""

    outdated: bool = True
    """Whether something has changed since it began."""
    over: anyio.Event = field(default_factory=anyio.Event)


class Helpers:
    """Looks after the helpers of chats that wait for some."""

    def __init__(self, runtime: Runtime, act: Act) -> None:
        self._runtime = runtime
        self._act = act
        self._room = anyio.CapacityLimiter(AT_ONCE)
        self._looks: dict[str, _Look] = {}
        """The chats that are looked after now."""
        self._swept_after = ""
        self._last_failures: dict[str, str] = {}

    def observe(self, facts: Facts) -> None:
        """Take note of where a chat stands: it may wait for helpers, or be one that has come to rest."""
        if facts.calls.open_delegated and facts.awaits is not None:
            self._look_after(facts.chat_id)
        elif facts.profile.helps is not None and _has_ended(facts) and facts.profile.parent is not None:
            self._look_after(facts.profile.parent)

    async def sweep(self) -> None:
        """Look after some of the chats that wait for helpers: what crashes have cut off, and what other workers did."""
        found = await self._runtime.store.awaiting_helpers(after=self._swept_after, limit=SWEPT)
        self._swept_after = found[-1] if len(found) == SWEPT else ""
        for chat_id in found:
            self._look_after(chat_id)

    async def done(self) -> None:
        """Wait until nothing is under way."""
        while self._looks:
            await next(iter(self._looks.values())).over.wait()

    async def is_wanted(self, facts: Facts) -> bool:
        """Return whether the parent of a helper still waits for it.

        It is true of any other chat, and of whatever a helper does after the turn it was made for: a person wants that.

        Raises:
            StoreError: the store is out of reach.
        """
        profile = facts.profile
        works_for_parent = facts.turn.started_at == profile.created_at and not profile.stays
        if profile.helps is None or profile.parent is None or not works_for_parent:
            return True
        try:
            parent = await self._runtime.store.facts(profile.parent)
        except ChatUnreadable:
            return True
        except (ChatNotFound, ChatDeleted):
            return False
        call = parent.calls.get(profile.helps)
        return call is not None and call.open and parent.state is not ChatState.interrupted

    async def stop_if_unwanted(self, facts: Facts) -> None:
        """Interrupt a helper if its parent waits for it no longer. If that fails, its worker tries again."""
        try:
            if not await self.is_wanted(facts):
                await self.stop(facts.chat_id)
        except Exception as error:  # noqa: BLE001 - as above
            self._tell(facts.chat_id, error)

    async def stop(self, chat_id: str) -> None:
        """Interrupt a helper, if it works."""
        try:
            parent = (await self._runtime.store.facts(chat_id)).profile.parent
            await self._act(chat_id, stop_working, actor=f"chat:{parent}")
        except (ChatNotFound, ChatDeleted, ChatUnreadable) as error:
            logger.debug("helper_not_stopped", chat_id=chat_id, problem=str(error))

    def _look_after(self, chat_id: str) -> None:
        if self._runtime.stopping:
            return
        under_way = self._looks.get(chat_id)
        if under_way is not None:
            under_way.outdated = True
            return
        look = self._looks[chat_id] = _Look()
        self._runtime.tasks.start_soon(self._keep_looking, chat_id, look)

    async def _keep_looking(self, chat_id: str, look: _Look) -> None:
        try:
            async with self._room:
                while look.outdated:
                    look.outdated = False
                    await self._tend(chat_id)
        except Exception as error:  # noqa: BLE001 - the next sweep looks again
            self._tell(chat_id, error)
        else:
            self._last_failures.pop(chat_id, None)
        finally:
            del self._looks[chat_id]
            look.over.set()

    def _tell(self, chat_id: str, error: Exception) -> None:
        """Log that a chat's helpers could not be looked after: once, until that succeeds or fails differently."""
        problem = described(error)
        if self._last_failures.get(chat_id) == problem:
            return
        self._last_failures[chat_id] = problem
        logger.warning("helpers_not_looked_after", chat_id=chat_id, problem=problem)

    async def _tend(self, chat_id: str) -> None:
        """Begin the helpers of a chat that are wanted, and answer the calls of those that have come to rest."""
        parent = await self._runtime.store.facts(chat_id)
        if parent.awaits is None or parent.archived:
            return
        calls = [call for call in parent.open_calls if call.is_delegated]
        room = self._runtime.agents.configuration(parent.profile).settings.helpers_at_once
        for call in calls:
            name = helper_id(chat_id, call.call_id)
            try:
                helper = await self._runtime.store.facts(name)
            except ChatNotFound as error:
                if isinstance(error, ChatDeleted):
                    await self._answer(parent, call, name, "The helper was deleted.", is_error=True)
                elif not isinstance(call.arguments.get(TASK), str):
                    await self._answer(parent, call, name, "Not begun: its task was erased.", is_error=True)
                elif room > 0:
                    room -= 1
                    await self._begin(parent, call, name)
                continue
            except ChatUnreadable as error:
                await self._answer(parent, call, name, f"The helper cannot be read: {error}", is_error=True)
                continue
            if (helper.profile.parent, helper.profile.helps) != (chat_id, call.call_id):
                await self._answer(parent, call, name, f"Chat {name} is not its helper.", is_error=True)
            elif _has_ended(helper):
                await self._bring(parent, call, helper)
            else:
                room -= 1

    async def _begin(self, parent: Facts, call: ToolCall, name: str) -> None:
        """Make a helper and give it its task, in one commit."""
        version, head = await self._runtime.store.head(parent.chat_id)
        task = str(call.arguments[TASK])

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
            chain.fire(SendMessage(parts=(TextPart(text=task),), trace=self._runtime.observers.turn_trace(name)))

        try:
            await self._runtime.applier.create(name, begin, actor=f"chat:{parent.chat_id}")
        except ChatExists:
            logger.debug("helper_begun_by_another", chat_id=name)
            return
        await self.stop_if_unwanted(await self._runtime.store.facts(name))  # the parent may be stopped meanwhile

    async def _bring(self, parent: Facts, call: ToolCall, helper: Facts) -> None:
        """Answer a call with what its helper said last."""
        said = await self._runtime.store.history(helper.chat_id, after=helper.turn.after)
        output, is_error = _result_of(helper, said)
        await self._answer(parent, call, helper.chat_id, output, is_error=is_error, helper=helper)

    async def _answer(
        self, parent: Facts, call: ToolCall, name: str, output: Json, *, is_error: bool, helper: Facts | None = None
    ) -> None:
        version, head = (0, "") if helper is None else await self._runtime.store.head(name)
        if helper is not None and version != helper.version:
            return  # it has moved on, and its worker looks again when it comes to rest
        usage = NO_USAGE if helper is None else helper.usage + helper.helpers_usage
        answer = HelperAnswer(chat_id=name, version=version, head=head, usage=usage)
        result = ToolResult(call.call_id, output, is_error)

        def submit(chain: Chain) -> None:
            known = chain.facts.calls.get(call.call_id)
            if chain.facts.awaits is not None and known is not None and known.open:
                chain.fire(SubmitToolResults(results=(result,), helper=answer))

        await self._act(parent.chat_id, submit, actor=f"chat:{name}")


def _has_ended(facts: Facts) -> bool:
    """Return whether a helper has come to rest, and waits for nobody's answer."""
    return facts.resting and facts.state in AT_REST


def _title_of(task: str) -> str:
    line = " ".join(task.split())
    return line if len(line) <= _TITLE else line[: _TITLE - 1] + "…"


def _result_of(helper: Facts, said: list[Message]) -> tuple[Json, bool]:
    """Return what a call is answered with, and whether that is an error."""
    if helper.state is ChatState.error:
        problem = helper.last_error.message if helper.last_error else "an unknown error"
        return f"The helper could not finish its task: {problem}", True
    if helper.state is ChatState.interrupted:
        return "The helper was stopped before it had finished its task.", True
    accepted = {
        message.result.call_id
        for message in said
        if message.result is not None and message.result.outcome is CallStatus.succeeded
    }
    for message in reversed(said):
        for call in message.calls:
            if call.name == ANSWER_TOOL and call.call_id in accepted:
                return call.arguments, False
    texts = [message.text for message in said if message.role == "assistant" and message.text]
    if texts:
        return texts[-1], False
    return f"The helper ended without an answer: {helper.stop_reason or 'it was never asked'}.", True
