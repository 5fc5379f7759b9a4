"""Keys and checkpoints at the command line: created once, signed with, checked with, and never shown."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import anyio
import pytest

from cli.terminal_chats import url_of
from support.rewriting import rewrite
from support.terminal import Terminal
from turnwise import Checkpoints, Engine, SigningKey
from turnwise.cli.key import VARIABLE, signing_key
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.errors import SettingsError

ENGINE = "support.processes.talkative:served"
COMPARED = ("--checkpoints", "checkpoints.jsonl", "--public-key", "audit.pem.pub")


@pytest.fixture
def key(terminal: Terminal) -> SigningKey:
    """Return the key that `turnwise keygen` has created in the terminal's folder."""
    created = terminal.run("keygen", "audit.pem")
    assert created.code == 0
    key = SigningKey.from_file(terminal.folder / "audit.pem")
    assert key.key_id in created.words
    assert key.private_pem.decode().splitlines()[1] not in created.out + created.err
    return key


@pytest.fixture
def chat_id(terminal: Terminal, key: SigningKey) -> str:
    async def live() -> str:
        published = terminal.folder / "checkpoints.jsonl"
        async with Engine(
            url_of(terminal), model=ScriptedModel("ok"), checkpoints=Checkpoints(key, published)
        ) as engine:
            chat = await engine.create_chat()
            while not published.exists() or not published.read_text():  # noqa: ASYNC110 - no event comes from there
                await anyio.sleep(0.01)
            await engine.ask(chat.id, "hi")
            return chat.id

    return anyio.run(live)


def test_keygen_writes_private_key_once(terminal: Terminal, key: SigningKey) -> None:
    private, public = terminal.folder / "audit.pem", terminal.folder / "audit.pem.pub"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert public.read_bytes() == key.public_pem
    for name in ("audit.pem", "none/audit.pem", "a\0b", "/", ".", "", "x" * 253):
        refused = terminal.run("keygen", name)
        assert refused.code == 2, refused.out + refused.err
    assert sorted(terminal.folder.iterdir()) == [private, public], "no half of a pair is left"
    public.unlink()
    assert terminal.run("keygen", "audit.pem").code == 2
    assert SigningKey.from_file(private).key_id == key.key_id


def test_key_file_precedes_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert signing_key(None) is None
    monkeypatch.setenv(VARIABLE, os.fsdecode(b"of the variable \xff\n"))
    assert signing_key(None) == b"of the variable \xff\n"
    (tmp_path / "key").write_text("of the file")
    assert signing_key(tmp_path / "key") == b"of the file"


def test_empty_key_names_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "a key that the empty file must not fall back on")
    for content in (b"", b"\r\n\n"):
        (tmp_path / "key").write_bytes(content)
        with pytest.raises(SettingsError, match="--key: the key is empty"):
            signing_key(tmp_path / "key")
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(SettingsError, match=f"{VARIABLE}: the key is empty"):
        signing_key(None)


def test_verify_compares_published_checkpoints(terminal: Terminal, chat_id: str) -> None:
    sound = terminal.run("verify", chat_id, *COMPARED)
    assert (sound.code, "checkpoints bear out versions 1 to 5" in sound.words) == (0, True), sound
    assert json.loads(terminal.run("verify", chat_id, *COMPARED, "--json").out)["covered"] == 5
    assert terminal.run("audit", chat_id, "--export", "log.jsonl").code == 0
    assert "versions 1 to 5" in terminal.run("verify", "log.jsonl", *COMPARED).words
    rewrite(terminal.folder / "turnwise.db", chat_id, 2, actor="mallory")
    assert terminal.run("verify", chat_id).code == 0
    found = terminal.run("verify", chat_id, *COMPARED)
    assert (found.code, "not sound at version 5" in found.words, "it was rewritten" in found.words) == (1, True, True)


def test_export_verifies_with_the_public_key(terminal: Terminal, chat_id: str) -> None:
    signed = terminal.run("audit", chat_id, "--export", "log.jsonl", "--signing-key", "audit.pem")
    assert "log.jsonl, signed" in signed.out
    assert terminal.run("verify", "log.jsonl", "--public-key", "audit.pem.pub").code == 0
    assert terminal.run("keygen", "other.pem").code == 0
    refused = terminal.run("verify", "log.jsonl", "--public-key", "other.pem.pub")
    assert (refused.code, "Ed25519 signature was not made" in refused.words) == (1, True), refused


MISUSES = {
    "verify last --checkpoints checkpoints.jsonl": "needs --public-key",
    "verify last --public-key audit.pem.pub": "a store is not signed",
    "verify last --key audit.pem": "a key is for an exported log",
    "verify last --checkpoints none --public-key audit.pem.pub": "there is no file",
    "verify last --checkpoints checkpoints.jsonl --public-key audit.pem": "a private key",
    "worker x:agents --checkpoints x": "name the key, with --signing-key FILE",
    "serve x:agents --signing-key audit.pem": "say where they go, with --checkpoints PLACE",
    "serve x:agents --checkpoints ftp://x --signing-key audit.pem": "--checkpoints: must be an",
    f"worker {ENGINE} --checkpoints x --signing-key audit.pem": "is an engine, which has its own",
    "audit last --key none": "--key: signs a log that is exported",
    "audit last --export x --signing-key none": "there is no file",
    "audit last --export x --signing-key audit.pem.pub": "it was a public key",
    "audit last --export x --signing-key checkpoints.jsonl": "must be an Ed25519 private key",
}


def test_invalid_key_is_misuse(terminal: Terminal, chat_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWISE_TALKATIVE_STORE", "sqlite://")
    assert chat_id
    for typed, words in MISUSES.items():
        refused = terminal.run(*typed.split())
        assert (refused.code, words in refused.words) == (2, True), refused
    assert not Path(terminal.folder / "x").exists()
