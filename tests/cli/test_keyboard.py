"""A prompt misses no Ctrl-C."""

from __future__ import annotations

import io
import os
import signal
import sys

import pytest

from support.terminal import Keyboard, Terminal
from turnwise.cli.keyboard import typed

ASKING = """
import _thread, pathlib, sys, threading
from turnwise.cli.keyboard import typed
def press():
    pathlib.Path("pressed").read_bytes()
    _thread.interrupt_main()
threading.Thread(target=press).start()
try:
    typed("» ")
except KeyboardInterrupt:
    print("heard")
"""


def test_a_ctrl_c_on_the_way_to_waiting_for_keys_is_heard(terminal: Terminal) -> None:
    """CPython notes the signal, and then sleeps until a key or another signal comes."""
    os.mkfifo(terminal.folder / "pressed")
    with Keyboard(terminal, ("-c", ASKING), program=[sys.executable]) as keyboard:
        keyboard.see("» ")
        (terminal.folder / "pressed").write_bytes(b"")
        keyboard.see("heard")
        assert keyboard.process.wait() == 0


def test_no_alarm_goes_on_after_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever calls it may have an alarm handler of its own."""

    def own(*_: object) -> None: ...

    def entered(prompt: str) -> str:
        assert prompt == "» "
        assert signal.getitimer(signal.ITIMER_REAL)[1] == pytest.approx(0.1, abs=0.02)
        assert signal.getsignal(signal.SIGALRM) is not own
        return " hello \n"

    class Terminals(io.StringIO):
        def isatty(self) -> bool:
            return True

    before = signal.signal(signal.SIGALRM, own)
    try:
        monkeypatch.setattr("sys.stdin", Terminals())
        monkeypatch.setattr("builtins.input", entered)
        assert typed("» ") == "hello"
        assert signal.getsignal(signal.SIGALRM) is own
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_line_from_a_pipe_is_printed_and_steers_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever pipes a file in has seldom written it, and the model gets it as it is."""
    line = "hello \x1b]52;c;cHduZWQ=\x1b\\ there\u202e"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{line}\n"))
    assert typed("") == line
    assert capsys.readouterr().out == "hello \\x1b]52;c;cHduZWQ=\\x1b\\ there\\u202e\n"
