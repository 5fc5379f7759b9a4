"""A sound log verifies, and no single tampering goes unseen - even if the whole chain is hashed anew after it."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import re
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from support.exploring import examples
from support.forged_logs import FORGERIES, forgery, place_of, rehashed
from support.logged_life import ERROR, LOG, TEXT, Life, blank, part_of, summary_of
from turnwise.persistence.audit import check_promises, check_transitions, check_writes
from turnwise.persistence.audit.record import (
    GENESIS,
    AuditRecord,
    WriteRecord,
    export,
    from_json,
    to_json,
)
from turnwise.persistence.audit.verify import Verdict, verify_export, verify_records
from turnwise.states.arguments import Cut, Erasing, HelperAnswer, Partial, Reply
from turnwise.states.calls import CallOutcome, ToolResult
from turnwise.states.decide import legal_triggers
from turnwise.states.errors import TurnwiseError
from turnwise.states.messages import Part, TextPart
from turnwise.states.names import CallStatus, ChatState, Executor, Trigger
from turnwise.states.table import TABLE

T = Trigger
unhurried = settings(deadline=None)
VERSIONS = st.integers(1, len(LOG))


def _forged(place: int, **changes: Any) -> Verdict:
    """Change one record, hash everything anew, and verify."""
    return verify_export(forgery(place, **changes))


def test_a_rich_life_verifies() -> None:
    assert verify_export(TEXT) == Verdict(ok=True)
    assert verify_records(LOG) == Verdict(ok=True)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 15)), min_size=40, max_size=150))
def test_whatever_life_the_table_allows_verifies(wishes: list[tuple[int, int]]) -> None:
    """The checker demands no more than the machine promises."""
    life = Life()
    life.say("hello")
    for wish, choice in wishes:
        legal = legal_triggers(life.facts)
        with contextlib.suppress(TurnwiseError):
            life.fire(legal[wish % len(legal)], **_arguments(life, choice))
    assert verify_records(life.records) == Verdict(ok=True)


def _arguments(life: Life, choice: int) -> dict[str, Any]:
    """Return something for every argument that a trigger may take."""
    facts = life.facts
    names = {call.call_id for call in facts.calls}
    kinds = (
        (Executor.local, "at_most_once"),
        (Executor.local, "at_least_once"),
        (Executor.client, "at_most_once"),
        (Executor.chat, "at_most_once"),
    )
    planned = tuple(
        life.call(f"c{facts.version}-{index}", executor=executor, crash=crash, index=index)
        for index, (executor, crash) in enumerate(kinds)
        if choice >> index & 1
    )
    parts: tuple[Part, ...] = (TextPart(text="so"), *map(part_of, planned))
    ids = [call.call_id for call in facts.open_calls] or ["none"]
    client = [call.call_id for call in facts.open_calls if call.is_client]
    delegated = [call.call_id for call in facts.open_calls if call.is_delegated]
    helper = HelperAnswer(chat_id="h", version=1, head="7" * 64, owes=choice % 4 == 1)
    queued = [item.id for item in facts.queue] or ["none"]
    call_id = ids[choice % len(ids)]
    return {
        "worker": "w",
        "profile": facts.profile,
        "parts": (TextPart(text="hi"),),
        "when_busy": "interrupt" if choice == 0 else "queue",
        "client_id": f"k{facts.version}",
        "content_digest": "d",
        "results": tuple(ToolResult(name, choice) for name in (delegated[:1] if helper else client)),
        "helpers": (helper,) if delegated and choice % 2 else (),
        "cut": Cut(position=1, first_removed=life.first, boundary=0, foldable=0, history_version=facts.history_version),
        "queued_id": queued[choice % len(queued)],
        "reply": Reply(parts=parts, calls=planned, context_tokens=choice * 200),
        "partial": Partial(step=facts.step.number, attempt=facts.step.attempt, parts=parts, calls=planned)
        if facts.step.attempt_open and names.isdisjoint(call.call_id for call in planned)
        else None,
        "call_id": call_id,
        "outcome": CallOutcome(call_id=call_id, status=CallStatus.failed, output=1, is_error=True),
        "summary": summary_of("short"),
        "error": ERROR,
        "delay": 1.0,
        "retry_at": life.now,
        "title": "t",
        "metadata": {},
        "erasing": Erasing(messages=(blank(life.first),)),
    }


def test_the_rich_life_is_rich() -> None:
    """The tests below are worth what this log passes through."""
    assert {record.trigger for record in LOG} == {*Trigger}
    assert {record.target for record in LOG} == {*ChatState}


@pytest.mark.parametrize("length", range(1, len(LOG)))
def test_every_beginning_of_a_log_verifies(length: int) -> None:
    assert verify_records(LOG[:length]).ok


@unhurried
@given(VERSIONS, st.sampled_from([field.name for field in dataclasses.fields(AuditRecord)]), st.data())
def test_a_changed_field_is_found_where_it_stands(version: int, name: str, data: st.DataObject) -> None:
    fields = json.loads(to_json(LOG[version - 1]))
    junk = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text()))
    fields[name] = data.draw(junk.filter(lambda value: (value, type(value)) != (fields[name], type(fields[name]))))
    lines = TEXT.splitlines()
    lines[version] = json.dumps(fields)
    assert verify_export("\n".join(lines)).position == version


@pytest.mark.parametrize("forged", ["", "he said so"])
def test_a_reason_that_no_hash_covers_is_found_where_it_stands(forged: str) -> None:
    told = [record.version for record in LOG if any(write.kind == "reason" for write in record.writes)]
    assert told
    for version in told:
        lines = TEXT.splitlines()
        lines[version] = json.dumps(json.loads(lines[version]) | {"reason": forged})
        verdict = verify_export("\n".join(lines))
        assert (verdict.position, verdict.ok) == (version, False)


@unhurried
@given(st.sampled_from([record for record in LOG if record.writes]), st.sampled_from(WriteRecord._fields), st.text())
def test_a_changed_write_is_found_where_it_stands(record: AuditRecord, name: str, junk: str) -> None:
    changed = record.writes[-1]._replace(**{name: junk})
    assume(changed != record.writes[-1])
    forged = [*LOG]
    forged[record.version - 1] = dataclasses.replace(record, writes=(*record.writes[:-1], changed))
    assert verify_records(forged).position == record.version


@unhurried
@given(VERSIONS)
def test_a_field_that_is_missing_extra_or_doubled_is_found(version: int) -> None:
    lines = TEXT.splitlines()
    line = lines[version]
    for changed in (line.replace('"actor":"system",', ""), '{"more":1,' + line[1:], '{"actor":"system",' + line[1:]):
        forged = [*lines[:version], changed, *lines[version + 1 :]]
        assert verify_export("\n".join(forged)).position == version


@unhurried
@given(VERSIONS)
def test_a_dropped_record_is_found_where_it_is_missing(version: int) -> None:
    lines = TEXT.splitlines()
    del lines[version]
    assert verify_export("\n".join(lines)).position == version


@unhurried
@given(VERSIONS)
def test_a_doubled_record_is_found_at_its_second_place(version: int) -> None:
    lines = TEXT.splitlines()
    lines.insert(version, lines[version])
    assert verify_export("\n".join(lines)).position == version + 1


@unhurried
@given(VERSIONS, VERSIONS)
def test_swapped_records_are_found_at_the_earlier_place(one: int, other: int) -> None:
    lines = TEXT.splitlines()
    lines[one], lines[other] = lines[other], lines[one]
    assert verify_export("\n".join(lines)).position == (None if one == other else min(one, other))


@unhurried
@given(st.integers(0, len(LOG) - 1), st.booleans())
def test_a_cut_tail_is_found_at_the_first_missing_version(kept: int, checkpoint: bool) -> None:  # noqa: FBT001
    lines = TEXT.splitlines()
    forged = [*lines[: kept + 1], *(lines[-1:] if checkpoint else [])]
    assert verify_export("\n".join(forged)).position == kept + 1


@unhurried
@given(st.integers(0, len(TEXT) - 2))
def test_a_text_cut_anywhere_is_found(length: int) -> None:
    assert not verify_export(TEXT[:length]).ok


def test_a_removed_checkpoint_is_found_after_the_last_record() -> None:
    verdict = verify_export("\n".join(TEXT.splitlines()[:-1]))
    assert verdict.position == len(LOG) + 1
    assert "checkpoint" in str(verdict.problem)


def test_a_checkpoint_with_another_head_is_found_at_the_last_record() -> None:
    assert verify_export(TEXT.replace(f'"head": "{LOG[-1].hash}"', f'"head": "{GENESIS}"')).position == len(LOG)


@unhurried
@given(st.text() | st.binary().map(lambda junk: junk.decode("latin-1")))
def test_no_text_raises(text: str) -> None:
    assert not verify_export(text).ok


@unhurried
@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.integers(0, len(LOG) + 1),
)
def test_no_line_of_json_raises(value: Any, place: int) -> None:
    lines = TEXT.splitlines()
    lines[place] = json.dumps(value)
    assert not verify_export("\n".join(lines)).ok


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"version":' + "9" * 5000 + "}",
        '{"version":NaN}',
        '{"version":1e999}',
        '"\\ud800"',
        "{}",
        "\ud800",
    ],
)
@pytest.mark.parametrize("place", [0, 3, len(LOG) + 1])
def test_no_hostile_line_raises(line: str, place: int) -> None:
    lines = TEXT.splitlines()
    lines[place] = line
    assert verify_export("\n".join(lines)).position == place


def test_a_lone_surrogate_in_a_field_is_a_finding() -> None:
    lines = TEXT.splitlines()
    lines[3] = lines[3].replace('"reason":null', '"reason":"\\ud800"')
    assert verify_export("\n".join(lines)).position == 3


def test_an_empty_log_lacks_version_one() -> None:
    assert verify_export(export("chat-1", [])).position == 1
    assert verify_records([]).position == 1


def test_the_log_of_another_chat_is_found_at_its_first_record() -> None:
    assert verify_export(export("chat-2", LOG)).position == 1


def test_another_format_is_found_at_the_header() -> None:
    assert verify_export(TEXT.replace("turnwise-audit/1", "turnwise-audit/9")).position == 0


# Signatures


def test_a_signed_log_verifies_with_its_key_and_without() -> None:
    text = export("chat-1", LOG, key=b"secret")
    assert verify_export(text, key=b"secret").ok
    assert verify_export(text).ok


def test_a_key_demands_a_signature() -> None:
    verdict = verify_export(TEXT, key=b"secret")
    assert verdict.position == len(LOG) + 1
    assert "not signed" in str(verdict.problem)


def test_a_signature_by_another_key_is_refused() -> None:
    """Without the key nobody can cut a log and write a fitting checkpoint."""
    assert verify_export(export("chat-1", LOG[:-1], key=b"other"), key=b"secret").position == len(LOG)


@pytest.mark.parametrize("signature", [5, "", "\u00e9", "\ud800", ["x"]])
def test_a_signature_of_the_wrong_kind_is_refused(signature: object) -> None:
    lines = TEXT.splitlines()
    lines[-1] = json.dumps({**json.loads(lines[-1]), "signature": signature})
    assert not verify_export("\n".join(lines), key=b"secret").ok


# Forgeries: the whole chain is hashed anew, so only the table and the invariants can tell


@unhurried
@given(
    VERSIONS,
    st.sampled_from([*Trigger]),
    st.sampled_from([None, "new", "dreaming", *ChatState]),
    st.sampled_from([*ChatState]),
)
def test_no_transition_outside_the_table_passes(
    version: int, trigger: Trigger, source: str | None, target: ChatState
) -> None:
    rows = {(str(row.trigger), str(row.source), str(row.target)) for row in TABLE}
    place = "new" if source is None else source if source in {*ChatState} else "unknown"
    verdict = _forged(version - 1, trigger=trigger, source=source, target=target)
    if (trigger, place, target) not in rows:
        assert verdict.position == version


@pytest.mark.parametrize("other", ChatState)
def test_a_forged_target_is_found(other: ChatState) -> None:
    """Where the table has no such row, at the record itself; else where the life cannot go on from there."""
    rows = {(row.trigger, row.source, row.target) for row in TABLE}
    for record in LOG[:-1]:
        if record.target == other:
            continue
        verdict = _forged(record.version - 1, target=other)
        place = record.source if record.source in {*ChatState} else "new" if record.source is None else "unknown"
        if (record.trigger, place, other) in rows:
            assert verdict.position in (record.version, record.version + 1), record
        else:
            assert verdict.position == record.version, record
            assert "the table leads to" in str(verdict.problem)


@unhurried
@given(VERSIONS, st.sampled_from(["turn", "step", "attempt"]), st.sampled_from([-1, 2, 10**30]))
def test_a_jump_of_turn_step_or_attempt_is_found(version: int, name: str, by: int) -> None:
    record = LOG[version - 1]
    verdict = _forged(version - 1, **{name: getattr(record, name) + by})
    assert not verdict.ok
    assert verdict.position in (version, version + 1)


def test_a_requested_compaction_that_begins_no_step_is_found() -> None:
    """Only a claim may go on with a step or begin one; the forger must not be able to move the beginning there."""
    asked = next(record for record in LOG if record.trigger == "request_compaction")
    assert not _forged(asked.version - 1, step=asked.step - 1).ok


def test_a_log_begins_with_create() -> None:
    verdict = verify_records(rehashed([dataclasses.replace(LOG[place_of(T.repaired)])]))
    assert verdict.position == 1
    assert "begins with create" in str(verdict.problem)


def test_every_reason_to_refuse_a_log_has_its_forgery() -> None:
    """The words of each refusal, as the source spells them, must be those of a forgery below, or of a test above."""
    source = "".join(inspect.getsource(module) for module in (check_transitions, check_writes, check_promises))
    wanted = re.findall(r'(?:_refuse\(\s*|return |else )f?"([^"]*)"', source)
    problems = [str(verify_export(forge()).problem) for forge, _, _ in FORGERIES.values()]
    claims = [place for place, record in enumerate(LOG) if record.trigger == T.claimed]
    stays = {place: {"step": LOG[place - 1].step, "attempt": LOG[place - 1].attempt} for place in claims}
    problems += [
        str(_forged(place_of(T.attempt_started), source=ChatState.waiting).problem),
        str(_forged(0, trigger=T.send_message).problem),
        str(_forged(place_of(T.renamed), target=ChatState.pending).problem),
        str(_forged(place_of(T.renamed), trigger=T.step_finished).problem),
        *(str(_forged(at, target=ChatState.executing_tools, **stays[at]).problem) for at in claims),
        *(str(_forged(at, target=ChatState.requires_action, writes=(), **stays[at]).problem) for at in claims),
    ]
    unseen = [
        words
        for words in wanted
        if not any(all(plain in problem for plain in re.split(r"\{[^}]*\}", words)) for problem in problems)
    ]
    assert len(wanted) > 40
    assert unseen == []


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_found_and_named(name: str) -> None:
    forge, place, words = FORGERIES[name]
    verdict = verify_export(forge())
    assert verdict.position == place + 1
    assert words in str(verdict.problem)
    assert f"Version {place + 1}, " in str(verdict.problem)


def test_a_repair_may_start_from_a_state_the_log_never_led_to() -> None:
    """A repair is what turnwise does when the stored state is not what was committed."""
    place = place_of(T.repaired)
    assert LOG[place].source == "dreaming"
    assert _forged(place, source=ChatState.compacting).ok


def test_a_record_read_back_verifies_like_the_one_written() -> None:
    assert verify_records([from_json(to_json(record)) for record in LOG]).ok


@unhurried
@given(VERSIONS)
def test_records_of_another_chat_are_no_part_of_a_log(version: int) -> None:
    """Even if they are chained to it: a life may not be told half of one chat and half of another."""
    records = [*LOG[: version - 1], *(dataclasses.replace(record, chat_id="chat-2") for record in LOG[version - 1 :])]
    verdict = verify_export(export("chat-1", rehashed(records)))
    assert (verdict.ok, verdict.position) == (False, version)
    assert "chat-2" in (verdict.problem or "")
