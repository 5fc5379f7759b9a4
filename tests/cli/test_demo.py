"""`turnwise demo` works from any folder."""

import json
import signal
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from cli.look import colours
from support.terminal import Finished, Keyboard, Terminal
from turnwise.cli.demo import command
from turnwise.cli.demo.cast import FILES, MOST_READ, PACKAGE, DemoFailed, Presenter


def play(folder: Path) -> tuple[Terminal, Finished]:
    """Play the demo in a folder; return its output with colours."""
    (folder / "demo-out").mkdir()
    (folder / "demo-out" / "notes.txt").write_text("a note of an earlier demo\n")
    terminal = Terminal(folder, store="sqlite:///demo-out/chats.db")
    with colours():
        return terminal, terminal.run("demo", "--fast")


def test_demo_keeps_every_promise(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It leaves a chat, a verified log and a drawing."""
    demo, screen = play(tmp_path)
    out = "".join(f"{Text.from_ansi(line).plain}\n" for line in screen.out.splitlines())
    assert (screen.code, screen.err, capfd.readouterr().err) == (0, "", ""), out
    words = " ".join(out.split())
    _, _, summary = words.rpartition("promised seen")
    assert summary.count("✔") == 9
    for seen in (
        "the second post was a replay",
        "the chat keeps exactly these",
        "compacted once",
        "was killed",
        "take_note ran once: 1 line in notes.txt",
        "not sound at version",
    ):
        assert seen in words
    assert str(PACKAGE) in words
    assert sorted(path.name for path in demo.folder.iterdir()) == ["demo-out"]
    drawing = (demo.folder / "demo-out" / "machine.svg").read_text()
    assert 'class="state current" data-state="waiting"' in drawing
    assert demo.run("verify", "demo-out/audit.jsonl").code == 0
    records = json.loads(demo.run("audit", "last", "--json").out)
    reasons = [record["reason"] for record in records if record["trigger"] == "interrupt"]
    assert reasons == ["the reader has seen enough"]
    workers = [record["actor"] for record in records if record["turn"] == 5 and record["trigger"] == "claimed"]
    assert len(workers) == len(set(workers)) == 2, "a killed turn went on in another process"
    assert "lease_expired" in {record["trigger"] for record in records}
    shown = demo.run("show", "last").out
    for seen in (
        "» Ask the user “What should a chat survive?”",
        "■ stopped here",
        "── Earlier messages were summarised",
        "turn 5",
    ):
        assert seen in shown
    user, model = (json.loads(demo.run("show", "last", "--view", view, "--json").out) for view in ("user", "model"))
    assert user["chat"]["title"] == "The demo: one whole life"
    assert len(model["messages"]) < len(user["messages"])
    assert model["messages"][0]["synthetic"]


def test_broken_promise_ends_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    """A check that cannot fail is no check."""
    stage = Presenter(Console(width=80))
    stage.promise("water is wet", "it was", holds=True)
    with pytest.raises(DemoFailed, match="promised was that fire is cold, but it burnt"):
        stage.promise("fire is cold", "it burnt", holds=False)
    assert "it was" in capsys.readouterr().out


def test_each_file_of_the_demo_fills_its_share_of_the_context() -> None:
    assert all(len((PACKAGE / name).read_text(encoding="utf-8")) >= MOST_READ for name in FILES)


def test_hanging_demo_is_ended(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "AT_MOST", 0)
    done = terminal.run("demo", "--fast")
    assert done.code == 1
    assert "promised was that every turn comes to rest, but this one did not within 0 seconds." in done.words


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_shows_the_cursor_again(terminal: Terminal, number: signal.Signals) -> None:
    """The line under way hides it; a shell would not show it again."""
    with Keyboard(terminal, ("demo",)) as keyboard:
        keyboard.see("\x1b[?25l")
        keyboard.process.send_signal(number)
        keyboard.see("\x1b[?25h")
        assert keyboard.process.wait() == 128 + number
