"""`turnwise audit`: a log as lines, told as signed if it is."""

from __future__ import annotations

import json

import pytest

from support.terminal import Terminal
from support.terminal_chats import stuck


def test_export_is_signed_and_key_is_never_printed(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    chat_id = stuck(terminal, "hello")
    (terminal.folder / "key").write_text("a very secret key\n")
    (terminal.folder / "other").write_text("another secret key\n")
    signed = terminal.run("audit", chat_id, "--export", "log.jsonl", "--key", "key")
    assert (signed.code, "signed" in signed.out) == (0, True)
    checked = [terminal.run("verify", "log.jsonl", "--key", key) for key in ("key", "other", "missing")]
    assert [run.code for run in checked] == [0, 1, 2]
    monkeypatch.setenv("TURNWISE_AUDIT_KEY", "a very secret key")
    assert terminal.run("verify", "log.jsonl").code == 0
    assert terminal.run("audit", chat_id, "--export", "again.jsonl").code == 0
    assert (terminal.folder / "again.jsonl").read_bytes() == (terminal.folder / "log.jsonl").read_bytes()
    monkeypatch.setenv("TURNWISE_AUDIT_KEY", "")
    refused = terminal.run("verify", "log.jsonl")
    assert refused.code == 2
    assert "secret" not in "".join(run.out + run.err for run in (signed, refused, *checked)).replace("'secret", "")


def test_export_to_stdout_holds_only_the_log(terminal: Terminal) -> None:
    chat_id = stuck(terminal, "hello")
    terminal.run("audit", chat_id, "--export", "log.jsonl")
    piped = terminal.run("audit", chat_id, "--export", "-")
    assert piped.out == (terminal.folder / "log.jsonl").read_text(encoding="utf-8")
    assert [terminal.run(command, "-", "--json", typed=piped.out).code for command in ("verify", "replay")] == [0, 0]
    assert terminal.run("verify", "-", typed=piped.out.replace("client", "nobody")).code == 1
    assert not (terminal.folder / "-").exists()
    assert terminal.run("audit", chat_id, "--export", "-", "--json").code == 2


@pytest.mark.parametrize("option", ["--key", "--signing-key"])
def test_key_without_export_is_refused(terminal: Terminal, option: str) -> None:
    told = terminal.run("audit", stuck(terminal, "hello"), option, "none")
    assert (told.code, told.out) == (2, "")
    assert f"{option}: signs a log that is exported" in told.err


def test_json_records_have_verifiable_hashes(terminal: Terminal) -> None:
    chat_id = stuck(terminal, "hello")
    told = json.loads(terminal.run("audit", chat_id, "--json").out)
    assert terminal.run("audit", chat_id, "--export", "log.jsonl").code == 0
    header, *exported, checkpoint = (terminal.folder / "log.jsonl").read_text().splitlines()
    assert [json.dumps(one, sort_keys=True, separators=(",", ":")) for one in told] == exported
    assert json.loads(checkpoint)["head"] == told[-1]["hash"]
    assert json.loads(header)["chat_id"] == chat_id
