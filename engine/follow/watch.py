"""Watching the store: other processes' changes are passed on, whatever becomes of a look for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from turnwise.engine.follow.broadcast import Broadcaster
from turnwise.logger import logger
from turnwise.persistence.protocol import ChatStore

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0


Hear = Callable[[str | None], Awaitable[None]]
"""Takes in a hint: the id of a chat that may have changed, or `None` for "some chat"."""


async def watch(store: ChatStore, broadcaster: Broadcaster, hear: Hear) -> None:
    """Pass on for ever what the store hints at, to whoever listens and to the worker.

    A hint spares waiting and proves nothing, so a look that fails is repeated, ever more seldom, and told of once.
    """

    async def pass_on(chat_id: str | None) -> None:
        broadcaster.hint(chat_id)
        try:
            await hear(chat_id)
        except Exception as error:  # noqa: BLE001 - nobody's chat may end for the sake of a hint
            logger.debug("hint_failed", chat_id=chat_id, problem=str(error))

    pause, failing = _FIRST_PAUSE, False
    while True:
        try:
            async for chat_id in store.watch():
                pause, failing = _FIRST_PAUSE, False
                await pass_on(chat_id)
        except Exception as error:  # noqa: BLE001 - as above
            if not failing:
                logger.warning("watch_failed", problem=str(error))
            failing = True
        await anyio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
        await pass_on(None)  # what happened meanwhile was not heard
