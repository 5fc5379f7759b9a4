"""`turnwise demo` keeps its word, from any folder."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from support.look import screen_of
from support.terminal import Finished, Terminal
from turnwise import CompactionPolicy, Engine, Settings
from turnwise.cli.chat import ASK_USER
from turnwise.cli.demo import acts, command, kill
from turnwise.cli.demo.acts import Play, added, asks_the_client, is_interrupted, reads_real_files, succeeded
from turnwise.cli.demo.cast import PACKAGE, Scene, Speaker, folder_to_read, readable
from turnwise.cli.demo.command import _forged, _is_audited
from turnwise.cli.demo.kill import _process, _speaks_after_tools, outlives_its_process
from turnwise.cli.demo.stage import DemoFailed, Stage
from turnwise.cli.event_view import EventView
from turnwise.cli.scroll import Scroll
from turnwise.cli.style import plain_table
from turnwise.states.events import Event, PartDelta, PartEvent, ToolResultEvent
from turnwise.states.names import CallStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_every_promise_is_seen_to_be_kept(played: Finished) -> None:
    assert played.code == 0, played.out + played.err
    assert played.err == ""
    words = played.words
    _, _, summary = words.rpartition("promised seen")
    assert summary.count("✔") == 9
    for seen in (
        "the second post was a replay",
        "exactly these are kept",
        "compacted once",
        "was killed",
        "take_note ran once: 1 line in notes.txt",
        "not sound at version",
    ):
        assert seen in words


def test_it_reads_the_folder_it_is_started_in(played: Finished, demo: Terminal) -> None:
    assert str(demo.folder) in played.out
    assert sorted(path.name for path in demo.folder.iterdir()) == ["demo-out", "first.md", "second.md", "third.md"]


def test_it_leaves_a_log_that_verifies_and_a_drawing_with_the_state_lit(played: Finished, demo: Terminal) -> None:
    assert played.code == 0
    out = demo.folder / "demo-out"
    drawing = (out / "machine.svg").read_text()
    assert 'class="state current" data-state="waiting"' in drawing
    assert demo.run("verify", "demo-out/audit.jsonl").code == 0
    chat = json.loads(demo.run("show", "last", "--json").out)["chat"]
    assert chat["title"] == "The demo: one whole life"


def test_the_interrupt_says_why(played: Finished, demo: Terminal) -> None:
    assert played.code == 0
    records = json.loads(demo.run("audit", "last", "--json").out)
    assert [record["reason"] for record in records if record["trigger"] == "interrupt"] == [
        "the reader has seen enough"
    ]


def test_the_killed_turn_ran_in_two_processes(played: Finished, demo: Terminal) -> None:
    assert played.code == 0
    records = json.loads(demo.run("audit", "last", "--json").out)
    workers = [record["actor"] for record in records if record["turn"] == 5 and record["trigger"] == "claimed"]
    assert len(workers) == len(set(workers)) == 2
    assert "lease_expired" in {record["trigger"] for record in records}


def test_a_broken_promise_ends_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    """A check that cannot fail is no check."""
    stage = Stage(Console(width=80))
    stage.promise("water is wet", "it was", kept=True)
    with pytest.raises(DemoFailed, match="promised was that fire is cold, but it burnt"):
        stage.promise("fire is cold", "it burnt", kept=False)
    assert "it was" in capsys.readouterr().out


def write(folder: Path, *names: str, text: str = "a" * 4500) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_a_folder_with_enough_text_is_read_itself(tmp_path: Path) -> None:
    write(tmp_path, "page0.md", "page1.md", "page2.md")
    assert folder_to_read(tmp_path) == tmp_path


def test_a_folder_without_enough_text_is_not_read_but_turnwise_is(tmp_path: Path) -> None:
    write(tmp_path, "page0.md", "page1.md")
    assert folder_to_read(tmp_path) == PACKAGE
    assert {"engine", "states", "cli"} <= {path.name for path in PACKAGE.iterdir()}


def test_what_introduces_a_folder_is_read_first(tmp_path: Path) -> None:
    write(tmp_path, "below/a.md", "c.txt", "b.toml", "z.md")
    assert readable(tmp_path) == ["z.md", "b.toml", "c.txt"]


def test_hidden_short_and_binary_files_and_what_lies_outside_are_not_chosen(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write(folder, ".env.md", ".hidden/page.md", "not text.md", "code.c", "kept.txt", "below/deeper/page.md")
    write(folder, "short.md", text="a" * 4499)
    write(tmp_path, "outside.md")
    (folder / "link.md").symlink_to(tmp_path / "outside.md")
    (folder / "picture.md").write_bytes(b"\xff" * 4500)
    (folder / "folder.md").mkdir()
    assert readable(folder) == ["kept.txt"]


async def test_every_process_of_the_demo_has_the_same_engine(tmp_path: Path) -> None:
    write(tmp_path, "long.md", text="a" * 4501)
    scene = Scene(tmp_path, tmp_path)
    model = scene.model(0.5)
    assert (model.context_limit, model.pace) == (4096, 0.5)
    for watches in (True, False):
        engine = scene.engine(model, run_worker=not watches)
        assert isinstance(engine.settings.compaction.model, Speaker)
        assert engine.settings.compaction.model.pace == 0
        settings = dataclasses.replace(engine.settings, compaction=CompactionPolicy())
        assert settings == Settings(run_worker=not watches, lease=2, renew_every=0.5, poll_interval=0.2)
    async with scene.engine(scene.model(0)) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "read_file long.md, then take_note “this”.")
        outputs = [message.result.output for message in await engine.messages(chat.id) if message.result]
    assert outputs == ["a" * 4500 + "\n[cut: the file goes on]", "Noted: this"]
    assert scene.notes.read_text().endswith(" this\n")


@pytest.mark.parametrize(("terminal", "words", "pace"), [(True, (), 0.03), (True, ("--fast",), 0), (False, (), 0)])
def test_it_takes_its_time_for_people_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], pace: float, *, terminal: bool
) -> None:
    played: list[tuple[Scene, float]] = []

    async def play(scene: Scene, seconds: float) -> None:
        played.append((scene, seconds))

    monkeypatch.setattr(command, "_play", play)
    monkeypatch.setattr(command.console, "_force_terminal", terminal)
    done = Terminal(tmp_path).run("demo", "--out", "there/below", *words)
    assert done.code == 0
    assert played == [(Scene(PACKAGE, Path("there/below")), pace)]
    assert (tmp_path / "there" / "below").is_dir()


def test_a_demo_that_hangs_is_ended(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "AT_MOST", 0)
    done = terminal.run("demo", "--fast")
    assert done.code == 1
    assert "promised was that every turn comes to rest, but this one did not within 0 seconds." in done.words


def test_a_forged_log_differs_in_its_middle() -> None:
    log = "\n".join(["header", *(json.dumps({"actor": "jane", "n": number}) for number in range(5))])
    before, after = log.splitlines(), _forged(log).splitlines()
    assert [number for number, line in enumerate(before) if line != after[number]] == [3]
    assert json.loads(after[3])["actor"] == "nobody"


# The acts


@asynccontextmanager
async def play_on(folder: Path) -> AsyncIterator[tuple[Play, Speaker]]:
    """Set the stage in a folder, for the acts one by one."""
    write(folder, "one.md", "two.md", "three.md", text="many words " * 500)
    scene = Scene(folder, folder)
    model = scene.model(0)
    async with scene.engine(model) as engine:
        chat = await engine.create_chat(client_tools=[ASK_USER])
        yield Play(scene, Stage(screen_of()), EventView(Scroll(screen_of())), engine, chat.id), model


async def test_whom_one_interrupts_speaks_slowly_until_then(tmp_path: Path) -> None:
    async with play_on(tmp_path) as (play, model):
        paces: set[float] = set()
        show = play.view.show

        def noted(event: Event) -> None:
            paces.add(model.pace)
            show(event)

        play.view.show = noted  # type: ignore[method-assign]
        await is_interrupted(play, model)
        assert paces == {0.06}
        assert (model.pace, model.ends) == (0, True)


async def test_an_interrupt_and_a_kill_never_come_too_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that stands still for seconds whole answers are spoken before anybody has seen their first word."""
    monkeypatch.setattr(acts, "UNHURRIED", 0)
    monkeypatch.setattr(kill, "SLOW", 0)
    async with play_on(tmp_path) as (play, model):
        await is_interrupted(play, model)
    scene = Scene(tmp_path, tmp_path)
    async with scene.engine(model, run_worker=False) as engine:
        chat = await engine.create_chat()
        watching = Play(scene, Stage(screen_of()), EventView(Scroll(screen_of())), engine, chat.id)
        await outlives_its_process(watching, 0)


