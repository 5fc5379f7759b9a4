"""Begins the chats to which calls are delegated, submits their answers, and stops unwanted ones.

All of it is idempotent: the id of a subagent follows from its call, and a call is answered once. So any worker can
continue after a crash.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import anyio
import msgspec

from turnwise.engine.agents.delegate import subagent_id
from turnwise.engine.isolation.error_texts import FailureLog
from turnwise.engine.subagents.calls import SubagentCalls
from turnwise.engine.subagents.family import has_ended, is_wanted, stop_unless_it_stays
from turnwise.engine.transactions.runtime import Runtime
from turnwise.foreign import described
from turnwise.logger import logger
from turnwise.persistence.stored_chat import PartialRead
from turnwise.states.errors import ChatDeleted, ChatNotFound, ChatUnreadable
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState

AT_ONCE: Final = 10
"""Chats whose subagents one worker looks after at a time."""
SWEPT: Final = 100
"""Chats that wait for subagents, or for any answer, that a sweep checks."""


class _Look(msgspec.Struct):
    outdated: bool = True
    """Whether the chat has changed since the look began."""
    over: asyncio.Event = msgspec.field(default_factory=asyncio.Event)


class Subagents:
    """Looks after the subagents of chats that wait for some."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._room = anyio.CapacityLimiter(AT_ONCE)
        self._looks: dict[str, _Look] = {}
        """The chats that are looked after now."""
        self._swept_after = ""
        self._asked_after: str | None = None
        self._failures = FailureLog()

    def observe(self, facts: Facts) -> None:
        """Handle a chat that waits for subagents, or a subagent that rests."""
        if facts.calls.open_delegated and facts.awaits is not None:
            self._look_after(facts.chat_id)
        elif facts.profile.parent_call is not None and has_ended(facts) and facts.profile.parent is not None:
            self._look_after(facts.profile.parent)
        if facts.state is ChatState.error:  # its calls are closed: no call waits for the subagents any more
            for call in facts.calls:
                if call.subagent is not None and not call.subagent_detached and not self._runtime.stopping:
                    self._runtime.tasks.start_soon(self._stop_abandoned, subagent_id(facts.chat_id, call.call_id))

    async def sweep(self) -> None:
        """Check some of the chats that wait for subagents, in case a crash has cut off their progress."""
        chat_ids = await self._runtime.store.awaiting_subagents(after=self._swept_after, limit=SWEPT)
        self._swept_after = chat_ids[-1] if len(chat_ids) == SWEPT else ""
        for chat_id in chat_ids:
            self._look_after(chat_id)

    async def stop_unwanted(self) -> None:
        """Stop unwanted subagents among some of the chats that wait for an answer, which no worker holds."""
        store, state = self._runtime.store, ChatState.requires_action
        rows = await store.chats(owner=None, state=state, limit=SWEPT, after=self._asked_after)
        chats = [row.facts if isinstance(row, PartialRead) else row for row in rows]
        self._asked_after = chats[-1].chat_id if len(chats) == SWEPT else None
        for facts in chats:
            if facts.profile.parent_call is not None:
                self._runtime.tasks.start_soon(self.stop_if_unwanted, facts)

    async def done(self) -> None:
        """Wait until no look is running."""
        while self._looks:
            await next(iter(self._looks.values())).over.wait()

    async def stop_if_unwanted(self, facts: Facts) -> None:
        """Interrupt a subagent that its parent no longer waits for. After a failure, its worker tries again."""
        try:
            if not await is_wanted(self._runtime.store, facts):
                await stop_subagent(self._runtime, facts.chat_id)
        except Exception as error:  # noqa: BLE001 - its worker tries again
            self._log_failure(facts.chat_id, error)

    async def _stop_abandoned(self, chat_id: str) -> None:
        with suppress(ChatNotFound, ChatUnreadable):
            await self.stop_if_unwanted(await self._runtime.store.facts(chat_id))

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
                    parent = await self._runtime.store.facts(chat_id)
                    await SubagentCalls(self._runtime, parent).answer()
        except ChatNotFound:  # it was deleted, or is not imported yet: nothing can be answered
            self._failures.succeeded(chat_id)
        except Exception as error:  # noqa: BLE001 - the next sweep looks again
            self._log_failure(chat_id, error)
        else:
            self._failures.succeeded(chat_id)
        finally:
            del self._looks[chat_id]
            look.over.set()

    def _log_failure(self, chat_id: str, error: Exception) -> None:
        """Log a failure once, until the look succeeds or fails differently."""
        if self._failures.is_new(chat_id, error):
            logger.warning("subagents_not_updated", chat_id=chat_id, problem=described(error))


async def stop_subagent(runtime: Runtime, chat_id: str) -> None:
    """Interrupt a subagent, if it works and is not detached."""
    try:
        parent = (await runtime.store.facts(chat_id)).profile.parent
        await runtime.writer.change(chat_id, stop_unless_it_stays, actor=f"chat:{parent}")
    except (ChatNotFound, ChatDeleted, ChatUnreadable) as error:
        logger.debug("subagent_not_stopped", chat_id=chat_id, problem=str(error))
