"""The audit log: one record for every transition, chained by hashes, and its export."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from turnwise.persistence.audit.digests import Aside, WriteRecord, aside_of
from turnwise.persistence.audit.signing import SigningKey
from turnwise.states.decide import Decision
from turnwise.states.values.digests import canonical, canonical_row
from turnwise.states.values.values import Value

GENESIS: Final = "0" * 64
"""The `prev` of a chat's first record."""

FORMAT: Final = "turnwise-audit/1"
"""The format that the header of an export names."""


MOST: Final = 2**53 - 1
"""The largest number in a record: no reader of JSON rounds it."""

_DIGEST_LETTERS: Final = 64
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")


class AuditRecord(Value, frozen=True, kw_only=True):
    """One committed transition. `hash` covers every other field, and through `prev` every record before it."""

    chat_id: str
    version: int
    trigger: str
    source: str | None
    """The state before; `None` for `create`, the stored word for a state that the table does not know."""
    target: str
    actor: str
    reason: str | None
    """Why, in turnwise's words. A client's reason stands here, too, until it is erased; `hash` and an export leave it
    out, and the write `reason` holds its salted digest.
    """
    turn: int
    step: int
    attempt: int
    writes: tuple[WriteRecord, ...]
    at: datetime
    prev: str
    hash: str


class Entry(NamedTuple):
    """A record as a store keeps it.

    The body leaves out the chat's id, the version, the hash before it, the digests of the writes, and a reason that is
    `None`.
    """

    version: int
    hash: str
    """Empty in an entry of a file, whose body is the whole record."""
    body: str
    aside: str | None = None
    """An `Aside` as JSON."""
    digests: bytes = b""
    """Those of the writes, in their order."""


def entry_of(decision: Decision, *, prev: str, at: datetime, row_digests: Sequence[WriteRecord] = ()) -> Entry:
    """Return the record of a decision that commits at `at` after the record whose hash is `prev`.

    `row_digests` are listed after the decision's writes.
    """
    after = decision.facts
    writes = [_write_to_json(write.kind, write.id, write.digest) for write in decision.writes]
    writes += [_write_to_json(*one) for one in row_digests]
    aside = aside_of(decision, covers_events="events" in {one.kind for one in row_digests})
    fields: dict[str, Any] = {
        "trigger": decision.trigger.name,
        "source": decision.source,
        "target": decision.target,
        "actor": decision.actor,
        "reason": decision.reason if aside.reason is None else None,
        "turn": after.turn.number,
        "step": after.step.number,
        "attempt": after.step.attempt,
        "writes": writes,
        "at": _time(at),
    }
    hashed = {**fields, "chat_id": after.chat_id, "version": after.version, "prev": prev}
    hash_ = _chain(prev, canonical_row(hashed))
    body, digests = split(fields)
    return Entry(after.version, hash_, body, aside.dump(), digests)


def split(fields: dict[str, Any]) -> tuple[str, bytes]:
    """Return the fields of a record as the body of an entry, and the digests of its writes.

    Only a subagent that left no hash has something else for a digest: that stays in the body.
    """
    writes = fields["writes"]
    digests = [write["digest"] for write in writes if len(write["digest"]) == _DIGEST_LETTERS]
    names = [
        (write["kind"], write["id"], *(() if len(write["digest"]) == _DIGEST_LETTERS else (write["digest"],)))
        for write in writes
    ]
    own = {**fields, "writes": names}
    if own["reason"] is None:
        del own["reason"]
    return canonical_row(own).decode(), bytes.fromhex("".join(digests))


def _with_digests(writes: Any, digests: bytes) -> list[dict[str, Any]]:
    """Return the writes in the body of an entry with their digests.

    Raises:
        ValueError: there are more digests, or fewer.
    """
    if not isinstance(digests, bytes):
        raise ValueError("bytes belong into the digests")  # noqa: TRY004 - what is stored is wrong
    spelled, place, whole = digests.hex(), 0, []
    for kind, name, *own in writes:
        end = place if own else place + _DIGEST_LETTERS
        whole.append(_write_to_json(kind, name, own[0] if own else spelled[place:end]))
        place = end
    if place != len(spelled):
        raise ValueError("there is not one digest for each write")
    return whole


