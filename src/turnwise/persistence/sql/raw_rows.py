"""The rows of a chat as they are stored: to inspect, export, import, check, erase, repair or delete it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from turnwise.persistence.archive.format import COLUMNS, WholeChat
from turnwise.persistence.audit.digests import WriteRecord
from turnwise.persistence.audit.record import Entry, object_of, split
from turnwise.persistence.chat_rows import KEYS, ORDER, ChatRows, Rows
from turnwise.persistence.commit import CachedChat, Decided, Tables, decide, decisions_on
from turnwise.persistence.erasure import erases, wipe
from turnwise.persistence.integrity.examine import build_unreadable
from turnwise.persistence.integrity.repair import Repair, repair_of
from turnwise.persistence.protocol import Permission, Plan
from turnwise.persistence.rows import PARSE_ERRORS, PROFILES, micros_of, time_of
from turnwise.persistence.shares import COUNTED
from turnwise.persistence.sql.budgets import forget_chat, funds_of, import_budget, unreadable_budgets
from turnwise.persistence.sql.database import SQLDatabase
from turnwise.persistence.sql.files import release_all, release_others, take_over
from turnwise.persistence.sql.reads import ChatReads
from turnwise.persistence.sql.tombstones import check_not_deleted, insert_tombstone, missing, stored_tombstone
from turnwise.persistence.stored_chat import IntegrityIssue, PartialRead, unread_rest
from turnwise.persistence.tombstone import Tombstone, tombstone_of
from turnwise.states.decide import Decision
from turnwise.states.errors import ChatNotFound
from turnwise.states.facts import QUERIED, queried_columns
from turnwise.states.writes import InsertMessage

_T = TypeVar("_T")


async def tables_of(db: SQLDatabase) -> list[str]:
    """Return the tables whose rows belong to chats, apart from `chats` itself and `chat_files`."""
    return await db.fetch_column("tables_of_chats")


async def rows_of(db: SQLDatabase, chat_id: str) -> Rows:
    """Return all rows that belong to a chat, by table, or raise `ChatNotFound`: there is no such chat."""
    async with db.one_moment():
        rows = {"chats": await db.fetch_dicts("SELECT * FROM chats WHERE id = :chat_id", chat_id=chat_id)}
        if not rows["chats"]:
            raise await missing(db, chat_id)
        for table in await tables_of(db):
            rows[table] = await db.fetch_dicts(f"SELECT * FROM {table} WHERE chat = {{chat}}", chat_id=chat_id)  # noqa: S608 - a name of our own
        rows["chat_files"] = await db.fetch_dicts("SELECT * FROM chat_files WHERE chat_id = :chat_id", chat_id=chat_id)
    return rows


async def read_or_blame(db: SQLDatabase, chat_id: str, read: Callable[[], Awaitable[_T]]) -> _T:
    """Run a read of a chat and return its result.

    Raises:
        ChatUnreadable: a stored value of the chat cannot be read.
    """
    try:
        return await read()
    except db.refusals:
        raise
    except PARSE_ERRORS as error:
        raise build_unreadable(chat_id, await rows_of(db, chat_id), error) from error


async def orphans_in(db: SQLDatabase) -> list[IntegrityIssue]:
    """Return an issue for each table and id whose rows belong to no chat, and for each budget that cannot be read."""
    issues = await unreadable_budgets(db)
    for table in await tables_of(db):
        sql = f"SELECT chat, count(*) FROM {table} WHERE chat NOT IN (SELECT number FROM chats) GROUP BY 1"  # noqa: S608 - a name of our own
        for number, rows in await db.fetch_sql(sql):
            issues.append(
                IntegrityIssue(f"{table}.chat", f"{rows} row(s) of {number!a:.60}, which is the number of no chat")
            )
    return issues


async def rows_of_chat(db: SQLDatabase, chat_id: str) -> ChatRows:
    async with db.one_moment():
        chats = await db.fetch_dicts(db.chat_row, chat_id=chat_id)
        if not chats:
            raise await missing(db, chat_id)
        tables = {
            table: [{**_plain(row), "chat_id": chat_id} for row in await _fetch_ordered(db, chat_id, table)]
            for table in ORDER
        }
        entries = [Entry(*row) for row in await db.fetch("audit", chat_id=chat_id)]
        ((quarantined,),) = await db.fetch("quarantined", chat_id=chat_id)
    chat = _plain(chats[0])
    lease = None if chat["worker"] is None and chat["token"] is None else chat
    return ChatRows(chat, lease, tables, entries, db.names, parts=db.parts, quarantined=quarantined)


async def _fetch_ordered(db: SQLDatabase, chat_id: str, table: str) -> list[dict[str, Any]]:
    sql = f"SELECT * FROM {table} WHERE chat = {{chat}} ORDER BY {ORDER[table]}"  # noqa: S608 - names of our own
    return await db.fetch_dicts(db.event_rows if table == "events" else sql, chat_id=chat_id)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its times in microseconds; what is erased or not is no number."""
    plain = {name: micros_of(value) if isinstance(value, datetime) else value for name, value in row.items()}
    return plain | {"erased": bool(plain["erased"])} if "erased" in plain else plain


