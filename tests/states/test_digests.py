"""Digests of canonical JSON, with independent salts; and values stored as JSON."""

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import BaseModel, Field

from support.life import NOW, PROFILE, SCHEDULED, asking, delegated, text_parts
from turnwise.states.calls import Answer, ToolCall
from turnwise.states.errors import InvalidContent
from turnwise.states.facts import Lease
from turnwise.states.messages import Message, ModelFailure, QueuedMessage, TextPart
from turnwise.states.names import Audience, CallStatus, Executor
from turnwise.states.usage import Usage
from turnwise.states.values.digests import MOST_ITEMS, as_json, canonical, derived, digest
from turnwise.states.values.plain import DEEPEST, well_formed, well_formed_json
from turnwise.states.writes import (
    CutHistory,
    DropLease,
    DropQueued,
    DropSchedule,
    EraseEdits,
    EraseMessage,
    EraseText,
    FireSchedule,
    GrantLease,
    InsertBoundary,
    InsertMessage,
    MoveQueued,
    NoteDeadline,
    NoteFallback,
    NoteReason,
    NoteSubagent,
    PutCall,
    PutProfile,
    PutQueued,
    PutSchedule,
    RecordReceipt,
    RecordUsage,
    Reserve,
    Write,
)


def test_derived_salts_differ() -> None:
    assert derived("s", 1, "m1") == derived("s", 1, "m1") != derived("s", 2, "m1")
    assert derived("", 1, "m1") == ""


@pytest.mark.parametrize("value", [float("nan"), {1}, "\ud800"])
def test_value_without_canonical_json_is_refused(value: object) -> None:
    with pytest.raises(InvalidContent, match="only JSON values and well-formed Unicode can be stored"):
        canonical(value)


def test_as_json_returns_what_is_stored() -> None:
    expected = {"at": "2026-11-01T12:00:00Z", "n": None, "t": [1, 2]}
    assert as_json({"at": NOW, "n": float("inf"), "t": (1, 2)}) == expected
    assert as_json({"file": ["a-\udcff", "\ud83d\ude00"]}) == {"file": ["a-\ufffd", "\U0001f600"]}
    for value in (object(), ["\ud800", object()], {"\ud800": object()}, 10**5000, ["\ud800", 10**5000]):
        with pytest.raises(InvalidContent, match="JSON values"):
            as_json(value)


@dataclass
class _Listing:
    files: object


class _Page(BaseModel):
    rows: Any = Field(default=(), serialization_alias="Rows")


class _Measured(BaseModel):
    value: float
    others: list[float]


def rows(most: int) -> Iterator[object]:
    yield from range(most)


def test_iterators_become_lists() -> None:
    assert as_json(rows(2)) == [0, 1]
    assert as_json({"a": (map(str, rows(2)), [zip("ab", rows(2), strict=True)])}) == {
        "a": [["0", "1"], [[["a", 0], ["b", 1]]]]
    }
    assert as_json(rows(MOST_ITEMS - 1)) == [*range(MOST_ITEMS - 1)]


def test_iterators_in_models_become_lists() -> None:
    assert as_json(_Listing(iter([_Listing(rows(1)), NOW]))) == {"files": [{"files": [0]}, "2026-11-01T12:00:00Z"]}
    assert as_json([_Page(rows=rows(2))]) == [{"Rows": [0, 1]}]
    with pytest.raises(InvalidContent, match="it must yield fewer than 100,000 items"):
        as_json(_Listing(itertools.count()))


def test_nan_in_a_model_becomes_null() -> None:
    """Such models have their own setting for NaN and infinities."""
    measured = _Measured(value=float("nan"), others=[float("inf"), 1.5])
    assert as_json(measured) == {"value": None, "others": [None, 1.5]}
    assert as_json([_Listing(measured), rows(1), "\ud800"]) == [{"files": as_json(measured)}, [0], "\ufffd"]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ({"a-\udcff": 1, "b": 2}, {"a-\ufffd": 1, "b": 2}),
        ({"\ud83d\ude00": 1}, {"\U0001f600": 1}),
        (dict.fromkeys(("a\udcff", "a\udcfe"), 1), {"a\ufffd": 1}),
        (_Page(rows={"a-\udcff": 1}), {"Rows": {"a-\ufffd": 1}}),
        (TextPart(text="a", metadata={"\udcff": 1}), as_json(TextPart(text="a", metadata={"\ufffd": 1}))),
    ],
)
def test_lone_surrogate_in_a_key_is_replaced(value: object, stored: object) -> None:
    """A tool that lists a folder may return such a key: Python makes it of a name that is no UTF-8."""
    assert as_json(value) == stored


