"""A second verifier, written from the page of the format alone, agrees with turnwise on sound logs and forged ones."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples.examples import EXAMPLES

from support.exploring import examples
from support.logged_life import LOG, TEXT, forgery, place_of, rehashed
from support.node import NODE, SCRIPTS, needs_node
from turnwise import Engine, SigningKey
from turnwise.persistence.audit.record import AuditRecord, export, to_json
from turnwise.persistence.audit.verify import verify_export
from turnwise.states.names import ChatState, Trigger
from turnwise.states.table import TABLE

pytestmark = needs_node
SCRIPT = EXAMPLES / "verify-log.mjs"
VERSIONS = st.integers(1, len(LOG))
tried = settings(deadline=None, max_examples=examples(60))


AskVerifier = Callable[..., tuple[bool, int | None]]
"""Returns whether a log is sound, and if not the version of the first record that is bad or missing."""


@contextmanager
def verifying() -> Iterator[AskVerifier]:
    """Give a function that verifies a log in Node: `key`, `public_key`, and `table=False` without the machine."""
    process = subprocess.Popen([NODE, SCRIPTS / "verify.mjs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    asked, told = process.stdin, process.stdout

    def ask(
        text: str, *, key: str | None = None, public_key: str | None = None, table: bool = True
    ) -> tuple[bool, int | None]:
        given = {"text": text, "key": key, "publicKey": public_key, "withMachine": table}
        asked.write(json.dumps(given).encode() + b"\n")
        asked.flush()
        verdict: dict[str, Any] = json.loads(told.readline())
        assert verdict["ok"] or verdict["problem"]
        return verdict["ok"], verdict["position"]

    with process:
        yield ask


@pytest.fixture(scope="module")
def node() -> Iterator[AskVerifier]:
    with verifying() as ask:
        yield ask


def python(text: str, **options: Any) -> tuple[bool, int | None]:
    verdict = verify_export(text, **options)
    return verdict.ok, verdict.position


def test_it_is_as_short_as_the_page_says() -> None:
    lines = SCRIPT.read_text().splitlines()
    assert sum(bool(line.strip()) and not line.startswith("/") for line in lines) <= 150


def test_both_take_a_rich_life(node: AskVerifier) -> None:
    assert node(TEXT) == python(TEXT) == (True, None)


async def test_both_take_the_log_of_a_real_chat_with_words_of_any_script(node: AskVerifier) -> None:
    """Names of people are in a log as they are: both must spell them alike before they hash them."""
    async with Engine("sqlite://", model="demo") as engine:
        for actor in ("Zoë Öztürk", "小林 🦊", 'a "quoted" \\ud800 \u2028 \x7f\t\x01 \u0085 name'):
            chat = await engine.create_chat(actor=actor)
            await engine.ask(chat.id, "Hello!", client_id=actor, actor=actor)
            text = await engine.export_audit(chat.id)
            raw = "\n".join(json.dumps(json.loads(line), ensure_ascii=False) for line in text.splitlines())
            assert node(text) == python(text) == node(raw) == python(raw) == (True, None)


@tried
@given(VERSIONS, st.sampled_from([field.name for field in dataclasses.fields(AuditRecord)]), st.data())
def test_both_find_a_changed_field_where_it_stands(
    node: AskVerifier, version: int, name: str, data: st.DataObject
) -> None:
    fields = json.loads(to_json(LOG[version - 1]))
    junk = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text()))
    fields[name] = data.draw(junk.filter(lambda value: (value, type(value)) != (fields[name], type(fields[name]))))
    lines = TEXT.splitlines()
    lines[version] = json.dumps(fields)
    text = "\n".join(lines)
    assert node(text) == python(text) == (False, version)


@tried
@given(st.integers(0, len(LOG) + 1), st.sampled_from("dxs+"), st.integers(0, len(LOG) + 1))
def test_both_find_lines_that_are_dropped_doubled_or_swapped(
    node: AskVerifier, place: int, how: str, other: int
) -> None:
    lines = TEXT.splitlines()
    match how:
        case "d":
            del lines[place]
        case "x":
            lines[place], lines[other] = lines[other], lines[place]
        case "s":
            del lines[place : other + 1]
        case _:
            lines.insert(place, lines[other])
    text = "\n".join(lines)
    assert node(text) == python(text)


@tried
@given(st.integers(0, len(TEXT) - 1))
def test_both_find_a_text_that_is_cut_anywhere(node: AskVerifier, length: int) -> None:
    assert node(TEXT[:length]) == python(TEXT[:length])


HOSTILE = (
    "[" * 100_000,
    '{"a":' * 20_000,
    '{"version":' + "9" * 5000 + "}",
    '{"version":NaN}',
    '{"count":1e999}',
    '{"count":3.0,"head":""}',
    '{"count":-3,"head":""}',
    '{"count":true,"head":""}',
    '{"count":9007199254740993,"head":""}',
    '{"count":1,"count":1,"head":""}',
    '{"count":1,"head":"\\ud800"}',
    '{"count":1,"head":"","\\udc00":1}',
    '{"count":1,"head":"","more":1}',
    '{"head":""}',
    '"\\ud800"',
    "null",
    "{}",
    " \t\r",
    "\x1c",
    "\ufeff{}",
)


@pytest.mark.parametrize("place", [0, 3, len(LOG), len(LOG) + 1])
@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_both_judge_a_hostile_line_alike(node: AskVerifier, line: str, place: int) -> None:
    lines = TEXT.splitlines()
    lines[place] = line
    text = "\n".join(lines)
    assert node(text) == python(text)
    assert not node(text)[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"actor":"system",', '"actor":"system","actor":"system",'),
        ('"attempt":0', '"attempt":0.0'),
        ('"attempt":0', '"attempt":0e0'),
        ('"attempt":0', '"attempt":-1'),
        ('"attempt":0', '"attempt":9007199254740992'),
        ('"reason":null', '"reason":"\\ud800"'),
        ("+00:00", "Z"),
        ("09:30:01", "24:00:00"),
        ("2026-11-21", "2026-11-31"),
        ("2026-11-21", "0000-11-21"),
        ("09:30:01+00:00", "09:30:01.000000+00:00"),
        ('"hash":"', '"hash":"0'),
        ('"writes":[', '"writes":[{"kind":"usage","id":"1"},'),
        ('"writes":[', '"writes":[{"kind":"usage","id":"1","digest":2},'),
        ('"writes":[', '"writes":[[],'),
    ],
)
def test_both_refuse_what_is_not_spelled_as_the_page_says(node: AskVerifier, old: str, new: str) -> None:
    assert old in TEXT
    text = TEXT.replace(old, new, 1)
    position = python(text)[1]
    assert position is not None
    assert node(text) == (False, position)


def resealed(version: int, changes: dict[str, object]) -> str:
    """Change fields of a record as JSON, and make every hash anew: only the rule that is broken can tell."""
    header, *lines, last = TEXT.splitlines()
    prev = json.loads(lines[version - 1])["prev"]
    for place in range(version - 1, len(lines)):
        fields = {**json.loads(lines[place]), "prev": prev, **(changes if place == version - 1 else {})}
        del fields["hash"]
        spelled = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        prev = hashlib.sha256(f"{fields['prev']}\n{spelled}".encode()).hexdigest()
        lines[place] = json.dumps({**fields, "hash": prev})
    return "\n".join([header, *lines, json.dumps({**json.loads(last), "head": prev})])


@pytest.mark.parametrize(
    "changes",
    [
        {"at": "2026-11-21T09:30:01Z"},
        {"at": "2026-11-21T09:30:01.000000+00:00"},
        {"at": "2026-11-21T09:30:01.5+00:00"},
        {"at": "2026-11-31T09:30:01+00:00"},
        {"at": "0000-11-21T09:30:01+00:00"},
        {"at": "2026-11-21 09:30:01+00:00"},
        {"turn": 2**53},
        {"turn": -1},
        {"turn": 1.0},
        {"turn": True},
        {"reason": "words", "writes": [{"kind": "reason", "id": "r", "digest": "d"}]},
        {"reason": 7},
        {"writes": [{"kind": "usage", "id": "1"}]},
        {"writes": [{"kind": "usage", "id": "1", "digest": None}]},
        {"writes": {}},
        {"more": 1},
        {"chat_id": "chat-2"},
        {"version": 7},
    ],
    ids=str,
)
def test_both_refuse_a_form_that_is_wrong_although_its_hash_is_right(
    node: AskVerifier, changes: dict[str, object]
) -> None:
    assert node(resealed(1, {})) == python(resealed(1, {})) == (True, None)
    text = resealed(1, changes)
    assert node(text) == python(text) == (False, 1)


def test_both_see_that_a_record_does_not_start_where_the_one_before_has_led(node: AskVerifier) -> None:
    """Although the table has a row from there."""
    others = [
        (record.version, row.source)
        for record in LOG[1:]
        for row in TABLE
        if record.trigger not in (Trigger.repaired, Trigger.create)
        and (row.trigger, row.target) == (record.trigger, record.target)
        and row.source != record.source
    ]
    assert len(others) > 50
    for version, source in others[::7]:
        text = forgery(version - 1, source=source)
        assert node(text) == python(text) == (False, version)


@pytest.mark.parametrize("other", [*ChatState, "dreaming"])
def test_both_see_a_transition_that_the_table_does_not_have(node: AskVerifier, other: str) -> None:
    seen = 0
    for record in LOG[:-1]:
        text = forgery(record.version - 1, target=other)
        found, judged = node(text), python(text)
        assert found[0] or (not judged[0] and judged[1] is not None and found[1] is not None and judged[1] <= found[1])
        seen += found == judged
        assert node(text, table=False) == (True, None), "without the machine only the chain is left"
    assert seen > len(LOG) / 2


def test_both_demand_that_a_life_begins_with_create_and_that_triggers_are_declared(node: AskVerifier) -> None:
    for text in (
        export("chat-1", rehashed([LOG[-1]])),
        export("chat-1", rehashed([LOG[place_of(Trigger.repaired)]])),
        export("chat-1", rehashed([*LOG[: place_of(Trigger.archived) + 1], *LOG[place_of(Trigger.unarchived) + 1 :]])),
        forgery(0, trigger=Trigger.send_message),
        forgery(3, source="waiting"),
        forgery(3, trigger="constructor"),
        export("chat-1", []),
        export("chat-2", LOG),
        TEXT.replace("turnwise-audit/1", "turnwise-audit/9"),
    ):
        assert node(text) == python(text)
        assert not node(text)[0]


@pytest.mark.parametrize("signature", [5, "", "\u00e9", "\ud800", ["x"], "AB" * 32, None])
def test_both_read_the_same_signatures(node: AskVerifier, signature: object) -> None:
    signed = export("chat-1", LOG, key="sécret".encode())
    assert node(signed, key="sécret") == (True, None)
    assert node(signed) == (True, None)
    assert node(signed, key="other") == python(signed, key=b"other") == (False, len(LOG) + 1)
    assert node(TEXT, key="other") == python(TEXT, key=b"other") == (False, len(LOG) + 1)
    lines = signed.splitlines()
    lines[-1] = json.dumps({**json.loads(lines[-1]), "signature": signature})
    text = "\n".join(lines)
    assert node(text, key="sécret") == python(text, key="sécret".encode())
    assert not node(text, key="sécret")[0]


KEY, OTHER = SigningKey.generate(), SigningKey.generate()


@pytest.mark.parametrize("signature", [5, "", "\u00e9", ["x"], "AB" * 64, "ab" * 64, None])
def test_both_read_the_same_signatures_of_ed25519(node: AskVerifier, signature: object) -> None:
    signed = export("chat-1", LOG, key=b"secret", signer=KEY)
    public, other = KEY.public_pem.decode(), OTHER.public_pem.decode()
    assert node(signed, key="secret", public_key=public) == (True, None)
    assert python(signed, key=b"secret", public_key=KEY.public_pem) == (True, None)
    assert node(signed) == python(signed) == (True, None)
    bad = (False, len(LOG) + 1)
    assert node(signed, public_key=other) == python(signed, public_key=OTHER.public_pem) == bad
    assert node(TEXT, public_key=public) == python(TEXT, public_key=KEY.public_pem) == bad
    lines = signed.splitlines()
    lines[-1] = json.dumps({**json.loads(lines[-1]), "ed25519": signature})
    text = "\n".join(lines)
    assert node(text, public_key=public) == python(text, public_key=KEY.public_pem) == bad
    cut = "\n".join([*lines[:-2], json.dumps({**json.loads(lines[-1]), "count": len(LOG) - 1, "head": LOG[-2].hash})])
    assert node(cut, public_key=public) == python(cut, public_key=KEY.public_pem) == (False, len(LOG))


def test_both_take_a_log_that_one_of_several_public_keys_bears_out(node: AskVerifier) -> None:
    """After a change of keys a file holds the new one and the old ones."""
    signed = export("chat-1", LOG, signer=KEY)
    for keys in (OTHER.public_pem + KEY.public_pem, KEY.public_pem + b"\n\n" + OTHER.public_pem):
        assert node(signed, public_key=keys.decode()) == python(signed, public_key=keys) == (True, None)
    others = OTHER.public_pem + SigningKey.generate().public_pem
    bad = (False, len(LOG) + 1)
    assert node(signed, public_key=others.decode()) == python(signed, public_key=others) == bad


# As a program


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([NODE, SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_the_program_says_what_it_found_and_exits_with_it(tmp_path: Path) -> None:
    log, key, public = tmp_path / "log.jsonl", tmp_path / "key", tmp_path / "key.pub"
    log.write_text(export("chat-1", LOG, key=b"secret", signer=KEY))
    key.write_bytes(b"secret\r\n")
    public.write_bytes(KEY.public_pem)
    sound = run(log, "--key", key, "--public-key", public)
    assert (sound.returncode, sound.stdout, sound.stderr) == (0, "sound\n", "")
    log.write_text(log.read_text().replace('"trigger":"archived"', '"trigger":"unarchived"'))
    refused = run(log)
    assert refused.returncode == 1
    assert "not sound at version" in refused.stdout
    log.write_text(forgery(3, trigger="sing"))
    assert "version 4: the machine has no trigger sing" in run(log).stdout


def test_the_program_tells_misuse_without_a_trace(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(TEXT)
    no_key = [log, "--public-key", log]
    for arguments in ([], [tmp_path / "none"], [tmp_path, "--loud"], [SCRIPT, "--key", tmp_path / "none"], no_key):
        done = run(*arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("verify-log: ")
        assert len(done.stderr.splitlines()) <= 2
