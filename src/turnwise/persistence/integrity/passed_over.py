"""Remembers chats that could not be handled: each is logged once and tried again less and less often.

A commit on a chat, by whatever process, ends that: the chat is tried again at once.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from turnwise.foreign import text_of
from turnwise.logger import logger
from turnwise.states.errors import ChatUnreadable
from turnwise.states.values.plain import type_name

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_REMEMBERED: Final = 10_000


class _Failure(NamedTuple):
    problem: str
    version: object
    pause: float
    until: float


class PassedOver:
    """Remembers, for one process, which chats were passed over and why."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failures: OrderedDict[str, _Failure] = OrderedDict()

    def skips(self, chat_id: str, version: object) -> bool:
        """Return whether it is too early to try a chat again, which stands at a version."""
        failure = self._failures.get(chat_id)
        return failure is not None and failure.version == version and self._now() < failure.until

    def note(self, event: str, chat_id: str, error: Exception, *, version: object = None) -> None:
        """Note that a chat was passed over at a version, and log it unless the same was logged before.

        A chat that cannot be read is then left alone for a while: it does not become readable by itself.
        """
        before, problem = self._failures.get(chat_id), text_of(error, otherwise=type_name(error))
        if before is None or before.problem != problem:
            if isinstance(error, ChatUnreadable):
                logger.error(event, chat_id=chat_id, problem=problem)
            else:
                logger.exception(event, error=error, chat_id=chat_id, problem=problem)
        pause = 0.0
        if isinstance(error, ChatUnreadable):
            again = before is not None and before.version == version and before.pause > 0
            pause = min(before.pause * 2, _LONGEST_PAUSE) if again and before is not None else _FIRST_PAUSE
        self._failures[chat_id] = _Failure(problem, version, pause, self._now() + pause)
        self._failures.move_to_end(chat_id)
        if len(self._failures) > _REMEMBERED:
            self._failures.popitem(last=False)

    def forget(self, chat_id: str) -> None:
        """Note that a chat was handled: its next failure is logged again."""
        self._failures.pop(chat_id, None)
