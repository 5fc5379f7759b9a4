"""`turnwise audit`: a log as lines, told as signed if it is."""

from __future__ import annotations

import json

import pytest

from support.audit_records import record
from support.look import look
from support.terminal import Terminal
from support.terminal_chats import stuck
from turnwise.cli import style
from turnwise.cli.audit import short_actor, timeline

RECORDS = [
    record(9, trigger="renamed", actor="jane", attempt=2),
    record(10, target="streaming", step=7, actor="worker:vm/1:42:x", attempt=2),
]


def test_a_timeline_tells_where_a_state_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(style.console, "width", 100)
    assert look(timeline(RECORDS)) == [
        "[dim] #  time (UTC)               trigger  state        step  by       [/]",
        " 9  [dim]2026-01-02 03:04:05.067[/]  renamed  [dim]·          [/]        [dim]jane     [/]",
        "10  [dim]2026-01-02 03:04:05.067[/]  [bold]claimed[/]  [dim]→ [/][cyan]streaming[/]  7.2   [dim]worker 42[/]",
    ]
    monkeypatch.setattr(style.console, "width", 40)
    assert look(timeline(RECORDS)) == [
        "[dim] #  trigger  state      [/]",
        " 9  renamed  [dim]·          [/]",
        "10  [bold]claimed[/]  [dim]→ [/][cyan]streaming[/]",
    ]


@pytest.mark.parametrize(
    ("actor", "told"),
    [
        ("worker:vm/1:42:7:x", "worker 42"),
        ("worker:vm", "worker:vm"),
        ("worker", "worker"),
        ("ops:team:jane", "ops:team:jane"),
        ("jane", "jane"),
    ],
)
def test_of_a_worker_its_process_is_told(actor: str, told: str) -> None:
    assert short_actor(actor) == told


def test_a_log_is_signed_with_a_key_that_no_screen_shows(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_log_goes_through_a_pipe_and_nothing_else_does(terminal: Terminal) -> None:
    chat_id = stuck(terminal, "hello")
    terminal.run("audit", chat_id, "--export", "log.jsonl")
    piped = terminal.run("audit", chat_id, "--export", "-")
    assert piped.out == (terminal.folder / "log.jsonl").read_text(encoding="utf-8")
    assert [terminal.run(command, "-", "--json", typed=piped.out).code for command in ("verify", "replay")] == [0, 0]
    assert terminal.run("verify", "-", typed=piped.out.replace("client", "nobody")).code == 1
    assert not (terminal.folder / "-").exists()
    assert terminal.run("audit", chat_id, "--export", "-", "--json").code == 2


@pytest.mark.parametrize("option", ["--key", "--signing-key"])
def test_a_key_is_refused_where_nothing_is_signed(terminal: Terminal, option: str) -> None:
    told = terminal.run("audit", stuck(terminal, "hello"), option, "none")
    assert (told.code, told.out) == (2, "")
    assert f"{option}: signs a log that is exported" in told.err


def test_programs_get_records_whose_hashes_they_can_check(terminal: Terminal) -> None:
    chat_id = stuck(terminal, "hello")
    told = json.loads(terminal.run("audit", chat_id, "--json").out)
    assert terminal.run("audit", chat_id, "--export", "log.jsonl").code == 0
    header, *exported, checkpoint = (terminal.folder / "log.jsonl").read_text().splitlines()
    assert [json.dumps(one, sort_keys=True, separators=(",", ":")) for one in told] == exported
    assert json.loads(checkpoint)["head"] == told[-1]["hash"]
    assert json.loads(header)["chat_id"] == chat_id


@pytest.mark.parametrize("key", [(), ("--key", "key"), ("--signing-key", "pair")], ids=["none", "secret", "pair"])
def test_a_log_is_told_as_signed_if_it_is(terminal: Terminal, key: tuple[str, ...]) -> None:
    chat_id = stuck(terminal, "hello")
    (terminal.folder / "key").write_text("a very secret key\n")
    assert terminal.run("keygen", "pair").code == 0
    count = len(json.loads(terminal.run("audit", chat_id, "--json").out))
    written = terminal.run("audit", chat_id, "--export", "log.jsonl", *key)
    assert written.words == f"wrote {count} records to log.jsonl" + (", signed" if key else "")
    told = ("--public-key", "pair.pub") if key[:1] == ("--signing-key",) else key
    assert terminal.run("verify", "log.jsonl", *told).code == 0
    assert terminal.run("audit", chat_id).out.lstrip().startswith("#")