def log_of(chat_id: str, entries: Iterable[Entry]) -> list[AuditRecord]:
    """Return the records that a chat's entries hold, from the first on.

    Raises:
        ValueError: a body is not that of a record; the text says what it is.
    """
    records: list[AuditRecord] = []
    for entry in entries:
        records.append(record_in(entry, chat_id, prev=records[-1].hash if records else GENESIS))
    return records


def record_in(entry: Entry, chat_id: str, *, prev: str) -> AuditRecord:
    """Return the record that an entry holds, after the one whose hash is `prev`.

    Raises:
        ValueError: the body is not that of a record; the text says what it is.
    """
    fields = object_of(entry.body)
    if entry.hash:
        fields["writes"] = _with_digests(fields["writes"], entry.digests)
        beside = {"chat_id": chat_id, "version": entry.version, "prev": prev, "hash": entry.hash, "reason": None}
        fields = {**beside, **fields}
    record = _parse_record(fields)
    reason = Aside.load(entry.aside).reason
    return record if reason is None else replace(record, reason=reason)


def hash_of(record: AuditRecord) -> str:
    """Return the hash that the record must have, computed from its other fields."""
    fields = _to_fields(record)
    del fields["hash"]
    return _chain(record.prev, canonical_row(fields))


def to_json(record: AuditRecord) -> str:
    """Return the record as one line of JSON. It is ASCII, so that no reader splits or re-encodes it."""
    fields = _to_fields(record)
    text = canonical_row(fields).decode()
    return text if text.isascii() else json.dumps(fields, sort_keys=True, separators=(",", ":"))


def object_from(record: AuditRecord) -> dict[str, Any]:
    """Return the object that the record's line of JSON holds, but with a client's reason, which no export contains."""
    return {**_to_fields(record), "reason": record.reason}


def from_json(text: str) -> AuditRecord:
    """Return the record that a line of JSON holds: exactly the fields of a record, each of its type.

    The hash is not checked: `verify` does that.

    Raises:
        ValueError: the text is not JSON, or not a record; the error says what it is.
    """
    return _parse_record(object_of(text))


def _parse_record(fields: dict[str, Any]) -> AuditRecord:
    _demand_names("record", fields, set(_KINDS))
    for name, kinds in _KINDS.items():
        if type(fields[name]) not in kinds:
            either = " or ".join(_JSON_NAMES[kind] for kind in kinds)
            raise ValueError(f"the field {name} holds {_json_type(fields[name])}, where {either} belongs")
        if kinds == (int,) and not 0 <= fields[name] <= MOST:
            raise ValueError(f"the field {name} holds {fields[name]!s:.40}, where a number from 0 to {MOST} belongs")
    fields["writes"] = tuple(_parse_write(write) for write in fields["writes"])
    fields["at"] = _parse_time(fields["at"])
    if fields["reason"] is not None and any(write.kind == "reason" for write in fields["writes"]):
        raise ValueError("the field reason holds text that no hash covers: a client's reason does not stand there")
    return AuditRecord(**fields)


def object_of(text: str) -> dict[str, Any]:
    """Return the JSON object that a text holds.

    Raises:
        ValueError: the text is no JSON object, names a field twice, or holds half a character (a lone surrogate).
    """
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)
        if not text.isascii() or _HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object belongs here, found {_json_type(value)}")  # noqa: TRY004 - the text is wrong
    return value


