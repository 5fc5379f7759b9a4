"""A process of its own that runs the demo's chats: the one that is killed, and the one that takes over."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import anyio

from turnwise.cli.demo.cast import Scene
from turnwise.cli.style import quiet_logs
from turnwise.cli.worker import run_until_stopped


def command(scene: Scene, *, pace: float, ends: bool) -> list[str]:
    """Return the command line of such a process; unless its model `ends` its answers it can only be killed."""
    return [sys.executable, "-m", __name__, str(scene.root), str(scene.out), str(pace), "ends" if ends else "stays"]


def main(root: str, out: str, pace: str, ends: str) -> None:
    """Run a worker until SIGTERM, or until the process that started it is gone."""
    quiet_logs()
    threading.Thread(target=_follow_the_parent, daemon=True).start()
    scene = Scene(Path(root), Path(out))
    model = scene.model(float(pace))
    model.ends = ends == "ends"
    anyio.run(run_until_stopped, scene.engine(model))


def _follow_the_parent() -> None:
    """Stop when the parent ends, however it ends: its end of the pipe is closed then."""
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(*sys.argv[1:])
