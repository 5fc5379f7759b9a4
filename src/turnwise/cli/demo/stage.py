"""The presenter: headings and captions for the reader, and the promises as they are checked."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from turnwise.cli.style import MAX_WIDTH, plain_table
from turnwise.states.errors import TurnwiseError


class DemoFailed(TurnwiseError):
    """The demo saw something else than what turnwise promises."""

    def __init__(self, promise: str, seen: str) -> None:
        super().__init__(f"the demo failed: promised was that {promise}, but {seen}")


class Presenter:
    """Tells the story and keeps the books."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._promises: list[tuple[str, str]] = []
        self._acts = 0

    def act(self, title: str, caption: str) -> None:
        """Open an act: what is about to be seen, and why it matters."""
        self._acts += 1
        self._console.print()
        heading = Text(f"{self._acts}  {title}", style="bold")
        self._console.print(Rule(heading, align="left", style="dim"), width=self._width)
        self.say(caption)

    def say(self, words: str) -> None:
        """Tell the reader something."""
        self._console.print(Text(words, style="dim"), width=self._width)

    def note(self, mark: str, words: str, style: str = "") -> None:
        """Tell what is done to the chat, or what it answered."""
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
        """Return what was promised and what was seen."""
        table = plain_table("", "promised", "seen")
        for promise, seen in self._promises:
            table.add_row(Text("✔", style="green"), promise, Text(seen, style="dim"))
        return table

    @property
    def _width(self) -> int:
        return min(self._console.width, MAX_WIDTH)