def export(
    chat_id: str, records: Sequence[AuditRecord], *, key: bytes | None = None, signer: SigningKey | None = None
) -> str:
    """Return a chat's log as JSON Lines: a header, the records in order, and a checkpoint.

    The checkpoint states the number of records and the last hash. Signed, with a `key` that its reader has as well or
    by a `signer` whose public key is no secret, it proves that the log was neither cut nor rewritten.
    """
    head = records[-1].hash if records else GENESIS
    checkpoint: dict[str, Any] = {"count": len(records), "head": head}
    content = signed_content(chat_id, len(records), head)
    if key is not None:
        checkpoint["signature"] = mac_of(content, key=key)
    if signer is not None:
        checkpoint |= {"key_id": signer.key_id, "ed25519": signer.signature_of(content)}
    header = {"format": FORMAT, "chat_id": chat_id}
    lines = [json.dumps(header), *map(to_json, records), json.dumps(checkpoint)]
    return "".join(f"{line}\n" for line in lines)


def lines_of(text: str) -> list[str]:
    """Return the lines of an exported log; those that hold nothing but blanks are left out."""
    return [line for line in text.split("\n") if line.strip(" \t\r")]


def signed_content(chat_id: str, count: int, head: str) -> bytes:
    """Return the bytes that the signature of a log's checkpoint covers."""
    return canonical({"format": FORMAT, "chat_id": chat_id, "count": count, "head": head})


def mac_of(content: bytes, *, key: bytes) -> str:
    """Return the signature of a checkpoint made with `key`: HMAC-SHA256, in hex."""
    return hmac.new(key, content, hashlib.sha256).hexdigest()


_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "chat_id": (str,),
    "version": (int,),
    "trigger": (str,),
    "source": (str, type(None)),
    "target": (str,),
    "actor": (str,),
    "reason": (str, type(None)),
    "turn": (int,),
    "step": (int,),
    "attempt": (int,),
    "writes": (list,),
    "at": (str,),
    "prev": (str,),
    "hash": (str,),
}
_JSON_NAMES: Final = {
    str: "a string",
    int: "an integer",
    float: "a fraction",
    bool: "a truth value",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def _chain(prev: str, line: bytes) -> str:
    return hashlib.sha256(prev.encode() + b"\n" + line).hexdigest()


def _to_fields(record: AuditRecord) -> dict[str, Any]:
    fields = {name: getattr(record, name) for name in _KINDS}
    if any(write.kind == "reason" for write in record.writes):
        fields["reason"] = None
    return {**fields, "writes": [_write_to_json(*write) for write in record.writes], "at": _time(record.at)}


def _write_to_json(kind: str, name: str, digest: str) -> dict[str, str]:
    return {"digest": digest, "id": name, "kind": kind}


@lru_cache(maxsize=1)
def _time(at: datetime) -> str:
    """Return a time as records spell it. Those of a commit have the same."""
    return at.astimezone(UTC).isoformat()


def _parse_write(value: Any) -> WriteRecord:
    if not isinstance(value, dict):
        raise ValueError(f"a write is {_json_type(value)}, where an object belongs")  # noqa: TRY004 - the text is wrong
    _demand_names("write", value, set(WriteRecord._fields))
    for name, content in value.items():
        if not isinstance(content, str):
            problem = f"the field {name} of a write holds {_json_type(content)}, where a string belongs"
            raise ValueError(problem)  # noqa: TRY004 - the text is wrong
    return WriteRecord(**value)


def _parse_time(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    if at.utcoffset() != timedelta(0) or at.isoformat() != text:
        raise ValueError(f"the time {text!a:.40} is not spelled as ISO 8601 in UTC, YYYY-MM-DDTHH:MM:SS.ffffff+00:00")
    return at


def _demand_names(what: str, fields: dict[str, Any], wanted: set[str]) -> None:
    missing, extra = sorted(wanted - set(fields)), sorted(set(fields) - wanted)
    if missing or extra:
        raise ValueError(f"a {what} lacks the fields {missing} and has {extra!s:.80}, which do not belong to it")


def _json_type(value: Any) -> str:
    return _JSON_NAMES[type(value)]


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a JSON object names a field twice")
    return fields


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
