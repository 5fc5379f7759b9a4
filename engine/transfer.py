"""Moves whole chats between stores: as lines of JSON out of one, and into another."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import Final

from turnwise.engine.apply import Chain, Change
from turnwise.engine.tasks import off_the_loop
from turnwise.persistence.audit.verify import verify_stored
from turnwise.persistence.chat_file import ChatReader, WholeChat, lines_of
from turnwise.persistence.protocol import ChatStore
from turnwise.states.errors import ChatUnreadable, InvalidArgument
from turnwise.states.triggers import Imported, LeaseExpired

_AT_ONCE: Final = 500
"""Lines that are spelled or read in a thread at a time: the event loop goes on meanwhile."""


async def exported(store: ChatStore, chat_id: str, *, key: bytes | None) -> AsyncGenerator[str, None]:
    """Yield a chat as lines.

    Raises:
        ChatUnreadable: its rows are not what its log says: no store would take it in.
    """
    chat = await _whole(store, chat_id)
    verdict = await off_the_loop(lambda: verify_stored(chat_id, chat.rows))
    if not verdict.ok:
        problem = f"{(verdict.problem or '').rstrip('.')}, so no store would take the chat in"
        raise ChatUnreadable(verdict.place or "audit.body", problem, chat_id=chat_id)
    lines = lines_of(chat, key=key)
    while batch := await off_the_loop(lambda: [*islice(lines, _AT_ONCE)]):
        for line in batch:
            yield line


async def _whole(store: ChatStore, chat_id: str) -> WholeChat:
    """Return all rows of a chat. What was put aside is read apart, and changes only with the chat."""
    while True:
        rows = await store.rows(chat_id)
        if not rows.quarantined:
            return WholeChat(rows)
        aside = (await store.raw_rows(chat_id)).get("quarantine", ())
        if (await store.facts(chat_id)).version == rows.chat["version"]:
            return WholeChat(rows, aside)


async def read(lines: Iterable[str] | AsyncIterable[str], *, key: bytes | None) -> WholeChat:
    """Return the chat that lines hold, checked.

    Raises:
        ImportRefused: they are not the lines of one whole chat.
        InvalidArgument: they are no lines, or one of them is no string.
    """
    reader, count = ChatReader(key), 0
    async with aclosing(_batches(lines)) as batches:
        async for batch in batches:
            _check_lines(batch, after=count)
            count += len(batch)
            await off_the_loop(partial(reader.take, batch))
    return await off_the_loop(reader.done)


async def _batches(lines: Iterable[str] | AsyncIterable[str]) -> AsyncGenerator[list[str], None]:
    """Yield lines, some at a time: they may be many, and whoever gives them may never come to an end."""
    if isinstance(lines, AsyncIterable):
        batch: list[str] = []
        async for line in lines:
            batch.append(line)
            if len(batch) == _AT_ONCE:
                yield batch
                batch = []
        yield batch
    elif isinstance(lines, Iterable):
        left = iter(lines.split("\n") if isinstance(lines, str) else lines)
        while batch := [*islice(left, _AT_ONCE)]:
            yield batch
    else:
        raise InvalidArgument("lines", f"must be the lines that `export_chat` yields; it was {type(lines).__name__}")


def _check_lines(lines: list[str], *, after: int) -> None:
    for number, line in enumerate(lines, start=after):
        if not isinstance(line, str):
            raise InvalidArgument(f"lines[{number}]", f"must be a line of text; it was {type(line).__name__}")


def arriving(chat: WholeChat) -> Change:
    """Return the change that a chat begins its life in another store with."""
    found = chat.rows.chat

    def arrive(chain: Chain) -> None:
        chain.fire(Imported(), reason=f"imported as of version {found['version']}, {found['head']}")
        if chain.facts.lease is not None:
            chain.fire(LeaseExpired(token=chain.facts.lease.token), reason="the worker that held it is elsewhere")

    return arrive
