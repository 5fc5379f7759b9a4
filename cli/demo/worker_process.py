"""A process of its own that runs the demo's chats: the one that is killed, and the one that takes over."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from turnwise.cli.demo.cast import Scene
from turnwise.cli.style import quiet_logs
from turnwise.cli.worker import run_until_stopped


def command(scene: Scene, *, pace: float) -> list[str]:
    """Return the command line of such a process."""
    return [sys.executable, "-m", __name__, str(scene.root), str(scene.out), str(pace)]


def main(root: str, out: str, pace: str) -> None:
    """Run a worker until SIGTERM."""
    quiet_logs()
    scene = Scene(Path(root), Path(out))
    anyio.run(run_until_stopped, scene.engine(scene.model(float(pace))))


if __name__ == "__main__":
    main(*sys.argv[1:])
