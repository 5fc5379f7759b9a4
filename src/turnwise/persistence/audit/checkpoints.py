"""Checkpoints that were published: signed lines that say where the log of a chat stood, outside of the store.

An attacker who rewrites a database can compute every hash again, but cannot change what was published before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import orjson
from msgspec.structs import asdict

from turnwise.persistence.audit.record import GENESIS, object_of
from turnwise.persistence.audit.signing import PublicKeys, SigningKey
from turnwise.persistence.stored_chat import is_hash
from turnwise.states.errors import InvalidArgument
from turnwise.states.values.digests import canonical

FORMAT: Final = "turnwise-checkpoint/1"
"""The format that each line names."""
_FIELDS: Final = frozenset({"format", "chat_id", "count", "head", "at", "prev", "key_id", "signature"})


class Head(msgspec.Struct, frozen=True):
    """Where a log stands: how many records it has, and the hash of the last."""

    chat_id: str
    count: int
    head: str

    @property
    def is_sound(self) -> bool:
        """Whether a log can stand there. A line that says anything else would make readers refuse all lines."""
        return isinstance(self.chat_id, str) and type(self.count) is int and self.count >= 1 and is_hash(self.head)


class Contradiction(ValueError):
    """A log is not the one that was published, or what was published is not whole. Its text says where."""

    def __init__(self, position: int, problem: str) -> None:
        self.position = position
        super().__init__(problem)


def checkpoint_line(stands: Head, *, at: datetime, prev: str, key: SigningKey) -> str:
    """Return a line, without its line feed: where a log stands, after the line whose hash is `prev`.

    Raises:
        ValueError: no log can stand there.
    """
    if not stands.is_sound:
        raise ValueError(f"no log stands at {stands}; nothing was signed")
    fields = {**asdict(stands), "format": FORMAT, "at": at.astimezone(UTC).isoformat(), "prev": prev}
    fields["key_id"] = key.key_id
    return json.dumps(
        {**fields, "signature": key.signature_of(canonical(fields))}, sort_keys=True, separators=(",", ":")
    )


def hash_of_line(line: str | bytes) -> str:
    """Return the hash by which the next line names this one."""
    return hashlib.sha256(line.encode(errors="surrogatepass") if isinstance(line, str) else line).hexdigest()


class Published(msgspec.Struct, frozen=True):
    """Checkpoints as they were published, and the keys that they must be signed with."""

    text: str
    keys: PublicKeys

    def cover(self, chat_id: str, hashes: Sequence[str]) -> int:
        """Return the version up to which they bear out a chat's log, given the hashes of its records in order.

        Raises:
            Contradiction: the log is not the one that was published, or has no checkpoint, or a line is missing or is
                not signed with one of the keys.
        """
        try:
            name = json.dumps(chat_id)
            of_chat = [stood for stood in self._read_lines(lambda line: name in line) if stood.chat_id == chat_id]
        except ValueError as error:
            raise Contradiction(len(hashes) + 1, f"The checkpoints cannot be relied on: {error}.") from error
        if not of_chat:
            raise Contradiction(len(hashes) + 1, "None of the checkpoints is of this chat.")
        return covered_by(of_chat, hashes)

    def by_chat(self) -> dict[str, list[Stood]]:
        """Return the checkpoints of each chat.

        Raises:
            ValueError: a line is missing or is not signed with one of the keys.
        """
        found: dict[str, list[Stood]] = {}
        for stood in self._read_lines(lambda _: True):
            found.setdefault(stood.chat_id, []).append(stood)
        return found

    def _read_lines(self, wanted: Callable[[str], bool]) -> Iterator[Stood]:
        """Yield the checkpoints of lines that are wanted.

        Of all others only the last of each chain is checked: through `prev` its signature covers those before it.
        """
        *whole, under_way = self.text.split("\n")
        lines = [*whole, *([under_way] if _read_prev(under_way) is not None else [])]  # else it was being written
        seen, named = {GENESIS}, set[str]()
        mine: list[int] = []
        ends: dict[str, int] = {}
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            prev, hash_ = _read_prev(line), hash_of_line(line)
            if prev is not None and prev not in seen:
                raise ValueError(f"line {number} follows a line that is missing")
            seen.add(hash_)
            named.add(prev or "")
            ends[hash_] = number
            if prev is not None and wanted(line):
                mine.append(number)
        for number in sorted({*mine, *(number for hash_, number in ends.items() if hash_ not in named)}):
            yield self._read(lines[number - 1], number)

    def _read(self, line: str, number: int) -> Stood:
        try:
            fields = object_of(line)
        except ValueError as error:
            raise ValueError(f"line {number} is none: {error}") from error
        signature = fields.pop("signature", None)
        if {*fields, "signature"} != _FIELDS or fields["format"] != FORMAT:
            raise ValueError(f"line {number} is none: it has not the fields of {FORMAT}")
        if not self.keys.bear_out(canonical(fields), signature, key_id=fields["key_id"]):
            raise ValueError(f"line {number} is not signed with a key that was given")
        chat_id, count, head, at = fields["chat_id"], fields["count"], fields["head"], fields["at"]
        if type(count) is not int or count < 1 or not all(isinstance(text, str) for text in (chat_id, head, at)):
            raise ValueError(f"line {number} has a field of the wrong type")
        return Stood(chat_id, count, head, at, number)


class Stood(msgspec.Struct, frozen=True):
    """Where a log stood, as it was published."""

    chat_id: str
    count: int
    head: str
    at: str
    line: int


def covered_by(checkpoints: Sequence[Stood], hashes: Sequence[str]) -> int:
    """Return the version up to which checkpoints of a chat bear out its log.

    Raises:
        Contradiction: the log is not the one that was published.
    """
    covered = 0
    for checkpoint in sorted(checkpoints, key=lambda checkpoint: checkpoint.count):
        name = f"The checkpoint of {checkpoint.at}, in line {checkpoint.line},"
        if checkpoint.count > len(hashes):
            counts = f"counts {checkpoint.count} records, but the log holds {len(hashes)}"
            raise Contradiction(len(hashes) + 1, f"{name} {counts}: its end was cut off.")
        if checkpoint.head != hashes[checkpoint.count - 1]:
            several = checkpoint.count - covered > 1
            since = f"between versions {covered + 1} and {checkpoint.count}" if several else "there"
            problem = (
                f"{name} says that version {checkpoint.count} had the hash {checkpoint.head}, but the log has "
                f"{hashes[checkpoint.count - 1]}: it was rewritten {since}."
            )
            raise Contradiction(checkpoint.count, problem)
        covered = checkpoint.count
    return covered


def published(checkpoints: str | None, public_key: bytes | None) -> Published | None:
    """Return the checkpoints that arguments name; `None` if they name none.

    Raises:
        InvalidArgument: there is no key to check them with, or a key and nothing that it checks.
        SettingsError: the key is none.
    """
    if checkpoints is None:
        if public_key is not None:
            raise InvalidArgument(
                "public_key", "is for checkpoints or an exported log; a chat of a store is not signed"
            )
        return None
    if public_key is None:
        raise InvalidArgument(
            "public_key", "must be given with checkpoints: without it anybody could have written them"
        )
    return Published(checkpoints, PublicKeys(public_key))


def _read_prev(line: str) -> str | None:
    """Return the hash of the line before it; `None` if that is no line of checkpoints, such as half of one."""
    try:
        fields: Any = orjson.loads(line)
    except ValueError:
        return None
    prev = fields.get("prev") if isinstance(fields, dict) else None
    return prev if isinstance(prev, str) else None
