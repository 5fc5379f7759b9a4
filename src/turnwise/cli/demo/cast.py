"""Who plays in the demo: the model, the tools, the folder that is read, the files and the processes."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path
from typing import Final

import anyio
import msgspec

from turnwise.cli.style import quiet_logs
from turnwise.cli.target import file_tools
from turnwise.cli.worker import run_until_stopped
from turnwise.engine.config.settings import CompactionPolicy, Settings
from turnwise.engine.engine import Engine
from turnwise.engine.tools.context import ToolContext
from turnwise.engine.tools.declare import Tool, tool
from turnwise.providers.demo import DemoModel
from turnwise.providers.protocol import ModelPart, ModelRequest

CONTEXT_LIMIT: Final = 4096
"""Tokens: small, so that the chat outgrows it in the demo."""
MOST_READ: Final = 4500
"""Characters of a file that the model gets: one file fits below the threshold, three do not."""
FILES_READ: Final = 3
NAMEABLE: Final = re.compile(r"[\w./-]+")
"""Paths that the demo model finds in a message."""
SUFFIXES: Final = (".md", ".toml", ".py", ".rst", ".txt", ".json")
PACKAGE: Final = Path(__file__).resolve().parents[2]
LEASE: Final = 2.0
"""Seconds: short, so the chat of a dead worker waits only a moment."""


class Speaker(DemoModel):
    """The model of the demo, which can be cut off in the middle of an answer on any machine, however slow."""

    ends: bool = True
    """Whether an answer that asks for no tool ever ends."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Yield the answer word by word, and its end if it has one."""
        asks = False
        async for part in super().stream(request):
            asks = asks or part.type == "tool_call"
            if part.type == "finish" and not (self.ends or asks) and request.purpose == "step":
                await anyio.sleep_forever()
            yield part


class Scene(msgspec.Struct, frozen=True):
    """Where a demo plays: the folder it reads, the folder it writes."""

    root: Path
    out: Path

    @property
    def database(self) -> Path:
        """The SQLite file with the chats."""
        return self.out / "chats.db"

    @property
    def store(self) -> str:
        """The URL of the database."""
        return f"sqlite:///{self.database}"

    @property
    def notes(self) -> Path:
        """What `take_note` writes: the trace of a tool in the world."""
        return self.out / "notes.txt"

    def model(self, pace: float) -> Speaker:
        """Return the model, which speaks a word every `pace` seconds."""
        return Speaker(context_limit=CONTEXT_LIMIT, pace=pace)

    def engine(self, model: Speaker, *, run_worker: bool = True) -> Engine:
        """Return an engine of the demo; every process of it has the same."""
        return Engine(
            self.store,
            model=model,
            tools=[*file_tools(self.root, max_characters=MOST_READ), note_tool(self.notes)],
            settings=Settings(
                run_worker=run_worker,
                lease=LEASE,
                renew_every=LEASE / 4,
                poll_interval=LEASE / 10,
                compaction=CompactionPolicy(model=self.model(pace=0)),
            ),
        )


def note_tool(notes: Path) -> Tool:
    """Return a tool with an effect that can be counted: one line in a file for every run."""

    @tool
    def take_note(text: str, context: ToolContext) -> str:
        """Write a note down."""
        with notes.open("a", encoding="utf-8") as file:
            file.write(f"{context.idempotency_key} {text}\n")
        return f"Noted: {text}"

    return take_note


def folder_to_read(here: Path) -> Path:
    """Return `here` if it holds enough text to read, else the source of turnwise's engine."""
    return here if len(readable(here)) == FILES_READ else PACKAGE


def readable(root: Path) -> list[str]:
    """Return the paths of `FILES_READ` files, README and its like first, each long enough to fill the context."""
    files = [*root.glob("*"), *islice(root.glob("*/*"), 500)]
    long = [path for path in files if _is_long_text(path, root)]
    long.sort(key=lambda path: (len(path.relative_to(root).parts), SUFFIXES.index(path.suffix), path))
    return [path.relative_to(root).as_posix() for path in long[:FILES_READ]]


def _is_long_text(path: Path, root: Path) -> bool:
    named = path.relative_to(root)
    if path.suffix not in SUFFIXES or any(part.startswith(".") for part in named.parts):
        return False
    if NAMEABLE.fullmatch(named.as_posix()) is None or not path.resolve().is_relative_to(root.resolve()):
        return False
    try:
        with path.open(encoding="utf-8") as file:
            return len(file.read(MOST_READ)) == MOST_READ
    except (OSError, UnicodeDecodeError):
        return False


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