class Liar:
    """An engine that says something else than what is so."""

    def __init__(self, engine: Engine, method: str, lie: Callable[[Any], Any]) -> None:
        self._engine, self._method, self._lie = engine, method, lie

    def __getattr__(self, name: str) -> Any:
        told = getattr(self._engine, name)
        if name != self._method:
            return told

        async def lied(*args: Any, **kwargs: Any) -> Any:
            return self._lie(await told(*args, **kwargs))

        return lied


LIES: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "the model read something else": (
        reads_real_files,
        "messages",
        lambda messages: [
            replace(one, parts=[replace(one.parts[0], output="?")]) if one.result else one for one in messages
        ],
    ),
    "a worker waits, too": (asks_the_client, "explain", lambda told: dataclasses.replace(told, lease_worker="w")),
    "the answer counts twice": (
        asks_the_client,
        "submit_tool_results",
        lambda receipt: dataclasses.replace(receipt, replayed=False),
    ),
    "there are two receipts": (
        asks_the_client,
        "submit_tool_results",
        lambda receipt: dataclasses.replace(receipt, receipt_id=str(receipt.replayed)),
    ),
    "the store is not sound": (_is_audited, "verify", lambda verdict: dataclasses.replace(verdict, ok=False)),
    "the export is not sound": (_is_audited, "export_audit", _forged),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_promise_that_is_not_kept_is_noticed(tmp_path: Path, lie: str) -> None:
    act, method, told = LIES[lie]
    async with play_on(tmp_path) as (play, _):
        play.engine = Liar(play.engine, method, told)  # type: ignore[assignment]
        with pytest.raises(DemoFailed):
            await act(play)


