"""A sound log verifies, and no single tampering goes unseen - even if the whole chain is hashed anew after it."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from support.logged_life import LOG, TEXT, forgery, place_of, rehashed
from turnwise.persistence.audit.record import GENESIS, AuditRecord, WriteRecord, export, to_json
from turnwise.persistence.audit.verify import Verdict, verify_export, verify_records
from turnwise.states import triggers as t
from turnwise.states.names import ChatState
from turnwise.states.table import TABLE
from turnwise.states.triggers import TRIGGERS

unhurried = settings(deadline=None)
VERSIONS = st.integers(1, len(LOG))


def _forged(place: int, **changes: Any) -> Verdict:
    """Change one record, hash everything anew, and verify."""
    return verify_export(forgery(place, **changes))


def test_a_rich_life_verifies() -> None:
    assert verify_export(TEXT) == Verdict(ok=True)
    assert verify_records(LOG) == Verdict(ok=True)


@unhurried
@given(VERSIONS, st.sampled_from([field.name for field in dataclasses.fields(AuditRecord)]), st.data())
def test_changed_field_is_found(version: int, name: str, data: st.DataObject) -> None:
    fields = json.loads(to_json(LOG[version - 1]))
    junk = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text()))
    fields[name] = data.draw(junk.filter(lambda value: (value, type(value)) != (fields[name], type(fields[name]))))
    lines = TEXT.splitlines()
    lines[version] = json.dumps(fields)
    assert verify_export("\n".join(lines)).position == version


@pytest.mark.parametrize("forged", ["", "he said so"])
def test_uncovered_reason_is_found(forged: str) -> None:
    told = [record.version for record in LOG if any(write.kind == "reason" for write in record.writes)]
    assert told
    for version in told:
        lines = TEXT.splitlines()
        lines[version] = json.dumps(json.loads(lines[version]) | {"reason": forged})
        verdict = verify_export("\n".join(lines))
        assert (verdict.position, verdict.ok) == (version, False)


@unhurried
@given(st.sampled_from([record for record in LOG if record.writes]), st.sampled_from(WriteRecord._fields), st.text())
def test_changed_write_is_found(record: AuditRecord, name: str, junk: str) -> None:
    changed = record.writes[-1]._replace(**{name: junk})
    assume(changed != record.writes[-1])
    forged = [*LOG]
    forged[record.version - 1] = dataclasses.replace(record, writes=(*record.writes[:-1], changed))
    assert verify_records(forged).position == record.version


@unhurried
@given(VERSIONS)
def test_dropped_record_is_found(version: int) -> None:
    lines = TEXT.splitlines()
    del lines[version]
    assert verify_export("\n".join(lines)).position == version


@unhurried
@given(VERSIONS, VERSIONS)
def test_swapped_records_are_found(one: int, other: int) -> None:
    lines = TEXT.splitlines()
    lines[one], lines[other] = lines[other], lines[one]
    assert verify_export("\n".join(lines)).position == (None if one == other else min(one, other))


@unhurried
@given(st.integers(0, len(LOG) - 1), st.booleans())
def test_cut_tail_is_found(kept: int, checkpoint: bool) -> None:
    lines = TEXT.splitlines()
    forged = [*lines[: kept + 1], *(lines[-1:] if checkpoint else [])]
    assert verify_export("\n".join(forged)).position == kept + 1


def test_checkpoint_with_another_head_is_found() -> None:
    assert verify_export(TEXT.replace(f'"head": "{LOG[-1].hash}"', f'"head": "{GENESIS}"')).position == len(LOG)


@unhurried
@given(st.text() | st.binary().map(lambda junk: junk.decode("latin-1")))
def test_verify_never_raises_on_any_text(text: str) -> None:
    assert not verify_export(text).ok


def test_empty_log_lacks_version_one() -> None:
    assert verify_export(export("chat-1", [])).position == 1
    assert verify_records([]).position == 1


def test_log_of_another_chat_is_found() -> None:
    assert verify_export(export("chat-2", LOG)).position == 1


def test_unknown_format_is_found() -> None:
    assert verify_export(TEXT.replace("turnwise-audit/1", "turnwise-audit/9")).position == 0


# Signatures


def test_signed_log_verifies_with_and_without_key() -> None:
    text = export("chat-1", LOG, key=b"secret")
    assert verify_export(text, key=b"secret").ok
    assert verify_export(text).ok


def test_key_requires_a_signature() -> None:
    verdict = verify_export(TEXT, key=b"secret")
    assert verdict.position == len(LOG) + 1
    assert "not signed" in str(verdict.problem)


def test_signature_by_another_key_is_refused() -> None:
    """Without the key nobody can cut a log and write a fitting checkpoint."""
    assert verify_export(export("chat-1", LOG[:-1], key=b"other"), key=b"secret").position == len(LOG)


@pytest.mark.parametrize("signature", [5, "", "\u00e9", "\ud800", ["x"]])
def test_invalid_signature_is_refused(signature: object) -> None:
    lines = TEXT.splitlines()
    lines[-1] = json.dumps({**json.loads(lines[-1]), "signature": signature})
    assert not verify_export("\n".join(lines), key=b"secret").ok


# Forgeries: the whole chain is hashed anew, so only the table and the invariants can tell


@unhurried
@given(
    VERSIONS,
    st.sampled_from([*TRIGGERS]),
    st.sampled_from([None, "new", "dreaming", *ChatState]),
    st.sampled_from([*ChatState]),
)
def test_transition_outside_the_table_is_found(
    version: int, trigger: str, source: str | None, target: ChatState
) -> None:
    rows = {(row.trigger.name, str(row.source), str(row.target)) for row in TABLE}
    place = "new" if source is None else source if source in {*ChatState} else "unknown"
    verdict = _forged(version - 1, trigger=trigger, source=source, target=target)
    if (trigger, place, target) not in rows:
        assert verdict.position == version


def test_log_begins_with_create() -> None:
    verdict = verify_records(rehashed([dataclasses.replace(LOG[place_of(t.Repaired)])]))
    assert verdict.position == 1
    assert "begins with create" in str(verdict.problem)


def test_repair_may_start_from_any_state() -> None:
    """A repair is what turnwise does when the stored state is not what was committed."""
    place = place_of(t.Repaired)
    assert LOG[place].source == "dreaming"
    assert _forged(place, source=ChatState.compacting).ok


@unhurried
@given(VERSIONS)
def test_records_of_another_chat_are_found(version: int) -> None:
    """Even if they are chained to it: a life may not be told half of one chat and half of another."""
    records = [*LOG[: version - 1], *(dataclasses.replace(record, chat_id="chat-2") for record in LOG[version - 1 :])]
    verdict = verify_export(export("chat-1", rehashed(records)))
    assert (verdict.ok, verdict.position) == (False, version)
    assert "chat-2" in (verdict.problem or "")
