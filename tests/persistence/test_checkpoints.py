"""Published checkpoints: no line can be changed, invented, moved or taken out without being found."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.exploring import examples
from support.logged_life import LOG, TEXT
from turnwise import InvalidArgument, SigningKey, Verdict, verify_export
from turnwise.persistence.audit.checkpoints import Head, checkpoint_line, hash_of_line
from turnwise.persistence.audit.record import GENESIS, export
from turnwise.states.digests import canonical

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


def test_a_log_that_is_the_one_that_was_published_is_covered_up_to_the_last_checkpoint() -> None:
    assert judged(LINES).covered == len(LOG)
    assert judged(LINES[:5]).covered == COUNTS[1]
    assert judged(LINES).ok


def test_the_last_checkpoint_counts_without_its_line_feed() -> None:
    """Whoever copies lines may lose it; half a line is one that is being written."""
    text = "\n".join(LINES[:6])
    assert verify_export(TEXT, checkpoints=text, public_key=KEY.public_pem).covered == len(LOG)
    assert verify_export(TEXT, checkpoints=text[:-9], public_key=KEY.public_pem).covered == COUNTS[1]


def test_a_log_that_lost_no_more_than_its_last_record_is_found_to_be_cut() -> None:
    verdict = judged(LINES, export("chat-1", LOG[:-1]))
    assert (verdict.ok, verdict.position) == (False, len(LOG))
    assert "its end was cut off" in str(verdict.problem)


def test_a_line_of_another_format_is_none_although_it_is_signed() -> None:
    fields = json.loads(LINES[1]) | {"format": "turnwise-checkpoint/2", "prev": GENESIS}
    del fields["signature"]
    verdict = judged([json.dumps(fields | {"signature": KEY.signature_of(canonical(fields))})])
    assert "it has not the fields of turnwise-checkpoint/1" in str(verdict.problem)


def test_checkpoints_need_a_key() -> None:
    with pytest.raises(InvalidArgument, match="public_key"):
        verify_export(TEXT, checkpoints="")


def test_a_log_without_a_checkpoint_is_not_borne_out() -> None:
    for lines in ([], LINES[:1]):
        verdict = judged(lines)
        assert (verdict.ok, verdict.position) == (False, len(LOG) + 1)
        assert "None of the checkpoints is of this chat" in str(verdict.problem)


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, len(LINES) - 1), st.data())
def test_no_line_is_changed_unseen(place: int, data: st.DataObject) -> None:
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


@pytest.mark.parametrize("place", range(len(LINES) - 1))
def test_no_line_is_taken_out_unseen_but_the_last(place: int) -> None:
    assert not judged([*LINES[:place], *LINES[place + 1 :]]).ok


def test_lines_that_were_kept_twice_or_come_from_several_processes_are_fine() -> None:
    assert judged([*LINES, *LINES[2:4]]).ok
    assert judged([*LINES, *lines_of(FOREIGN, MINE[1])]).ok


def test_lines_in_another_order_are_found() -> None:
    assert not judged([LINES[1], LINES[0], *LINES[2:]]).ok


def test_a_line_that_another_key_has_signed_is_found_unless_that_is_given_too() -> None:
    lines = [*LINES, *lines_of(MINE[1], key=OTHER, prev=hash_of_line(LINES[-1]))]
    verdict = judged(lines)
    assert not verdict.ok
    assert f"line {len(lines)} is not signed with a key that was given" in str(verdict.problem)
    assert judged(lines, public_key=KEY.public_pem + OTHER.public_pem).ok


def test_a_line_that_somebody_has_added_in_the_middle_is_found_although_the_next_names_it() -> None:
    """Whoever signs appends to what is there: only its own chat's check can tell."""
    invented = lines_of(MINE[1], key=OTHER, prev=hash_of_line(LINES[0]))
    lines = [LINES[0], *invented, *lines_of(MINE[2], FOREIGN, prev=hash_of_line(invented[0]))]
    assert not judged(lines).ok


@pytest.mark.parametrize(
    "junk",
    ["", "{}", "null", "[]", "\ud800", "x", '{"prev":"' + GENESIS + '"}', '{"prev":7}', "[" * 100_000],
)
def test_no_junk_raises_or_hides_a_checkpoint(junk: str) -> None:
    assert judged([*LINES, junk]).ok == (junk == "")
    assert not judged([junk, *LINES]).ok or junk == ""
    assert not judged([junk]).ok


@settings(deadline=None, max_examples=examples(40))
@given(st.text())
def test_no_text_raises(text: str) -> None:
    assert not verify_export(TEXT, checkpoints=text, public_key=KEY.public_pem).ok


@pytest.mark.parametrize(("count", "head"), [(True, "x"), ("3", "x"), (0, "x"), (-1, "x"), (3, None)])
def test_a_signed_line_with_a_field_of_the_wrong_type_is_refused(count: Any, head: Any) -> None:
    """Whoever has signed it: here none is signed."""
    fields = {**json.loads(LINES[0]), "chat_id": "chat-1", "count": count, "head": head}
    del fields["signature"]
    line = json.dumps({**fields, "signature": KEY.signature_of(canonical(fields))})
    assert "wrong type" in str(judged([line]).problem)


@pytest.mark.parametrize(
    ("chat_id", "count", "head"),
    [
        ("c", 0, "0" * 64),
        ("c", True, "0" * 64),
        ("c", "3", "0" * 64),
        ("c", 1, "poison"),
        ("c", 1, None),
        (b"c", 1, "0" * 64),
    ],
)
def test_what_no_reader_would_take_is_not_signed(chat_id: Any, count: Any, head: Any) -> None:
    with pytest.raises(ValueError, match="nothing was signed"):
        lines_of(Head(chat_id, count, head))


@pytest.mark.parametrize("count", COUNTS)
def test_another_head_is_named_with_its_version(count: int) -> None:
    heads = [Head(head.chat_id, head.count, "0" * 64 if head.count >= count else head.head) for head in MINE]
    verdict = judged(lines_of(*heads))
    assert (verdict.ok, verdict.position) == (False, count)
    assert f"says that version {count} had the hash {'0' * 64}" in str(verdict.problem)


def test_a_signed_log_needs_no_second_signature_beside_checkpoints() -> None:
    """But one that was made with a key that is given must be right."""
    assert judged(LINES, export("chat-1", LOG)).ok
    assert judged(LINES, export("chat-1", LOG, signer=OTHER)).ok
    signed = export("chat-1", LOG, signer=KEY).splitlines()
    broken = json.dumps({**json.loads(signed[-1]), "ed25519": "00" * 64})
    assert not judged(LINES, "\n".join([*signed[:-1], broken])).ok
