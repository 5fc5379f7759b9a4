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


Notify = Callable[[str | None], Awaitable[None]]
"""Takes a notification: the id of a chat that may have changed, or `None` for "some chat"."""


async def watch(store: ChatStore, broadcaster: Broadcaster, notify: Notify) -> None:
    """Pass the store's notifications on for ever, to the listeners and to the worker.

    Notifications only save time, so a failure is logged once, and the watch begins anew after a growing pause.
    """
    pause, failing = _FIRST_PAUSE, False
    while True:
        try:
            async for chat_id in store.watch():
                pause, failing = _FIRST_PAUSE, False
                await _pass_on(chat_id, broadcaster, notify)
        except Exception as error:  # noqa: BLE001 - as below
            if not failing:
                logger.warning("watch_failed", problem=described(error))
            failing = True
        await anyio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
        await _pass_on(None, broadcaster, notify)  # notifications of the time in between are lost


async def _pass_on(chat_id: str | None, broadcaster: Broadcaster, notify: Notify) -> None:
    broadcaster.notify(chat_id)
    try:
        await notify(chat_id)
    except Exception as error:  # noqa: BLE001 - a failed notification must not end the engine
        logger.debug("notification_failed", chat_id=chat_id, problem=described(error))
