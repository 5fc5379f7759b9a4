"""Keys and checkpoints at the command line: signed with, checked with, and never shown."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from support.rewriting import rewrite
from support.terminal import Terminal
from turnwise import Checkpoints, Engine, SigningKey
from turnwise.providers.scripted import ScriptedModel


@pytest.fixture
def chat_id(terminal: Terminal, key: SigningKey) -> str:
    async def live() -> str:
        published = terminal.folder / "checkpoints.jsonl"
        checkpoints = Checkpoints(key, published)
        store = f"sqlite:///{terminal.folder}/turnwise.db"
        async with Engine(store, model=ScriptedModel("ok"), checkpoints=checkpoints) as engine:
            chat = await engine.create_chat()
            while not published.exists() or not published.read_text():  # noqa: ASYNC110 - no event comes from there
                await anyio.sleep(0.01)
            await engine.ask(chat.id, "hi")
            return chat.id

    return anyio.run(live)


ENGINE = "support.processes.talkative:served"
COMPARED = ("--checkpoints", "checkpoints.jsonl", "--public-key", "audit.pem.pub")


def test_verify_compares_published_checkpoints(terminal: Terminal, chat_id: str) -> None:
    told = terminal.run("verify", chat_id, *COMPARED)
    assert told.code == 0
    assert "checkpoints bear out versions 1 to 5" in told.words
    assert json.loads(terminal.run("verify", chat_id, *COMPARED, "--json").out)["covered"] == 5
    assert terminal.run("audit", chat_id, "--export", "log.jsonl").code == 0
    assert "versions 1 to 5" in terminal.run("verify", "log.jsonl", *COMPARED).words
    rewrite(terminal.folder / "turnwise.db", chat_id, 2, actor="mallory")
    assert terminal.run("verify", chat_id).code == 0
    found = terminal.run("verify", chat_id, *COMPARED)
    assert found.code == 1
    assert "not sound at version 5" in found.words
    assert "it was rewritten" in found.words


def test_export_verifies_with_the_public_key(terminal: Terminal, chat_id: str) -> None:
    signed = terminal.run("audit", chat_id, "--export", "log.jsonl", "--signing-key", "audit.pem")
    assert "log.jsonl, signed" in signed.out
    assert terminal.run("verify", "log.jsonl", "--public-key", "audit.pem.pub").code == 0
    assert terminal.run("keygen", "other.pem").code == 0
    refused = terminal.run("verify", "log.jsonl", "--public-key", "other.pem.pub")
    assert refused.code == 1
    assert "Ed25519 signature was not made" in refused.words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("verify", "last", "--checkpoints", "checkpoints.jsonl"), "needs --public-key"),
        (("verify", "last", "--public-key", "audit.pem.pub"), "a store is not signed"),
        (("verify", "last", "--key", "audit.pem"), "a key is for an exported log"),
        (("verify", "last", "--checkpoints", "none", "--public-key", "audit.pem.pub"), "there is no file"),
        (("verify", "last", "--checkpoints", "checkpoints.jsonl", "--public-key", "none"), "there is no file"),
        (("verify", "last", "--checkpoints", "checkpoints.jsonl", "--public-key", "audit.pem"), "a private key"),
        (("worker", "x:agents", "--checkpoints", "x"), "name the key, with --signing-key FILE"),
        (("serve", "x:agents", "--signing-key", "audit.pem"), "say where they go, with --checkpoints PLACE"),
        (("serve", "x:agents", "--checkpoints", "ftp://x", "--signing-key", "audit.pem"), "--checkpoints: must be an"),
        (("worker", ENGINE, "--checkpoints", "x", "--signing-key", "audit.pem"), "is an engine, which has its own"),
        (("audit", "last", "--export", "x", "--signing-key", "none"), "there is no file"),
        (("audit", "last", "--export", "x", "--signing-key", "audit.pem.pub"), "it was a public key"),
        (("audit", "last", "--export", "x", "--signing-key", "checkpoints.jsonl"), "must be an Ed25519 private key"),
    ],
)
def test_invalid_key_is_misuse(
    terminal: Terminal, chat_id: str, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.setenv("TURNWISE_TALKATIVE_STORE", "sqlite://")
    assert chat_id
    refused = terminal.run(*arguments)
    assert refused.code == 2
    assert words in refused.words
    assert not Path(terminal.folder / "x").exists()
