"""Chats whose methods are run by the handlers of an engine, on behalf of an actor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator
from typing import Any

from turnwise.engine.agents.agent import Output
from turnwise.engine.chats.chats import LocalChats
from turnwise.engine.chats.declaration import CommandCall
from turnwise.engine.chats.turns import Question
from turnwise.engine.commands.handlers import Handlers
from turnwise.engine.config.results import TurnResult


class HandledChats(LocalChats):
    """Chats whose methods are run by handlers."""

    @abstractmethod
    def _handlers(self, *, changes: bool) -> Handlers:
        """Return the handlers. A closing engine refuses changes before reads."""

    async def _run(self, call: CommandCall) -> Any:
        return await call.run(self._handlers(changes=not call.command.is_read))

    def _follow(self, call: CommandCall) -> AsyncGenerator[Any, None]:
        return call.follow(self._handlers(changes=False))

    async def _answer(self, question: Question[Output]) -> TurnResult[Output]:
        return await self._handlers(changes=True)._answer(question)  # noqa: SLF001 - of `Chats`


class ActingChats(HandledChats):
    """The chats of an engine on behalf of another actor: a view, of which the engine has any number."""

    def __init__(self, chats: HandledChats, actor: str) -> None:
        self._chats = chats
        self._actor = actor

    def _handlers(self, *, changes: bool) -> Handlers:
        return self._chats._handlers(changes=changes).acting(self._actor)  # noqa: SLF001 - a view of them
