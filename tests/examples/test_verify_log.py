"""A second verifier, written from the format's page alone, agrees with turnwise on valid and forged logs."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.examples.examples import EXAMPLES

from support.logged_life import LOG, TEXT, forgery
from support.node import NODE, SCRIPTS, needs_node
from turnwise import Engine, SigningKey
from turnwise.persistence.audit.record import export
from turnwise.persistence.audit.verify import verify_export
from turnwise.states.names import ChatState

pytestmark = needs_node
SCRIPT = EXAMPLES / "verify-log.mjs"


AskVerifier = Callable[..., tuple[bool, int | None]]
"""Returns whether a log is valid, or else the version of the first bad or missing record."""


@contextmanager
def verifying() -> Iterator[AskVerifier]:
    """Return a function that verifies a log in Node: `key`, `public_key`, and `table=False` without the machine."""
    process = subprocess.Popen([NODE, SCRIPTS / "verify.mjs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    asked, reported = process.stdin, process.stdout

    def ask(
        text: str, *, key: str | None = None, public_key: str | None = None, table: bool = True
    ) -> tuple[bool, int | None]:
        question = {"text": text, "key": key, "publicKey": public_key, "withMachine": table}
        asked.write(json.dumps(question).encode() + b"\n")
        asked.flush()
        verdict: dict[str, Any] = json.loads(reported.readline())
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


async def test_both_accept_a_log_with_names_of_any_script(node: AskVerifier) -> None:
    """Names in a log are not escaped: both verifiers must encode them alike before hashing."""
    async with Engine("sqlite://", model="demo") as engine:
        for actor in ("Zoë Öztürk", "小林 🦊", 'a "quoted" \\ud800 \u2028 \x7f\t\x01 \u0085 name'):
            chat = await engine.acting(actor).create_chat()
            await engine.acting(actor).ask(chat.id, "Hello!", client_id=actor)
            text = await engine.export_audit(chat.id)
            raw = "\n".join(json.dumps(json.loads(line), ensure_ascii=False) for line in text.splitlines())
            assert node(text) == python(text) == node(raw) == python(raw) == (True, None)


HOSTILE = (
    "[" * 100_000,
    '{"version":' + "9" * 5000 + "}",
    '{"version":NaN}',
    '{"count":3.0,"head":""}',
    '{"count":true,"head":""}',
    '{"count":9007199254740993,"head":""}',
    '{"count":1,"head":"\\ud800"}',
    '{"count":1,"head":"","\\udc00":1}',
    '{"count":1,"head":"","more":1}',
    '"\\ud800"',
    "null",
    "\x1c",
    "\ufeff{}",
)


@pytest.mark.parametrize(
    "place", [3, len(LOG) + 1, *(pytest.param(place, marks=pytest.mark.deep) for place in (0, len(LOG)))]
)
@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_both_reject_a_hostile_line(node: AskVerifier, line: str, place: int) -> None:
    lines = TEXT.splitlines()
    lines[place] = line
    text = "\n".join(lines)
    assert node(text) == python(text)
    assert not node(text)[0]


@pytest.mark.parametrize("other", ["dreaming", *(pytest.param(state, marks=pytest.mark.deep) for state in ChatState)])
def test_both_find_a_transition_outside_the_table(node: AskVerifier, other: str) -> None:
    seen = 0
    for record in LOG[:-1]:
        text = forgery(record.version - 1, target=other)
        found, judged = node(text), python(text)
        assert found[0] or (not judged[0] and judged[1] is not None and found[1] is not None and judged[1] <= found[1])
        seen += found == judged
        assert node(text, table=False) == (True, None), "without the machine only the chain is left"
    assert seen > len(LOG) / 2


KEY, OTHER = SigningKey.generate(), SigningKey.generate()


@pytest.mark.parametrize("signature", [5, "", "\u00e9", ["x"], "AB" * 64, "ab" * 64, None])
def test_both_check_ed25519_signatures(node: AskVerifier, signature: object) -> None:
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


# As a program


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([NODE, SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_program_prints_its_verdict_and_exits_with_it(tmp_path: Path) -> None:
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