async def test_a_process_ends_with_the_block_that_started_it(tmp_path: Path) -> None:
    async with play_on(tmp_path) as (play, _):
        for ends in (True, False):
            with anyio.fail_after(60):
                async with _process(play, 0, ends=True) as process:
                    assert (process.stdout, process.stderr) == (None, None)
                    if ends:
                        process.kill()
                        await process.wait()
            assert process.returncode == -9


async def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    """Killed, that one cannot stop it: but its end of the pipe is closed."""
    async with play_on(tmp_path) as (play, _), _process(play, 0, ends=True) as process:
        assert process.stdin is not None
        await process.stdin.aclose()
        with anyio.fail_after(60):
            assert await process.wait() in (0, -15)


def part(kind: str, delta: str | None) -> PartEvent:
    return PartEvent(
        chat_id="c",
        seq=1,
        at=NOW,
        step=1,
        attempt=1,
        index=0,
        part=PartDelta(type=kind, delta=delta),  # type: ignore[arg-type]
    )


def result(name: str, outcome: CallStatus = CallStatus.succeeded) -> ToolResultEvent:
    return ToolResultEvent(
        chat_id="c", seq=1, at=NOW, step=1, call_id="c1", index=0, name=name, output="", is_error=False, outcome=outcome
    )


def test_only_success_of_the_tool_itself_counts() -> None:
    events = [result("note"), result("other"), result("note", CallStatus.failed), part("text", "note"), result("note")]
    assert succeeded(list(events), "note") == 2


def test_what_an_event_adds_is_told_by_the_kind_of_part() -> None:
    assert [added(part("text", delta), "text") for delta in ("so", None, "")] == ["so", "", ""]
    assert [added(part(kind, "so"), "text") for kind in ("reasoning", "tool_call")] == ["", ""]
    assert added(part("reasoning", "so"), "text", "reasoning") == "so"
    assert added(result("note"), "text") == ""


def test_a_process_is_killed_four_words_after_its_tool_has_run() -> None:
    seen = _speaks_after_tools()
    told = [part("text", "one two three four five"), result("note"), part("text", "one two "), part("tool_call", "x y")]
    assert [
        seen(event) for event in [*told, part("reasoning", "three"), part("text", None), part("text", " four")]
    ] == [
        *([False] * 6),
        True,
    ]


# The stage


@pytest.mark.parametrize(("width", "widest"), [(150, 100), (60, 60)])
def test_the_stage_is_no_wider_than_can_be_read(width: int, widest: int) -> None:
    screen = screen_of(width)
    stage = Stage(screen)
    long = "word " * 60
    stage.act("An act", long)
    stage.note("·", long)
    table = plain_table("one")
    table.add_row(long)
    stage.show(table)
    assert isinstance(screen.file, io.StringIO)
    printed = [Text.from_ansi(line).plain.rstrip() for line in screen.file.getvalue().splitlines()]
    lines = "\n".join(printed).split("\n")
    assert all(len(line) <= widest for line in lines)
    assert {widest, widest - 1, widest - 2} & set(map(len, lines))
    assert len(lines[1]) == widest
