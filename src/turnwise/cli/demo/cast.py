"""The model, tools, folders, processes and presenter of the demo."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import anyio
import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from turnwise.cli.style import MAX_WIDTH, plain_table, quiet_logs
from turnwise.cli.target import file_tools
from turnwise.cli.worker import run_until_stopped
from turnwise.engine.config.settings import CompactionPolicy, Settings
from turnwise.engine.engine import Engine
from turnwise.engine.tools.context import ToolContext
from turnwise.engine.tools.declare import Tool, tool
from turnwise.providers.demo import DemoModel
from turnwise.providers.protocol import ModelPart, ModelRequest
from turnwise.states.errors import TurnwiseError

CONTEXT_LIMIT: Final = 4096
"""Tokens: small, so that the chat outgrows it in the demo."""
MOST_READ: Final = 4500
"""Characters of a file that the model gets: one file fits below the threshold, three do not."""
PACKAGE: Final = Path(__file__).resolve().parents[2]
"""The folder that the demo reads: turnwise's own."""
FILES: Final = ("engine/engine.py", "states/facts.py", "states/triggers.py")
"""Files in it that fill the context."""
LEASE: Final = 2.0
"""Seconds: short, so the chat of a dead worker waits only a moment."""


class Speaker(DemoModel):
    """The model of the demo, which can stop in the middle of an answer on a machine of any speed."""

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
    """The folder that a demo writes."""

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
        """The file that `take_note` writes."""
        return self.out / "notes.txt"

    def model(self, pace: float) -> Speaker:
        """Return the model, which speaks a word every `pace` seconds."""
        return Speaker(context_limit=CONTEXT_LIMIT, pace=pace)

    def engine(self, model: Speaker, *, run_worker: bool = True) -> Engine:
        """Return an engine of the demo; every process of it has the same."""
        return Engine(
            self.store,
            model=model,
            tools=[*file_tools(PACKAGE, max_characters=MOST_READ), note_tool(self.notes)],
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


class DemoFailed(TurnwiseError):
    """A promise of turnwise did not hold in the demo."""

    def __init__(self, promise: str, seen: str) -> None:
        super().__init__(f"the demo failed: promised was that {promise}, but {seen}")


class Presenter:
    """Prints the acts of the demo and collects its promises."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._promises: list[tuple[str, str]] = []
        self._acts = 0

    def act(self, title: str, caption: str) -> None:
        """Print the head of an act."""
        self._acts += 1
        self._console.print()
        heading = Text(f"{self._acts}  {title}", style="bold")
        self._console.print(Rule(heading, align="left", style="dim"), width=self._width)
        self.say(caption)

    def say(self, words: str) -> None:
        """Print a paragraph."""
        self._console.print(Text(words, style="dim"), width=self._width)

    def note(self, mark: str, words: str, style: str = "") -> None:
        """Print an action, or an answer of the chat."""
        self.show(Text(f"{mark} {words}", style=style))

    def show(self, content: Table | Text) -> None:
        """Show a table or a line."""
        self._console.print(Padding(content, (0, 0, 0, 2), expand=False), width=self._width)

    def promise(self, promise: str, seen: str, *, holds: bool) -> None:
        """Print a promise that holds."""
        if not holds:
            raise DemoFailed(promise, seen)
        self._promises.append((promise, seen))
        self.note("✔", seen, "green")

    def books(self) -> Table:
        """Return the promises as a table."""
        table = plain_table("", "promised", "seen")
        for promise, seen in self._promises:
            table.add_row(Text("✔", style="green"), promise, Text(seen, style="dim"))
        return table

    @property
    def _width(self) -> int:
        return min(self._console.width, MAX_WIDTH)


def command(scene: Scene, *, pace: float, ends: bool) -> list[str]:
    """Return the command line of a worker; unless its model `ends` its answers, only a signal ends the process."""
    return [sys.executable, "-m", __name__, str(scene.out), str(pace), "ends" if ends else "stays"]


def main(out: str, pace: str, ends: str) -> None:
    """Run a worker until SIGTERM, or until the process that started it is gone."""
    quiet_logs()
    threading.Thread(target=_follow_the_parent, daemon=True).start()
    scene = Scene(Path(out))
    model = scene.model(float(pace))
    model.ends = ends == "ends"
    anyio.run(run_until_stopped, scene.engine(model))


def _follow_the_parent() -> None:
    """Stop when the parent ends: the pipe is closed then, even if the parent was killed."""
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(*sys.argv[1:])
