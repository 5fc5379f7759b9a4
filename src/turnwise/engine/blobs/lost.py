"""Finds files that a chat refers to and that are missing from its file store, or corrupt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from turnwise.engine.blobs.files import Files
from turnwise.engine.isolation.tasks import run_in_thread
from turnwise.persistence.audit.check_rows import row_key
from turnwise.persistence.audit.verify import Verdict
from turnwise.persistence.chat_rows import KEYS, REFERRING, ChatRows, Place, Row, Rows, blobs_named_in
from turnwise.persistence.rows import PARSE_ERRORS, QUEUE, message_of
from turnwise.persistence.stored_chat import is_count
from turnwise.states.errors import StoreError, TurnwiseError
from turnwise.states.messages import Part, files_in
from turnwise.states.values.values import Value

_TABLES: Final = (*REFERRING, "partial_events")
NOT_HELD: Final = "is not held by the chat"


class LostFile(Value, frozen=True):
    """A referenced file that is missing or corrupt. The chat itself is readable."""

    digest: str
    problem: str
    """The problem, as a verb: `is not there`."""
    place: str
    """The first value that refers to it, as `table[row].column`: `messages[m3].body`."""
    part: int | None = None
    """The number of the part there, from 0 on; `None` if it is unknown."""
    name: str | None = None
    media_type: str | None = None


class MissingFileScanner:
    """Finds the lost files of one chat after another. Compares sizes, and bytes if `verify_content` is set."""

    def __init__(self, files: Files, *, verify_content: bool) -> None:
        self.files = files
        self.failure: StoreError | None = None
        """Why the scan ended: the file store cannot be reached, or is not the one that keeps the files."""
        self._verify_content = verify_content
        self._store_checked = False

    async def find_missing(self, chat_id: str, rows: Rows) -> tuple[LostFile, ...]:
        lost = await self._scan(chat_id, rows)
        # Erasure deletes the reference before the file, so re-read: a file erased meanwhile is not missing.
        return await self._scan(chat_id, await self.files.store.raw_rows(chat_id)) if lost else ()

    async def _scan(self, chat_id: str, rows: Rows) -> tuple[LostFile, ...]:
        held = {row["digest"]: row["size"] for row in rows.get("chat_files", ())}
        lost: list[LostFile] = []
        for digest, (table, row) in (await run_in_thread(_find_references, rows)).items():
            problem = await self._check(digest, held[digest]) if digest in held else NOT_HELD
            if problem is not None:
                lost.append(_describe(digest, problem, chat_id, table, row))
        return tuple(lost)

    async def _check(self, digest: str, size: Any) -> str | None:
        try:
            if self.failure is None and not self._store_checked:
                await self.files.check_place()
                self._store_checked = True
            return None if self.failure else await self._compare(digest, size)
        except StoreError as error:
            self.failure = error
            return None

    async def _compare(self, digest: str, size: Any) -> str | None:
        actual = await self.files.blobs.size(digest)
        if actual is None:
            return "is not there"
        if is_count(size) and actual != size:
            return f"is damaged: {actual:,} bytes, expected {size:,}"
        return await self.files.problem_with(digest) if self._verify_content else None


def _find_references(rows: Rows) -> Mapping[str, tuple[str, Row]]:
    """Return the digests of all files that a chat refers to, each with the first row that refers to it."""
    places: dict[str, tuple[str, Row]] = {}
    for table in _TABLES:
        for row in sorted(rows.get(table, ()), key=lambda row: [str(row[key]).zfill(20) for key in KEYS[table]]):
            for digest in blobs_named_in(row["body"]):
                places.setdefault(digest, (table, row))
    return places


def _describe(digest: str, problem: str, chat_id: str, table: str, row: Row) -> LostFile:
    place = str(Place(table, row_key(table, row), ("body",)))
    for number, part in enumerate(_read_parts(chat_id, table, row)):
        for file in files_in([part]):
            if file.blob == digest:
                return LostFile(digest, problem, place, number, file.name, file.media_type)
    return LostFile(digest, problem, place)


def _read_parts(chat_id: str, table: str, row: Row) -> Sequence[Part]:
    try:
        if table == "messages":
            return message_of(row["format"], row["body"], chat_id).parts
        return QUEUE.load(row["body"], chat_id).parts if table == "queue" else ()
    except (*PARSE_ERRORS, TurnwiseError):
        return ()


async def verify_files(files: Files, rows: ChatRows) -> Verdict:
    """Return the verdict on the files of a chat whose audit log is valid.

    The log binds the messages, and a message names the digest of each file: so the log binds the bytes, too.
    """
    while not (verdict := await _verify_references(files, rows)).ok:
        # As above: a file erased meanwhile is not missing.
        later = await files.store.rows(rows.chat["id"])
        if later.chat["version"] == rows.chat["version"]:
            break
        rows = later
    return verdict


async def _verify_references(files: Files, rows: ChatRows) -> Verdict:
    referring: dict[str, Row] = {}
    for row in rows.tables["messages"]:
        for digest in blobs_named_in(row["body"]):
            referring.setdefault(digest, row)
    held = await files.store.held_files(rows.chat["id"], referring) if referring else {}
    for digest, row in referring.items():
        problem = await files.problem_with(digest) if digest in held else NOT_HELD
        if problem is not None:
            place = Place("messages", row_key("messages", row), ("body",))
            return Verdict(ok=False, problem=f"The file {digest} {problem}.", position=row["added"], place=str(place))
    return Verdict(ok=True)
