"""A store with many chats at rest: a few that an engine made, and copies of them.

The copies are rows under other ids and owners, made by the database: to read and to go on they are like any chat, but
their audit logs name the first ones, so `verify` fails for them.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import anyio
import asyncpg
from scaling import server
from workload import DELTA, DELTAS, TOOL_ARGUMENTS, TOOL_NAME

from turnwise import ChatState, ClientTool, Engine, ModelError, ModelPart, ModelReply, ModelRequest, Settings, TextPart
from turnwise.providers.reply_builder import join

ASK: Final = ClientTool("ask", "Ask the user.", {"type": "object"}, deadline=1e6)
OWNER: Final = "owner-1"
"""Has twenty chats, as every owner but one has."""
BIG_OWNER: Final = "everyone"
"""Has every other chat."""
RARE: Final = ChatState.error
"""The state of no chat but the ten oldest."""

_KINDS: Final = {"waiting": 90, "new": 4, "stopped": 2, "asking": 2, "archived": 2}
"""How many of a hundred chats are of each kind."""
_FAILED: Final = 10
_CHATS_OF_AN_OWNER: Final = 20
_CHUNK: Final = 20_000
_WANTED: Final = 200
"""How many ids are asked for: each operation is measured on some of them."""
_TABLES: Final = (
    "chats", "facts", "profiles", "messages", "boundaries", "calls", "queue", "receipts", "usage", "audit", "events",
    "partial_events",
)  # fmt: skip
"""Those of either store that a chat at rest has rows in. The rows of chats come first: others refer to them."""

_Copy = tuple[str, str, str]
"""The id of the new chat, its owner, and the id of the chat that it is a copy of."""


class ScriptedModel:
    """Does what the last message says: fails, hangs, asks the client, is brief, or takes the turn of the race."""

    name = "scripted"
    provider = "fake"
    context_limit = None

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Yield the answer."""
        last = request.messages[-1]
        said = last.parts[0].text if last.role == "user" and isinstance(last.parts[0], TextPart) else None
        match said:
            case "failed":
                raise ModelError("bad_request", message="as was asked")
            case "asking" | "archived":
                yield ModelPart("tool_call", id=f"call-{time.monotonic_ns()}", name=ASK.name, arguments="{}")
            case "hanging":
                await asyncio.Event().wait()
            case "waiting" | "stopped":
                yield ModelPart("text_delta", text=DELTA)
            case None:
                for _ in range(DELTAS):
                    yield ModelPart("text_delta", text=DELTA)
            case _:
                yield ModelPart("tool_call", id=f"call-{time.monotonic_ns()}", name=TOOL_NAME, arguments=TOOL_ARGUMENTS)
        yield ModelPart("finish", stop_reason="end_turn")

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Return the same, whole."""
        return join([part async for part in self.stream(request)])


async def fill(url: str, chats: int) -> list[str]:
    """Fill an empty store with that many chats, and return ids of some that wait after a turn, in any order."""
    firsts = await _lived(url)
    waiting = [firsts["waiting"]]
    async for chunk in copied(url, _copies(firsts, chats - len(_KINDS) - _FAILED)):
        waiting += _waiting(chunk, firsts)
    return random.Random(1).sample(waiting, min(len(waiting), _WANTED))  # noqa: S311 - a choice, no secret


async def copied(url: str, chunks: Iterator[list[_Copy]]) -> AsyncIterator[list[_Copy]]:
    """Copy chats, and yield each chunk of copies once it is stored."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as file:
            _begin_in_sqlite(file)
            for chunk in chunks:
                _copy_in_sqlite(file, chunk)
                yield chunk
    else:
        address, _, schema = url.rpartition("schema=")
        server = await asyncpg.connect(address.rstrip("?&"), server_settings={"search_path": schema})
        await server.execute("SET synchronous_commit = off; SET statement_timeout = 0")
        await server.execute("CREATE TEMP TABLE copies (new_id text, owner text, first_id text)")
        for chunk in chunks:
            await _copy_in_postgres(server, chunk)
            yield chunk
        await server.execute("VACUUM ANALYZE")  # what the server would begin by itself while it is measured
        await server.close()


