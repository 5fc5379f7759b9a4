"""`turnwise audit`, `verify` and `replay`: a log as lines, as a verdict, and step by step."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from cli.look import look
from cli.terminal_chats import begun, stuck, url_of
from support.audit_records import AT, record
from support.logged_life import LOG, TEXT
from support.terminal import Keyboard, Terminal
from turnwise import Agent, Engine, Verdict, delegate
from turnwise.cli.step_view import Step, state_picture, step_lines, steps_of
from turnwise.cli.stepper import Stepper
from turnwise.cli.verify import verdict_line
from turnwise.persistence.audit.record import AuditRecord, WriteRecord
from turnwise.providers.scripted import Call, Reply, ScriptedModel


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


def test_json_records_have_verifiable_hashes(terminal: Terminal) -> None:
    chat_id = stuck(terminal, "hello")
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
    begun(terminal)
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
            (helper,) = await engine.helpers(chat.id)
            return chat.id, helper.id

    chat_id, helper = anyio.run(delegated)
    assert terminal.run("verify", chat_id, "--family").code == 0
    with closing(sqlite3.connect(terminal.folder / "turnwise.db")) as on, on:
        on.execute("DELETE FROM audit WHERE chat_id = ? AND version = 2", (helper,))
    assert terminal.run("verify", chat_id).code == 0
    assert terminal.run("verify", helper).code == 1
    assert terminal.run("verify", chat_id, "--family").code == 1


HOSTILE = "safe\u202egnp.exe\x1b]0;owned\x07\x9b2J\u2066end"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "log.jsonl"
    file.write_text(TEXT)
    return file


def renamed_chat(terminal: Terminal) -> str:
    async def live() -> str:
        async with Engine(f"sqlite:///{terminal.folder}/turnwise.db", model=ScriptedModel("ok")) as engine:
            chat = await engine.create_chat()
            await engine.ask(chat.id, "hi")
            await engine.rename(chat.id, "t", actor=f"jane {HOSTILE}")
            return chat.id

    return anyio.run(live)


def test_replay_prints_all_steps_into_a_pipe(terminal: Terminal) -> None:
    chat_id = renamed_chat(terminal)
    told = terminal.run("replay", chat_id)
    assert told.code == 0
    records = json.loads(terminal.run("audit", chat_id, "--json").out)
    for one in records:
        assert f"{one['version']}/{len(records)} {one['trigger']}" in told.out
    for words in ("waiting → pending", "by client", "writes message m1", "turn 1 · step 1", "✓ sound"):
        assert words in told.out
    assert not set(told.out) & set(HOSTILE) - set("safegnp.exe]0;owned2Jend")
    assert r"\u202e" in told.out


def test_replay_json_has_steps_and_verdict(terminal: Terminal, log: Path) -> None:
    told = json.loads(terminal.run("replay", str(log), "--json").out)
    assert told["verdict"]["ok"]
    assert [step["record"]["version"] for step in told["steps"]] == [record.version for record in LOG]
    assert told["steps"][0]["after"] is None
    assert all(step["after"] for step in told["steps"][1:])
    assert all(step["problem"] is None for step in told["steps"])
    lines = [json.dumps(step["record"], sort_keys=True, separators=(",", ":")) for step in told["steps"]]
    assert lines == TEXT.splitlines()[1:-1]


def test_replay_stops_at_the_first_bad_record(terminal: Terminal, log: Path) -> None:
    log.write_text(TEXT.replace('"trigger":"archived"', '"trigger":"unarchived"'))
    place = next(record.version for record in LOG if record.trigger == "archived")
    told = terminal.run("replay", str(log))
    assert told.code == 1
    assert f"{place}/{place} unarchived" in told.out
    assert "✗ Version" in told.out
    assert f"not sound at version {place}" in told.words
    steps = json.loads(terminal.run("replay", str(log), "--json").out)["steps"]
    assert [step["problem"] is None for step in steps] == [True] * (place - 1) + [False]


@pytest.mark.parametrize("content", ["", '{"format":"turnwise-audit/1","chat_id":"c"}\nx'])
def test_replay_of_no_log_exits_1(terminal: Terminal, log: Path, content: str) -> None:
    log.write_text(content)
    told = terminal.run("replay", str(log))
    assert (told.code, told.err) == (1, "")
    assert "not sound" in told.out


@pytest.mark.deep
def test_replay_keys(terminal: Terminal, log: Path) -> None:
    count = len(LOG)
    with Keyboard(terminal, ("replay", str(log))) as keyboard:
        assert any("▶ waiting" in line for line in keyboard.watch(f"1/{count} create"))
        for keys, words in (
            (" ", f"2/{count} send_message"),
            ("\r", f"3/{count} claimed"),
            ("\x1b[C", f"4/{count} attempt_started"),
            ("\x1b[D", f"3/{count} claimed"),
            ("\x1b[F", f"{count}/{count} "),
            ("\x1b[H", f"1/{count} create"),
        ):
            keyboard.type(keys)
            keyboard.watch(words)
        keyboard.type("q")
        keyboard.see("✓ sound")
        assert keyboard.process.wait(60) == 0


def step_of(version: int, **told: Any) -> AuditRecord:
    """Return the record of what a worker did in the third attempt of a second step."""
    writes = tuple(WriteRecord("event", f"e{number}", "") for number in range(4))
    some: dict[str, Any] = {"actor": "worker:vm:42:x", "step": 2, "attempt": 3, "writes": writes}
    some["at"] = AT + timedelta(seconds=version)
    return record(version, **some | told)


WIDE = [
    "                          [dim]  executing_tools[/]",
    "[dim]  waiting[/]      [yellow]◦ pending[/]  [cyan]▶ streaming[/]        [dim]  requires_action[/]",
    "[dim]  interrupted[/]             [dim]  compacting[/]       [dim]  error[/]",
]


def test_states_are_drawn_in_columns() -> None:
    assert look(*state_picture("streaming", "pending", width=62)) == WIDE


def test_step_prints_actor_trigger_and_writes() -> None:
    step = Step(step_of(7, source="pending", target="streaming", reason="why"), timedelta(seconds=1), "wrong")
    told = [
        "[dim]7/9 [/][bold]claimed[/]",
        "[cyan]pending → streaming[/]",
        "[dim]by [/]worker 42",
        "[dim]2026-01-02 03:04:12.067[/]  +1 s",
        "[dim]turn 1 · step 2 · attempt 3[/]",
        "[dim]because: [/]why",
        "[red]✗ wrong[/]",
    ]
    writes = [f"[dim]  writes [/]event[dim] e{number}[/]" for number in range(4)]
    for most in (None, 11, 20):
        assert look(*step_lines(step, of=9, width=80, most=most)) == [*told, *writes]
    assert look(*step_lines(step, of=9, width=80, most=10)) == [*told, *writes[:2], "[dim]  … and 2 more[/]"]
    for most in (8, 1):
        assert look(*step_lines(step, of=9, width=80, most=most)) == [*told, "[dim]  … and 4 more[/]"]


@pytest.mark.parametrize(
    ("typed", "place"),
    [
        ("q", 0),
        ("\x03", 0),
        (" q", 1),
        ("\rq", 1),
        ("\x1b[Cq", 1),
        ("\x1b[F\x1b[Dq", len(LOG) - 2),
        ("\x1b[F\x7fq", len(LOG) - 2),
        ("  \x1b[Hq", 0),
    ],
    ids=["q", "Ctrl-C", "space", "enter", "right", "end and left", "end and backspace", "home"],
)
def test_stepper_keys(typed: str, place: int) -> None:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        stepper = Stepper(steps_of(LOG, Verdict(ok=True)))
        keys.send_text(typed)
        stepper.run()
    assert stepper._place == place