async def wipe_all(db: SQLDatabase, chat_id: str, decisions: Sequence[Decision]) -> list[WriteRecord]:
    """Blank the rows that hold what the decisions erase, inside a transaction; return the digests stated anew."""
    restated: list[WriteRecord] = []
    for decision in decisions:
        if erases(decision.writes):
            restated += await _wipe(db, chat_id, decision)
    return restated


async def _wipe(db: SQLDatabase, chat_id: str, decision: Decision) -> list[WriteRecord]:
    rows = await rows_of_chat(db, chat_id)
    wiped = await read_or_blame(db, chat_id, lambda: db.compute(wipe, rows, decision))
    for change in wiped.changes:
        put = ", ".join(f"{column} = :new_{column}" for column in change.values)
        where = "".join(f" AND {column} = :{column}" for column in change.key)
        does = f"UPDATE {change.table} SET {put}" if put else f"DELETE FROM {change.table}"  # noqa: S608 - names of our own
        values = {f"new_{column}": value for column, value in change.values.items()}
        await db.execute_sql(f"{does} WHERE chat = {{chat}}{where}", chat_id=chat_id, **change.key, **values)
    await release_others(db, chat_id, wiped.blobs)
    return wiped.row_digests


async def repaired(db: SQLDatabase, chat_id: str, plan: Plan) -> Decided:
    """Let a plan decide on what can be read of a chat, and put the rest aside if it decides something."""
    at = await db.now()
    repair = repair_of(chat_id, await rows_of(db, chat_id), at)
    decided = decide(CachedChat(repair.facts, repair.head, at), plan, await funds_of(db, repair.facts, at))
    if decided.decisions:
        await _store_repair(db, repair, at)
    return decided


async def _store_repair(db: SQLDatabase, repair: Repair, at: datetime) -> None:
    """Move unreadable rows to `quarantine`, insert their replacements, and update the chat's own row."""
    facts, chat_id, version = repair.facts, repair.facts.chat_id, repair.facts.version + 1
    for put in repair.aside:
        row = {"version": version, "origin": put.table, "problem": put.problem, "row": put.body}
        await db.insert("quarantine", [{"chat_id": chat_id, **row}])
        if put.deleted:
            key = {name: put.row[name] for name in KEYS[put.table]}
            where = "".join(f" AND {name} IS NOT DISTINCT FROM :{name}" for name in key)
            owner = "chat_id = :chat_id" if put.table == "chat_files" else "chat = {chat}"
            sql = f"DELETE FROM {put.table} WHERE {owner}{where}"  # noqa: S608 - names of our own
            await db.execute_sql(sql, chat_id=chat_id, **key)
    tables = Tables(chat_id, at)
    for number, mark in enumerate(repair.marks):
        tables.add(InsertMessage(mark), version, number)
    await db.insert("messages", tables.rows.get("messages", ()))
    if any(issue.column.startswith("profiles.") for issue in repair.issues):
        await db.execute("put_profile", chat_id=chat_id, body=PROFILES.dump(facts.profile))
    worker, token = (facts.lease.worker, facts.lease.token) if facts.lease else (None, None)
    await db.execute(
        "repaired",
        chat_id=chat_id,
        version=facts.version,
        event_seq=facts.last_seq,
        head=repair.head,
        state=facts.state_as_stored,
        worker=worker,
        token=token,
        wake_at=facts.wake_at,
        **queried_columns(facts),
    )


