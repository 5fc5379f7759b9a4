"""Moves whole chats between stores: as lines of JSON out of one, and into another."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import Final

from turnwise.engine.blobs.files import Files
from turnwise.engine.isolation.tasks import run_in_thread
from turnwise.engine.transactions.chat_writer import UnitOfWork
from turnwise.persistence.archive.format import ArchiveWriter, WholeChat, each_line
from turnwise.persistence.archive.reader import ChatReader, issues_in
from turnwise.persistence.audit.verify import verify_stored
from turnwise.persistence.blobs.protocol import BlobGone, closing, intact
from turnwise.persistence.blobs.spool import Spool
from turnwise.persistence.chat_rows import ChatRows, blobs_of
from turnwise.persistence.integrity.examine import Found
from turnwise.persistence.rows import BUDGETS
from turnwise.states.budgets import key_of_chat
from turnwise.states.errors import ChatUnreadable, InvalidArgument
from turnwise.states.triggers import Imported, LeaseExpired

_LONG: Final = 100_000
"""Characters of a line after which no other is read together with it."""
_AT_ONCE: Final = 500
"""Lines that a thread writes or reads at a time."""


async def exported(files: Files, chat_id: str, *, key: bytes | None) -> AsyncGenerator[str, None]:
    """Yield a chat as lines, unless its rows contradict its log, or cannot be read: no store would import it."""
    chat = await _whole(files, chat_id)
    verdict = await run_in_thread(verify_stored, chat_id, chat.rows)
    if not verdict.ok:
        problem = f"{(verdict.problem or '').rstrip('.')}, so no store would take the chat in"
        raise ChatUnreadable(verdict.place or "audit.body", problem, chat_id=chat_id)
    issues: list[Found] = await run_in_thread(list, issues_in(chat))
    for _, issue in issues:
        raise ChatUnreadable(issue.column, f"{issue.problem}, so no store would take the chat in", chat_id=chat_id)
    writer = ArchiveWriter(chat)
    lines = writer.rows()
    batch: list[str]
    while batch := await run_in_thread(list, islice(lines, _AT_ONCE)):
        for line in batch:
            yield line
    for digest in chat.blobs:
        number = 0
        try:
            async with closing(intact(digest, files.blobs.read(digest))) as pieces:
                async for piece in pieces:
                    yield writer.piece(digest, number, piece)
                    number += 1
        except BlobGone as gone:
            problem = f"the file {digest} {gone.problem}, since the export began; export the chat again"
            raise ChatUnreadable("messages.body", problem, chat_id=chat_id) from gone
    yield writer.checkpoint(key)


async def _whole(files: Files, chat_id: str) -> WholeChat:
    """Return all rows of a chat. Quarantined rows, which are read separately, change only with the chat."""
    store = files.store
    budgets = await store.budgets(keys=[key_of_chat(chat_id)])
    budget = BUDGETS.dump(budgets[0]) if budgets else None
    while True:
        rows = await store.rows(chat_id)
        blobs = await _intact_blobs(files, rows)
        if not rows.quarantined:
            return WholeChat(rows, blobs=blobs, budget=budget)
        aside = (await store.raw_rows(chat_id)).get("quarantine", ())
        if (await store.facts(chat_id)).version == rows.chat["version"]:
            return WholeChat(rows, aside, blobs, budget)


async def _intact_blobs(files: Files, rows: ChatRows) -> dict[str, int]:
    """Return the sizes of the chat's blobs, except those that are gone or damaged."""
    wanted = await run_in_thread(lambda: sorted(blobs_of(rows)))
    held = await files.store.held_files(rows.chat["id"], wanted) if wanted else {}
    return {digest: held[digest] for digest in wanted if digest in held and await files.problem_with(digest) is None}


async def read(lines: Iterable[str] | AsyncIterable[str], spool: Spool, *, key: bytes | None) -> WholeChat:
    """Return the chat that lines hold, checked; its files are in the spool."""
    reader, count = ChatReader(key, spool), 0
    async with aclosing(_batches(lines)) as batches:
        async for batch in batches:
            for number, line in enumerate(batch, start=count):
                if not isinstance(line, str):
                    raise InvalidArgument(f"lines[{number}]", f"must be a line of text; it was {type(line).__name__}")
            count += len(batch)
            await run_in_thread(partial(reader.take, batch))
    return await run_in_thread(reader.done)


async def _batches(lines: Iterable[str] | AsyncIterable[str]) -> AsyncGenerator[list[str], None]:
    batch: list[str] = []
    async with closing(each_line(lines)) as each:
        async for line in each:
            batch.append(line)
            if len(batch) == _AT_ONCE or (isinstance(line, str) and len(line) > _LONG):
                yield batch
                batch = []
    yield batch


def store_import(chat: WholeChat, unit: UnitOfWork) -> None:
    row = chat.rows.chat
    unit.fire(Imported(), reason=f"imported as of version {row['version']}, {row['head']}")
    if unit.facts.lease is not None:
        unit.fire(LeaseExpired(token=unit.facts.lease.token), reason="the worker that held it is elsewhere")