def test_json_depth_limit() -> None:
    deepest: list[Any] = []
    for _ in range(DEEPEST - 1):
        deepest = [1, deepest]
    assert as_json(deepest) == deepest
    for deeper in ([deepest], {"a": 1, "b": deepest}):
        with pytest.raises(InvalidContent, match="deeper than 100 levels"):
            as_json(deeper)


def test_canonical_json_is_sorted_dense_utf_8() -> None:
    assert canonical({"b": [1, None], "a": "ü"}) == '{"a":"ü","b":[1,null]}'.encode()
    assert digest("x") == hashlib.sha256(b'"x"').hexdigest()


any_text = st.text(st.characters(exclude_categories=()))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | any_text,
    lambda inner: st.lists(inner) | st.dictionaries(any_text, inner),
)


@given(any_text)
def test_well_formed_text_can_be_encoded(text: str) -> None:
    assert well_formed(well_formed(text)) == well_formed(text)
    well_formed(text).encode()


@given(st.text())
def test_valid_text_is_unchanged(text: str) -> None:
    assert well_formed(text) == text


def test_surrogate_pairs_are_joined() -> None:
    assert well_formed("\ud83d\ude00") == "\U0001f600"
    assert well_formed("a\ud83d") == "a\ufffd"


@given(json_values)
def test_well_formed_json_has_a_canonical_form(value: object) -> None:
    assert canonical(well_formed_json(value))


# Writes


LIFE = asking()
CALL = LIFE.facts.calls[0]
MESSAGE = LIFE.messages[0]
QUEUED = QueuedMessage(id="m9", parts=text_parts("later"), accepted_at=NOW)

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
    (NoteSubagent("h", 3, "f" * 64), "subagent", "h:3"),
    (NoteFallback(ModelFailure(provider="p", model="m", kind="network")), "fallback", "p:m:network"),
    (NoteDeadline("a", NOW), "deadline", "a"),
    (PutQueued(QUEUED, rank=1), "enqueue", "m9"),
    (MoveQueued("m9", "m3", ("m9", "m3")), "move", "m9:m3"),
    (DropQueued("m9", "taken"), "dequeue:taken", "m9"),
    (DropQueued("m9", "deleted"), "dequeue:deleted", "m9"),
    (PutSchedule(SCHEDULED), "schedule", "s"),
    (FireSchedule("s", NOW), "schedule:fired", "s"),
    (DropSchedule("s"), "schedule:dropped", "s"),
    (NoteReason("enough"), "reason", ""),
    (InsertBoundary("compaction", 4, 7, (1, 2)), "boundary:compaction", "4"),
    (GrantLease(Lease("w", 3), 30), "lease", "3"),
    (DropLease(3), "lease:dropped", "3"),
    (RecordUsage("step", 1, 2, 3, Usage(input_tokens=1)), "usage", "step:2:3"),
    (Reserve(2, 3, 10, None), "reservation", "2:3"),
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
        "parts": text_parts("else"),
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
    """Above all its arguments: a log that shows another call must not verify."""
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
    """Otherwise readers of the log could find short secrets by trying."""
    pairs: list[tuple[Write, Write]] = [
        (InsertMessage(MESSAGE), InsertMessage(MESSAGE, "s")),
        (PutCall(CALL), PutCall(replace(CALL, salt="s"))),
        (PutQueued(QUEUED, 1), PutQueued(QUEUED, 1, "s")),
        (PutProfile(PROFILE), PutProfile(PROFILE, "s")),
        (NoteReason("enough"), NoteReason("enough", "s")),
        (RecordReceipt("k", "d", "m1", queued=False), RecordReceipt("k", "d", "m1", queued=False, salt="s")),
    ]
    assert all(one.digest != other.digest for one, other in pairs)
