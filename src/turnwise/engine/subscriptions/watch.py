"""Watches the store for changes by other processes and passes them on, through all failures of the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from turnwise.engine.subscriptions.broadcast import Broadcaster
from turnwise.foreign import described
from turnwise.logger import logger
from turnwise.persistence.protocol import ChatStore

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0


Hear = Callable[[str | None], Awaitable[None]]
"""Takes a hint: the id of a chat that may have changed, or `None` for "some chat"."""


async def watch(store: ChatStore, broadcaster: Broadcaster, hear: Hear) -> None:
    """Pass the store's hints on for ever, to the listeners and to the worker.

    Hints only save time, so a failure is logged once, and the watch begins anew after a growing pause.
    """

    async def pass_on(chat_id: str | None) -> None:
        broadcaster.hint(chat_id)
        try:
            await hear(chat_id)
        except Exception as error:  # noqa: BLE001 - a failed hint must not end the engine
            logger.debug("hint_failed", chat_id=chat_id, problem=described(error))

    pause, failing = _FIRST_PAUSE, False
    while True:
        try:
            async for chat_id in store.watch():
                pause, failing = _FIRST_PAUSE, False
                await pass_on(chat_id)
        except Exception as error:  # noqa: BLE001 - as above
            if not failing:
                logger.warning("watch_failed", problem=described(error))
            failing = True
        await anyio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
        await pass_on(None)  # hints of the time in between are lost
