"""A prompt misses no Ctrl-C."""

from __future__ import annotations

import os
import sys

from support.terminal import Keyboard, Terminal

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
