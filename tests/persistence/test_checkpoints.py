"""Published checkpoints reveal every changed, invented, moved or removed line."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.exploring import examples
from support.logged_life import LOG, TEXT
from turnwise import SigningKey, Verdict, verify_export
from turnwise.persistence.audit.checkpoints import Head, checkpoint_line, hash_of_line
from turnwise.persistence.audit.record import GENESIS, export
from turnwise.states.values.digests import canonical

KEY, OTHER = SigningKey.generate(), SigningKey.generate()
AT = datetime(2026, 11, 24, 12, tzinfo=UTC)
COUNTS = (3, 9, len(LOG))


def lines_of(*heads: Head, key: SigningKey = KEY, prev: str = GENESIS) -> list[str]:
    lines: list[str] = []
    for head in heads:
        lines.append(checkpoint_line(head, at=AT, prev=prev, key=key))
        prev = hash_of_line(lines[-1])
    return lines


MINE = [Head("chat-1", count, LOG[count - 1].hash) for count in COUNTS]
FOREIGN = Head("chat-2", 5, "5" * 64)
LINES = lines_of(FOREIGN, MINE[0], FOREIGN, MINE[1], FOREIGN, MINE[2], FOREIGN)


def judged(lines: list[str], text: str = TEXT, public_key: bytes = KEY.public_pem) -> Verdict:
    return verify_export(text, checkpoints="".join(f"{line}\n" for line in lines), public_key=public_key)


def test_published_checkpoints_cover_the_log() -> None:
    assert judged(LINES).covered == len(LOG)
    assert judged(LINES[:5]).covered == COUNTS[1]
    assert judged(LINES).ok


def test_log_cut_by_one_record_is_found() -> None:
    verdict = judged(LINES, export("chat-1", LOG[:-1]))
    assert (verdict.ok, verdict.position) == (False, len(LOG))
    assert "its end was cut off" in str(verdict.problem)


def test_signed_line_of_another_format_is_refused() -> None:
    fields = json.loads(LINES[1]) | {"format": "turnwise-checkpoint/2", "prev": GENESIS}
    del fields["signature"]
    verdict = judged([json.dumps(fields | {"signature": KEY.signature_of(canonical(fields))})])
    assert "it has not the fields of turnwise-checkpoint/1" in str(verdict.problem)


def test_log_without_a_checkpoint_is_refused() -> None:
    for lines in ([], LINES[:1]):
        verdict = judged(lines)
        assert (verdict.ok, verdict.position) == (False, len(LOG) + 1)
        assert "None of the checkpoints is of this chat" in str(verdict.problem)


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, len(LINES) - 1), st.data())
def test_changed_line_is_found(place: int, data: st.DataObject) -> None:
    fields = json.loads(LINES[place])
    name = data.draw(st.sampled_from(sorted(fields)))
    fields[name] = data.draw(
        (st.text() | st.integers() | st.none() | st.sampled_from(["f" * 64, "chat-1", "chat-2"])).filter(
            lambda value: value != fields[name]
        )
    )
    lines = [*LINES]
    lines[place] = json.dumps(fields)
    assert not judged(lines).ok


def test_line_signed_by_another_key_is_found() -> None:
    lines = [*LINES, *lines_of(MINE[1], key=OTHER, prev=hash_of_line(LINES[-1]))]
    verdict = judged(lines)
    assert not verdict.ok
    assert f"line {len(lines)} is not signed with a key that was given" in str(verdict.problem)
    assert judged(lines, public_key=KEY.public_pem + OTHER.public_pem).ok


def test_forged_line_in_the_middle_is_found() -> None:
    """A signer appends to the existing lines: only the forged chat's own check can reveal it."""
    invented = lines_of(MINE[1], key=OTHER, prev=hash_of_line(LINES[0]))
    lines = [LINES[0], *invented, *lines_of(MINE[2], FOREIGN, prev=hash_of_line(invented[0]))]
    assert not judged(lines).ok


@pytest.mark.parametrize(
    "junk", ["", "{}", "null", "[]", "\ud800", "x", '{"prev":"' + GENESIS + '"}', '{"prev":7}', "[" * 100_000]
)
def test_junk_line_is_found(junk: str) -> None:
    assert judged([*LINES, junk]).ok == (junk == "")
    assert not judged([junk, *LINES]).ok or junk == ""
    assert not judged([junk]).ok


@pytest.mark.parametrize(("count", "head"), [(True, "x"), ("3", "x"), (0, "x"), (-1, "x"), (3, None)])
def test_signed_line_with_wrong_type_is_refused(count: Any, head: Any) -> None:
    """The type counts, not the signer: here no line is signed."""
    fields = {**json.loads(LINES[0]), "chat_id": "chat-1", "count": count, "head": head}
    del fields["signature"]
    line = json.dumps({**fields, "signature": KEY.signature_of(canonical(fields))})
    assert "wrong type" in str(judged([line]).problem)


@pytest.mark.parametrize("count", COUNTS)
def test_other_head_is_named_with_its_version(count: int) -> None:
    heads = [Head(head.chat_id, head.count, "0" * 64 if head.count >= count else head.head) for head in MINE]
    verdict = judged(lines_of(*heads))
    assert (verdict.ok, verdict.position) == (False, count)
    assert f"says that version {count} had the hash {'0' * 64}" in str(verdict.problem)


def test_checkpoints_replace_the_log_signature() -> None:
    """A checkpoint with a known key must still be valid."""
    assert judged(LINES, export("chat-1", LOG)).ok
    assert judged(LINES, export("chat-1", LOG, signer=OTHER)).ok
    signed = export("chat-1", LOG, signer=KEY).splitlines()
    broken = json.dumps({**json.loads(signed[-1]), "ed25519": "00" * 64})
    assert not judged(LINES, "\n".join([*signed[:-1], broken])).ok
