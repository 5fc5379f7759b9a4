"""Writes as values: each has a kind, an id and a digest by which the audit log knows it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from support.life import NOW, PROFILE, asking, delegated, said
from turnwise.states.calls import Answer, ToolCall
from turnwise.states.facts import Lease
from turnwise.states.messages import Message, QueuedMessage
from turnwise.states.names import Audience, CallStatus, Executor
from turnwise.states.usage import Usage
from turnwise.states.writes import (
    CutHistory,
    DropLease,
    DropQueued,
    EraseEdits,
    EraseMessage,
    EraseText,
    GrantLease,
    InsertBoundary,
    InsertMessage,
    MoveQueued,
    NoteDeadline,
    NoteHelper,
    NoteReason,
    PutCall,
    PutProfile,
    PutQueued,
    RecordReceipt,
    RecordUsage,
    Write,
)

LIFE = asking()
CALL = LIFE.facts.calls[0]
MESSAGE = LIFE.messages[0]
QUEUED = QueuedMessage(id="m9", parts=said("later"), accepted_at=NOW)

IDENTITIES: list[tuple[Write, str, str]] = [
    (InsertMessage(MESSAGE), "message", "m1"),
    (EraseMessage(MESSAGE), "erase", "m1"),
    (EraseEdits(MESSAGE), "erase:edits", "m1"),
    (EraseText("queued", "m2"), "erase:queued", "m2"),
    (EraseText("errors"), "erase:errors", ""),
    (CutHistory(3, "m3"), "cut", "m3"),
    (PutCall(CALL), "call:planned:client", "a"),
    (PutCall(CALL.with_status(CallStatus.failed)), "call:failed", "a"),
    (PutCall(CALL.granted(Answer("d", "r", NOW))), "call:approved:at_most_once", "a"),
    (PutCall(delegated("a")), "call:planned:chat", "a"),
    (NoteHelper("h", 3, "f" * 64), "helper", "h:3"),
    (NoteDeadline("a", NOW), "deadline", "a"),
    (PutQueued(QUEUED, rank=1), "enqueue", "m9"),
    (MoveQueued("m9", "m3", ("m9", "m3")), "move", "m9:m3"),
    (DropQueued("m9", "taken"), "dequeue:taken", "m9"),
    (DropQueued("m9", "deleted"), "dequeue:deleted", "m9"),
    (NoteReason("enough"), "reason", ""),
    (InsertBoundary("compaction", 4, 7, (1, 2)), "boundary:compaction", "4"),
    (GrantLease(Lease("w", 3), 30), "lease", "3"),
    (DropLease(3), "lease:dropped", "3"),
    (RecordUsage("step", 1, 2, 3, Usage(input_tokens=1)), "usage", "step:2:3"),
    (PutProfile(PROFILE), "profile", ""),
    (RecordReceipt("k", "d", "m1", queued=False), "receipt", "k"),
]


def test_each_write_has_kind_and_id() -> None:
    assert [(write.kind, write.id) for write, _, _ in IDENTITIES] == [(kind, name) for _, kind, name in IDENTITIES]
    assert {type(write) for write, _, _ in IDENTITIES} == set(Write.__args__)


@pytest.mark.parametrize("name", [*Message.__struct_fields__])
def test_message_digest_covers_every_field(name: str) -> None:
    other: dict[str, Any] = {
        "role": "assistant",
        "parts": said("else"),
        "created_at": NOW.replace(year=2030),
        "audience": Audience.model,
        "usage": Usage(input_tokens=9),
    }
    known = getattr(MESSAGE, name)
    changes = {bool: not known, str: "other"}
    absent = "other" if name != "call_index" else 99
    value = other.get(name, absent if known is None else changes.get(type(known), 99))
    changed = replace(MESSAGE, **{name: value})
    assert InsertMessage(changed).digest != InsertMessage(MESSAGE).digest


@pytest.mark.parametrize("name", [*ToolCall.__struct_fields__])
def test_call_digest_covers_every_field_but_progress(name: str) -> None:
    """Its arguments above all: a log that shows another call must not verify."""
    other: dict[str, Any] = {
        "arguments": {"x": 2},
        "asked_arguments": {"x": 3},
        "reconciles": True,
        "executor": Executor.local,
        "crash": "at_least_once",
        "approval": "asked",
        "stop_after": True,
        "status": CallStatus.failed,
        "deadline": NOW,
        "answer": Answer("d", "r", NOW),
        "within": 5.5,
        "index": 9,
        "step": 9,
    }
    changed = replace(CALL, **{name: other.get(name, "other")})
    assert (PutCall(changed).digest == PutCall(CALL).digest) is (name in ("status", "deadline"))


def test_salt_changes_the_digest() -> None:
    """Or who has the log could try out short secrets."""
    pairs: list[tuple[Write, Write]] = [
        (InsertMessage(MESSAGE), InsertMessage(MESSAGE, "s")),
        (PutCall(CALL), PutCall(replace(CALL, salt="s"))),
        (PutQueued(QUEUED, 1), PutQueued(QUEUED, 1, "s")),
        (PutProfile(PROFILE), PutProfile(PROFILE, "s")),
        (NoteReason("enough"), NoteReason("enough", "s")),
        (RecordReceipt("k", "d", "m1", queued=False), RecordReceipt("k", "d", "m1", queued=False, salt="s")),
    ]
    assert all(one.digest != other.digest for one, other in pairs)
