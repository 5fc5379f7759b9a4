"""Reads a chat from the lines of a file, and checks it to the last value."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from turnwise.persistence.archive.format import (
    CHAT_ID,
    COLUMNS,
    FORMAT,
    FORMAT_VERSION,
    WholeChat,
    chain_hash,
    signature_of,
    unportable,
)
from turnwise.persistence.audit.check_rows import row_key
from turnwise.persistence.audit.record import GENESIS, Entry, object_of
from turnwise.persistence.audit.verify import verify_stored
from turnwise.persistence.blobs.spool import Spool
from turnwise.persistence.chat_rows import ORDER, ChatRows, Row, blobs_of
from turnwise.persistence.integrity.examine import Found, examine, found_in
from turnwise.persistence.rows import BUDGETS, PARSE_ERRORS, load_budget, micros_of
from turnwise.states.budgets import key_of_chat
from turnwise.states.errors import ChatUnreadable, ImportRefused, TurnwiseError
from turnwise.states.facts import QUERIED, queried_columns
from turnwise.states.files import is_digest
from turnwise.states.values.digests import canonical


class ChatReader:
    """Reads a chat from lines as they come, and refuses the first that does not belong there.

    The files that come along are put into the spool.
    """

    def __init__(self, key: bytes | None, spool: Spool) -> None:
        self._key = key
        self._count = 0
        self._spool = spool
        self._line = 0
        """The last line that was not blank."""
        self._prev = GENESIS
        self._chat_id = ""
        self._started = False
        self._ended = False
        self._budget: str | None = None
        self._tables: dict[str, list[dict[str, Any]]] = {table: [] for table in COLUMNS}
        self._newest = ""
        """The table of the last row."""
        self._places: dict[str, int] = {}
        """The line of each row, by its place as a check names it."""

    def take(self, lines: Iterable[str]) -> None:
        """Read the next lines.

        Raises:
            ImportRefused: one of them is not of this chat.
        """
        for line in lines:
            self._count += 1
            if line.strip():
                self._line = self._count
                self._take(line)

    def _take(self, line: str) -> None:
        if self._ended:
            self._refuse("the chat ended before it, with its checkpoint; one file holds one chat")
        try:
            fields = object_of(line)
            stated_hash = fields.pop("hash", None)
            signature = fields.pop("signature", None)
            chained = chain_hash(self._prev, fields)
        except (*PARSE_ERRORS, TurnwiseError) as error:
            self._refuse(f"it is no line of JSON: {str(error)[:200]}")
        is_header = not self._started
        if is_header:
            self._begin(fields)
        if stated_hash != chained:
            self._refuse("it does not follow the line before it: one of them was changed, moved, or is missing")
        self._prev = chained
        if "table" in fields:
            self._take_row(fields)
        elif "blob" in fields:
            self._take_piece(fields)
        elif not is_header:
            self._end(fields, signature)

    def _begin(self, fields: dict[str, Any]) -> None:
        if fields.get("format") != FORMAT:
            self._refuse(f"the header of an exported chat belongs here, with the format {FORMAT!r}")
        if fields.get("format_version") != FORMAT_VERSION:
            version = f"{fields.get('format_version')!a:.40}"
            self._refuse(f"it has version {version} of the format, and this version of turnwise reads {FORMAT_VERSION}")
        if set(fields) - {"budget"} != {"format", "format_version", "chat_id"} or type(fields["chat_id"]) is not str:
            self._refuse("the header holds a format, its version, the id of a chat and its budget, and nothing else")
        if CHAT_ID.fullmatch(fields["chat_id"]) is None:
            self._refuse(f"{fields['chat_id']!a:.80} is no id of a chat: letters, digits, - and _ make one, up to 255")
        self._chat_id, self._started = fields["chat_id"], True
        if (budget := fields.get("budget")) is not None:
            self._budget = self._read_budget(budget)

    def _read_budget(self, budget: object) -> str:
        try:
            return BUDGETS.dump(load_budget(key_of_chat(self._chat_id), budget, self._chat_id))
        except ChatUnreadable as error:
            self._refuse(f"in the header, {error.problem}")

    def _take_row(self, fields: dict[str, Any]) -> None:
        table, row = fields["table"], fields.get("row")
        if set(fields) != {"table", "row"} or table not in COLUMNS or not isinstance(row, dict):
            self._refuse(f"a row of one of the tables {', '.join(COLUMNS)} belongs here")
        order = [*COLUMNS]
        if self._spool.blobs:
            self._refuse("a row stands after the files")
        if self._newest and order.index(table) < order.index(self._newest):
            self._refuse(f"rows of {table} come before those of {self._newest}")
        self._newest = table
        columns = COLUMNS[table]
        if set(row) != set(columns):
            self._refuse(f"a row of {table} has the columns {', '.join(columns)}")
        for column, problem in unportable(table, row):
            self._refuse(f"{table}.{column}: {problem}")
        self._tables[table].append(row)
        place = f"{table}[{row['version'] if table == 'audit' else row_key(table, row)}]"
        if place in self._places and table != "quarantine":
            self._refuse(f"{place} is there twice: first on line {self._places[place]}")
        self._places.setdefault(table, self._line)
        self._places[place] = self._line

    def _take_piece(self, fields: dict[str, Any]) -> None:
        digest, number, data = fields["blob"], fields.get("number"), fields.get("data")
        if set(fields) != {"blob", "number", "data"} or not (isinstance(digest, str) and is_digest(digest)):
            self._refuse("a piece of a file belongs here: its blob, the number of the piece, and its data")
        if not isinstance(number, int) or not isinstance(data, str):
            self._refuse("the number of a piece is a whole number, and its data a string")
        try:
            piece = b64decode(data, validate=True)
        except ValueError:
            self._refuse("the data of a piece must be base64")
        problem = self._spool.add(digest, number, piece)
        if problem is not None:
            self._refuse(problem)

    def _check_files(self, count: object) -> None:
        problem = self._spool.end()
        if problem is not None:
            self._refuse(problem)
        if count != len(self._spool.blobs):
            self._refuse(f"the checkpoint counts {count!a:.20} files, and {len(self._spool.blobs)} are there")

    def _end(self, fields: dict[str, Any], signature: object) -> None:
        if set(fields) - {"blobs"} != {"rows", "head"}:
            self._refuse("a row or the checkpoint belongs here")
        self._check_files(fields.get("blobs", 0))
        counts = {table: len(rows) for table, rows in self._tables.items() if rows}
        if fields["rows"] != counts:
            self._refuse(f"the checkpoint counts other rows than are there: {_difference(fields['rows'], counts)}")
        if self._key is not None and signature is None:
            self._refuse("the checkpoint is not signed, but a key was given")
        if self._key is not None and signature != signature_of(fields | {"hash": self._prev}, self._key):
            self._refuse("the checkpoint's signature was not made with this key over these lines")
        if fields["head"] != next((row["head"] for row in self._tables["chats"]), None):
            self._refuse("the checkpoint names another head of the log than the chat")
        self._ended = True

    def done(self) -> WholeChat:
        """Return the chat, once all of its rows were held against each other.

        Raises:
            ImportRefused: they contradict each other, or the end is missing.
        """
        if not self._ended:
            self._line += 1
            what = "the checkpoint that ends a chat" if self._started else "the header"
            self._refuse(f"{what} is missing: the file was cut off here")
        tables = self._tables
        for table, most in (("chats", 1), ("leases", 1), ("profiles", 1)):
            if len(tables[table]) > most or not (tables[table] or table == "leases"):
                self._refuse(f"it ends a chat with {len(tables[table])} rows of {table}")
        (chat,) = tables["chats"]
        if chat["id"] != self._chat_id:
            self._refuse(f"the row of the chat is of {chat['id']!a:.80}, the header of {self._chat_id!a:.80}")
        if len({row["rank"] for row in tables["queue"]}) < len(tables["queue"]):
            self._line = self._places["queue"]
            self._refuse("two messages of the queue have the same rank")
        for table in COLUMNS:
            for row in tables[table]:
                row["chat_id"] = self._chat_id
        whole = self._whole(self._rebuild_columns(chat) | chat)
        stray = whole.blobs.keys() - blobs_of(whole.rows)
        if stray:
            self._refuse(f"no row refers to the file {min(stray)}")
        verdict = verify_stored(self._chat_id, whole.rows)
        if not verdict.ok:
            self._line = self._find_line(verdict.place or f"audit[{verdict.position}]")
            self._refuse(f"the rows are not those that the log says: {(verdict.problem or '').rstrip('.')}")
        self._examine(whole)
        return whole

    def _whole(self, chat: dict[str, Any]) -> WholeChat:
        tables = self._tables
        entries = [
            Entry(row["version"], "", canonical(row["record"]).decode(), row["aside"]) for row in tables["audit"]
        ]
        lease = next(iter(tables["leases"]), None)
        rows = {table: tables[table] for table in ORDER}
        chat_rows = ChatRows(chat, lease, rows, entries, quarantined=len(tables["quarantine"]))
        return WholeChat(chat_rows, tables["quarantine"], dict(self._spool.blobs), self._budget)

    def _rebuild_columns(self, chat: dict[str, Any]) -> dict[str, Any]:
        """Return the columns of the chat's row that a file leaves out: they repeat what other rows say."""
        try:
            facts = self._whole(chat).facts
        except (TurnwiseError, *PARSE_ERRORS):
            # The checks find what cannot be read.
            texts = dict.fromkeys(("agent", "fair_key", "capped_model"), "")
            return {**dict.fromkeys((*QUERIED, "awaits", "action_of", "wake_at")), **texts, "needs": []}
        return {**queried_columns(facts), "wake_at": None if facts.wake_at is None else micros_of(facts.wake_at)}

    def _examine(self, whole: WholeChat) -> None:
        """Refuse a chat that a store could not read, or that breaks a promise."""
        for row, issue in issues_in(whole):
            table = issue.column.partition(".")[0]
            self._line = self._find_line(f"{table}[{row_key(table, row)}]")
            self._refuse(f"{issue.column}: {issue.problem}")

    def _find_line(self, place: str) -> int:
        """Return the line of what a check calls `table[row].column`; of events it may name a first and a last."""
        table, _, rest = place.partition("[")
        name = rest.rpartition("]")[0]
        first = name.partition("-")[0] if table == "events" else name
        table = table.partition(".")[0]
        return self._places.get(f"{table}[{first}]", self._places.get(table, self._line))

    def _refuse(self, problem: str) -> NoReturn:
        raise ImportRefused(self._line, problem)


def _difference(stated: object, counts: Mapping[str, int]) -> str:
    wanted = stated if isinstance(stated, dict) else {}
    tables = [table for table in COLUMNS if wanted.get(table, 0) != counts.get(table, 0)]
    return (
        ", ".join(f"{counts.get(table, 0)} of {table}, not {wanted.get(table, 0)!a:.20}" for table in tables) or "none"
    )


def issues_in(chat: WholeChat) -> Iterator[Found]:
    """Yield what a store could not read, and what breaks an invariant."""
    rows = chat.rows
    leases = [] if rows.lease is None else [rows.lease]
    yield from examine(chat.chat_id, {**rows.tables, "chats": [rows.chat], "leases": leases, "audit": _log_rows(chat)})
    for row in chat.quarantine:
        for column, problem in unportable("quarantine", row):
            yield found_in("quarantine", row, column, problem)


def _log_rows(chat: WholeChat) -> list[Row]:
    """Return the rows of the log: with its hash where the body is not the whole record."""
    return [
        {"version": entry.version, "body": entry.body, "aside": entry.aside}
        | ({"hash": bytes.fromhex(entry.hash), "digests": entry.digests} if entry.hash else {})
        for entry in chat.rows.audit
    ]
