"""`turnwise audit`, `verify` and `replay`: a log as lines, as a verdict, and step by step."""

import errno
import json
import os
import sqlite3
import stat
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from cli.look import look
from cli.terminal_chats import chat_with, url_of
from support.audit_records import AT, record
from support.logged_life import LOG, TEXT
from support.rewriting import rewrite
from support.terminal import Keyboard, Terminal
from turnwise import Agent, Checkpoints, Engine, SigningKey, Verdict, delegate
from turnwise.cli.audit import Step, step_lines
from turnwise.cli.keys import VARIABLE, signing_key
from turnwise.cli.verify import verdict_line
from turnwise.persistence.audit.digests import WriteRecord
from turnwise.persistence.audit.record import AuditRecord
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import SettingsError


def test_export_is_signed_and_key_is_never_printed(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    chat_id = chat_with(terminal, "hello")
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
    chat_id = chat_with(terminal, "hello")
    terminal.run("audit", chat_id, "--export", "log.jsonl")
    piped = terminal.run("audit", chat_id, "--export", "-")
    assert piped.out == (terminal.folder / "log.jsonl").read_text(encoding="utf-8")
    assert [terminal.run(command, "-", "--json", typed=piped.out).code for command in ("verify", "replay")] == [0, 0]
    assert terminal.run("verify", "-", typed=piped.out.replace("client", "nobody")).code == 1
    assert not (terminal.folder / "-").exists()
    assert terminal.run("audit", chat_id, "--export", "-", "--json").code == 2


def test_json_records_have_verifiable_hashes(terminal: Terminal) -> None:
    chat_id = chat_with(terminal, "hello")
    records = json.loads(terminal.run("audit", chat_id, "--json").out)
    assert terminal.run("audit", chat_id, "--export", "log.jsonl").code == 0
    header, *exported, checkpoint = (terminal.folder / "log.jsonl").read_text().splitlines()
    assert [json.dumps(one, sort_keys=True, separators=(",", ":")) for one in records] == exported
    assert json.loads(checkpoint)["head"] == records[-1]["hash"]
    assert json.loads(header)["chat_id"] == chat_id
    lines = terminal.run("audit", chat_id).out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [str(record["version"]) for record in records]


def test_verdict_is_a_sentence() -> None:
    assert look(verdict_line(Verdict(ok=True))) == [
        "[green]✓ sound: the chain is unbroken and every transition is one of the table's[/]"
    ]
    odd = Verdict(ok=False, problem="odd\x1b", position=3)
    assert look(verdict_line(odd)) == [r"[red]✗ not sound at version 3: odd\x1b[/]"]
    assert look(verdict_line(Verdict(ok=False, position=3))) == ["[red]✗ not sound at version 3: [/]"]


def test_options_of_stores_are_refused_for_logs(terminal: Terminal) -> None:
    chat_with(terminal)
    assert terminal.run("audit", "last", "--export", "log.jsonl").code == 0
    for typed, words in {
        "verify log.jsonl --family": "--family: an exported log is of one chat alone",
        "verify log.jsonl --files": "--files: an exported log holds no files",
        "verify log.jsonl --server http://host": "--server: an exported log is read here",
        "replay log.jsonl --server http://host": "--server: an exported log is read here",
    }.items():
        refused = terminal.run(*typed.split())
        assert (refused.code, words in refused.words, "sound" in refused.words) == (2, True, False), refused


def test_verify_family_checks_subagents(terminal: Terminal) -> None:
    async def delegated() -> tuple[str, str]:
        boss = ScriptedModel([Reply(calls=[Call("ask_other", {"task": "help"})]), "Thanks."])
        agents = [Agent("boss", boss, tools=[delegate("other")]), Agent("other", ScriptedModel(["Done."]))]
        async with Engine(url_of(terminal), agents=agents) as engine:
            chat = await engine.create_chat(agent="boss")
            await engine.ask(chat.id, "get help")
            (subagent,) = await engine.subagents(chat.id)
            return chat.id, subagent.id

    chat_id, subagent = anyio.run(delegated)
    assert terminal.run("verify", chat_id, "--family").code == 0
    with closing(sqlite3.connect(terminal.folder / "turnwise.db")) as on, on:
        on.execute(
            "DELETE FROM audit WHERE chat = (SELECT number FROM chats WHERE id = ?) AND version = 2", (subagent,)
        )
    assert terminal.run("verify", chat_id).code == 0
    assert terminal.run("verify", subagent).code == 1
    assert terminal.run("verify", chat_id, "--family").code == 1


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "log.jsonl"
    file.write_text(TEXT)
    return file


def test_replay_prints_all_steps_into_a_pipe(terminal: Terminal) -> None:
    chat_id = chat_with(terminal, "hello")
    reported = terminal.run("replay", chat_id)
    assert reported.code == 0
    records = json.loads(terminal.run("audit", chat_id, "--json").out)
    for one in records:
        assert f"{one['version']}/{len(records)} {one['trigger']}" in reported.out
    for words in ("waiting → pending", "by client", "writes message m1", "turn 1 · step 1", "✓ sound"):
        assert words in reported.out


def test_replay_json_has_steps_and_verdict(terminal: Terminal, log: Path) -> None:
    reported = json.loads(terminal.run("replay", str(log), "--json").out)
    assert reported["verdict"]["ok"]
    assert [step["record"]["version"] for step in reported["steps"]] == [record.version for record in LOG]
    assert reported["steps"][0]["after"] is None
    assert all(step["after"] for step in reported["steps"][1:])
    assert all(step["problem"] is None for step in reported["steps"])
    lines = [json.dumps(step["record"], sort_keys=True, separators=(",", ":")) for step in reported["steps"]]
    assert lines == TEXT.splitlines()[1:-1]


def test_replay_stops_at_the_first_bad_record(terminal: Terminal, log: Path) -> None:
    log.write_text(TEXT.replace('"trigger":"archived"', '"trigger":"unarchived"'))
    place = next(record.version for record in LOG if record.trigger == "archived")
    reported = terminal.run("replay", str(log))
    assert reported.code == 1
    assert f"{place}/{place} unarchived" in reported.out
    assert "✗ Version" in reported.out
    assert f"not sound at version {place}" in reported.words
    steps = json.loads(terminal.run("replay", str(log), "--json").out)["steps"]
    assert [step["problem"] is None for step in steps] == [True] * (place - 1) + [False]


@pytest.mark.parametrize("content", ["", '{"format":"turnwise-audit/1","chat_id":"c"}\nx'])
def test_replay_of_no_log_exits_1(terminal: Terminal, log: Path, content: str) -> None:
    log.write_text(content)
    reported = terminal.run("replay", str(log))
    assert (reported.code, reported.err) == (1, "")
    assert "not sound" in reported.out


def step_of(version: int, **reported: Any) -> AuditRecord:
    """Return the record of a worker's third attempt at a second step."""
    writes = tuple(WriteRecord("event", f"e{number}", "") for number in range(4))
    some: dict[str, Any] = {"actor": "worker:vm:42:x", "step": 2, "attempt": 3, "writes": writes}
    some["at"] = AT + timedelta(seconds=version)
    return record(version, **some | reported)


def test_step_prints_actor_trigger_and_writes() -> None:
    step = Step(step_of(7, source="pending", target="streaming", reason="why"), timedelta(seconds=1), "wrong")
    reported = [
        "[dim]7/9 [/][bold]claimed[/]",
        "[cyan]pending → streaming[/]",
        "[dim]by [/]worker 42",
        "[dim]2026-01-02 03:04:12.067[/]  +1 s",
        "[dim]turn 1 · step 2 · attempt 3[/]",
        "[dim]because: [/]why",
        "[red]✗ wrong[/]",
    ]
    writes = [f"[dim]  writes [/]event[dim] e{number}[/]" for number in range(4)]
    assert look(*step_lines(step, of=9, width=80)) == [*reported, *writes]


def test_replay_on_a_terminal_has_a_pager(terminal: Terminal, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paged = terminal.folder / "paged"
    monkeypatch.setenv("PAGER", f"cat > {paged}")
    with Keyboard(terminal, ("replay", str(log), "--delay", "0.01")) as keyboard:
        keyboard.see(f"{len(LOG)}/{len(LOG)}")
        keyboard.see("✓ sound")
    assert not paged.exists()
    with Keyboard(terminal, ("replay", str(log))) as keyboard:
        keyboard.see("✓ sound")
    assert f"{len(LOG)}/{len(LOG)}" in paged.read_text()


# Keys and checkpoints


ENGINE = "support.processes.talkative:served"
COMPARED = ("--checkpoints", "checkpoints.jsonl", "--public-key", "audit.pem.pub")


@pytest.fixture
def key(terminal: Terminal) -> SigningKey:
    """Return the key that `turnwise keygen` created in the terminal's folder."""
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
    for name in ("audit.pem", "none/audit.pem", "/", ".", "", "x" * 253):
        refused = terminal.run("keygen", name)
        assert refused.code == 2, refused.out + refused.err
    assert sorted(terminal.folder.iterdir()) == [private, public], "no half of a pair is left"
    public.unlink()
    assert terminal.run("keygen", "audit.pem").code == 2
    assert SigningKey.from_file(private).key_id == key.key_id


def test_keygen_leaves_no_half_of_a_pair(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("turnwise.cli.files.os.fsync", refuse)
    refused = terminal.run("keygen", "audit.pem")
    assert (refused.code, "'audit.pem.pub': No space left" in refused.words) == (1, True), refused
    assert [*terminal.folder.iterdir()] == []


def test_key_file_precedes_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty key is refused at its source."""
    file = tmp_path / "key"
    monkeypatch.delenv(VARIABLE, raising=False)
    assert signing_key(None) is None
    monkeypatch.setenv(VARIABLE, os.fsdecode(b"of the variable \xff\n"))
    assert signing_key(None) == b"of the variable \xff\n"
    file.write_text("of the file")
    assert signing_key(file) == b"of the file"
    for content in (b"", b"\r\n\n"):
        file.write_bytes(content)
        with pytest.raises(SettingsError, match="--key: the key is empty"):
            signing_key(file)
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(SettingsError, match=f"{VARIABLE}: the key is empty"):
        signing_key(None)


def test_verify_compares_published_checkpoints(terminal: Terminal, chat_id: str) -> None:
    sound = terminal.run("verify", chat_id, *COMPARED)
    assert (sound.code, "checkpoints bear out versions 1 to 4" in sound.words) == (0, True), sound
    assert json.loads(terminal.run("verify", chat_id, *COMPARED, "--json").out)["covered"] == 4
    assert terminal.run("audit", chat_id, "--export", "log.jsonl").code == 0
    assert "versions 1 to 4" in terminal.run("verify", "log.jsonl", *COMPARED).words
    rewrite(terminal.folder / "turnwise.db", chat_id, 2, actor="mallory")
    assert terminal.run("verify", chat_id).code == 0
    found = terminal.run("verify", chat_id, *COMPARED)
    assert (found.code, "not sound at version 4" in found.words, "it was rewritten" in found.words) == (1, True, True)


def test_doctor_names_chats_that_only_checkpoints_know(terminal: Terminal, chat_id: str) -> None:
    """With all rows of a chat deleted by SQL, the store itself has no trace of it."""
    assert terminal.run("doctor", *COMPARED).code == 0
    with closing(sqlite3.connect(terminal.folder / "turnwise.db")) as on, on:
        on.execute("PRAGMA foreign_keys = off")
        ((number,),) = on.execute("SELECT number FROM chats WHERE id = ?", (chat_id,))
        for (table,) in on.execute("SELECT name FROM sqlite_master WHERE sql LIKE '% chat  %' AND type = 'table'"):
            on.execute(f"DELETE FROM {table} WHERE chat = ?", (number,))  # noqa: S608 - a name
        on.execute("DELETE FROM chats WHERE id = ?", (chat_id,))
    assert terminal.run("doctor").code == 0
    found = terminal.run("doctor", *COMPARED)
    assert (found.code, chat_id in found.words, "knows no such chat" in found.words) == (1, True, True), found


def test_export_verifies_with_the_public_key(terminal: Terminal, chat_id: str) -> None:
    signed = terminal.run("audit", chat_id, "--export", "log.jsonl", "--signing-key", "audit.pem")
    assert "log.jsonl, signed" in signed.out
    assert terminal.run("verify", "log.jsonl", "--public-key", "audit.pem.pub").code == 0
    assert terminal.run("keygen", "other.pem").code == 0
    refused = terminal.run("verify", "log.jsonl", "--public-key", "other.pem.pub")
    assert (refused.code, "Ed25519 signature was not made" in refused.words) == (1, True), refused


MISUSES = {
    "verify last --checkpoints checkpoints.jsonl": "needs --public-key",
    "doctor --checkpoints checkpoints.jsonl": "needs --public-key",
    "doctor --repair last --checkpoints checkpoints.jsonl": "--checkpoints: is for a look at every chat",
    "verify last --public-key audit.pem.pub": "a store is not signed",
    "verify last --key audit.pem": "a key is for an exported log",
    "verify last --checkpoints none --public-key audit.pem.pub": "No such file",
    "verify last --checkpoints checkpoints.jsonl --public-key audit.pem": "a private key",
    "worker x:agents --checkpoints x": "name the key, with --signing-key FILE",
    "serve x:agents --signing-key audit.pem": "say where they go, with --checkpoints PLACE",
    "serve x:agents --checkpoints ftp://x --signing-key audit.pem": "--checkpoints: must be an",
    f"worker {ENGINE} --checkpoints x --signing-key audit.pem": "is an engine, which has its own",
    "audit last --key none": "--key: signs a log that is exported",
    "audit last --export x --signing-key none": "No such file",
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