async def delete(db: SQLDatabase, chat_id: str, permit: Permission, actor: str) -> Tombstone:
    """Delete a chat, as `ChatStore.delete` promises, inside a transaction. Done again, it returns the tombstone."""
    # It locks the chat before anything is read: a change comes before, and goes too, or finds no chat.
    row = await db.fetch_one("lock_head", chat_id=chat_id)
    if row is None:
        buried = await stored_tombstone(db, chat_id)
        if buried is None:
            raise ChatNotFound(chat_id)
        return buried
    at = await db.now()
    rest = await _rest(db, chat_id)
    permit(rest, at)
    ((records,),) = await db.fetch("records", chat_id=chat_id)
    tombstone = tombstone_of(rest, at=at, actor=actor, records=records, head=row[0])
    await insert_tombstone(db, tombstone, owner=rest.facts.profile.owner)
    await forget_chat(db, rest.facts, at)
    await release_all(db, chat_id)
    for table in await tables_of(db):
        await db.execute_sql(f"DELETE FROM {table} WHERE chat = {{chat}}", chat_id=chat_id)  # noqa: S608 - a name of our own
    await db.execute("delete_chat", chat_id=chat_id)
    return tombstone


async def _rest(db: SQLDatabase, chat_id: str) -> PartialRead:
    """Return the readable part of a chat: only its id, if even reading the rows fails."""
    try:
        return await ChatReads(db, chat_id).rest()
    except db.refusals:
        raise
    except PARSE_ERRORS as error:
        return unread_rest(chat_id, error)


_ELSEWHERE: Final = {"chat_id", "version", "prev", "hash"}
"""The fields of a record that its row says, or the row before it."""
_TIMES: Final = ("since", "deadline", "at", "expires", "wake_at")


def tables_in(chat: WholeChat) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a chat, but for its lease, by table."""
    tables = {**chat.rows.tables, "chats": [chat.rows.chat], "quarantine": chat.quarantine}
    rows = {table: [{name: row[name] for name in COLUMNS[table]} for row in stored] for table, stored in tables.items()}
    changed_seldom = (*QUERIED, "wake_at", *COUNTED)
    rows["chats"][0] |= {name: chat.rows.chat[name] for name in changed_seldom}
    return rows | {"audit": [_record(entry) for entry in chat.rows.audit]}


def _record(entry: Entry) -> dict[str, Any]:
    record = object_of(entry.body)
    body, digests = split({name: value for name, value in record.items() if name not in _ELSEWHERE})
    own = {"version": entry.version, "hash": bytes.fromhex(record["hash"]), "aside": entry.aside}
    return {**own, "body": body, "digests": digests}


_Tables = Mapping[str, Iterable[Mapping[str, Any]]]


async def imported(db: SQLDatabase, chat: WholeChat, plan: Plan, tables: Callable[[WholeChat], _Tables]) -> Decided:
    """Let a plan decide on an exported chat, with its lease of that time; insert its rows if it decides something.

    Args:
        db: within a transaction.
        chat: the chat.
        plan: of the import.
        tables: returns the rows as this store spells them, by table.

    Raises:
        ChatDeleted: the id was taken, by a chat that was deleted.
    """
    at = await db.now()
    current = CachedChat(chat.facts, chat.rows.chat["head"], at, chat.rows.chat["facts"])
    if decisions_on(current, plan, None):
        await import_budget(db, chat.chat_id, chat.budget)
    decided = decide(current, plan, await funds_of(db, current.facts, at))
    if decided.decisions:
        await _insert_imported(db, chat, tables(chat))
    return decided


async def _insert_imported(db: SQLDatabase, chat: WholeChat, tables: _Tables) -> None:
    await db.insert("chats", [_parse_times(row) for row in tables["chats"]])
    # Not before: a deletion under way holds the id up until it has committed.
    await check_not_deleted(db, chat.chat_id)
    for table, rows in tables.items():
        if table != "chats":
            await db.insert(table, [{**_parse_times(row), "chat_id": chat.chat_id} for row in rows])
    await take_over(db, chat.chat_id, chat.blobs)


def _parse_times(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: time_of(value) if name in _TIMES and type(value) is int else value for name, value in row.items()}