async def _lived(url: str) -> dict[str, str]:
    """Live the first chats, and return the id of one of each kind."""
    firsts = {}
    async with Engine(url, model=ScriptedModel(), settings=Settings(durability="normal")) as engine:
        for kind in (*["failed"] * _FAILED, *_KINDS):
            chat = await engine.create_chat(owner=BIG_OWNER, client_tools=[ASK])
            firsts[kind] = chat.id
            if kind != "new":
                await engine.ask(chat.id, kind)
            if kind == "stopped":
                await engine.send_message(chat.id, "hanging")
                await engine.interrupt(chat.id)
                await engine.wait(chat.id)
            if kind == "archived":
                await engine.archive(chat.id)
    return firsts


def _copies(firsts: Mapping[str, str], chats: int) -> Iterator[list[_Copy]]:
    """Yield the copies to make of each kind's chat, a chunk at a time."""
    kinds = [firsts[kind] for kind, share in _KINDS.items() for _ in range(share)]
    random.Random(1).shuffle(kinds)  # noqa: S311 - an order, no secret
    return copies(kinds, chats)


def copies(kinds: list[str], chats: int) -> Iterator[list[_Copy]]:
    """Yield the copies to make, a chunk at a time. Their ids rise with time, as those of an engine do."""
    began = int(time.time() * 1000)
    for start in range(0, chats, _CHUNK):
        yield [
            (
                f"c{began + number:011x}{number * 0x9E3779B97F4A7C15 % 2**56:014x}",
                BIG_OWNER if number % 2 else f"owner-{number // 2 // _CHATS_OF_AN_OWNER}",
                kinds[number % len(kinds)],
            )
            for number in range(start, min(start + _CHUNK, chats))
        ]


def _waiting(chunk: list[_Copy], firsts: Mapping[str, str]) -> list[str]:
    found = [new for new, _, first in chunk if first == firsts["waiting"]]
    return random.Random(1).sample(found, min(len(found), _WANTED))  # noqa: S311 - a choice, no secret


def _inserted(table: str, columns: list[str]) -> str:
    """Return the statement that copies a table's rows of the first chats."""
    if table == "chats":
        changed = {"id": "new_id", "owner": "copies.owner", "fair_key": "copies.owner"}
        joined = "chats AS rows ON rows.id = first_id"
    else:
        key, first = ("chat", "old.number") if "chat" in columns else ("chat_id", "first_id")
        changed = {"chat": "new.number", "chat_id": "new_id"}
        joined = (
            "chats AS old ON old.id = first_id JOIN chats AS new ON new.id = new_id"
            f" JOIN {table} AS rows ON rows.{key} = {first}"
        )
    values = ", ".join(changed.get(column, f"rows.{column}") for column in columns)
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values}"  # noqa: S608 - names of our own
        f" FROM copies JOIN {joined} ORDER BY new_id"
    )


def _begin_in_sqlite(file: sqlite3.Connection) -> None:
    for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -200000", "temp_store = MEMORY"):
        file.execute(f"PRAGMA {pragma}")
    file.execute("CREATE TEMP TABLE copies (new_id TEXT, owner TEXT, first_id TEXT)")


def _copy_in_sqlite(file: sqlite3.Connection, chunk: list[_Copy]) -> None:
    file.execute("BEGIN")
    file.execute("DELETE FROM copies")
    file.executemany("INSERT INTO copies VALUES (?, ?, ?)", chunk)
    for table in _TABLES:
        columns = [
            name for _, name, *_ in file.execute(f"PRAGMA table_info ({table})") if name != "number" or table == "usage"
        ]
        if columns:
            file.execute(_inserted(table, columns))
    file.execute("COMMIT")


async def _copy_in_postgres(server: asyncpg.Connection, chunk: list[_Copy]) -> None:
    sql = "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = $1"
    async with server.transaction():
        await server.execute("TRUNCATE copies")
        await server.copy_records_to_table("copies", records=chunk)
        for table in _TABLES:
            columns = [name for (name,) in await server.fetch(sql, table) if name != "number" or table == "usage"]
            if columns:
                await server.execute(_inserted(table, columns))


@contextmanager
def empty_store(kind: str, directory: Path) -> Iterator[str]:
    """Yield the URL of an empty store."""
    if kind == "sqlite":
        yield f"sqlite:///{directory}/chats.db"
        return
    with server() as address:
        schema = f"bench_{os.getpid()}"
        yield f"{address}{'&' if '?' in address else '?'}schema={schema}"
        anyio.run(_drop, address, schema)


async def _drop(address: str, schema: str) -> None:
    connection = await asyncpg.connect(address)
    await connection.execute(f"SET client_min_messages = warning; DROP SCHEMA {schema} CASCADE")
    await connection.close()
