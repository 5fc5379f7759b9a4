"""The turn that every contestant runs, and what a contestant is.

A user writes, the model asks for one tool with arguments of 200 bytes, the tool answers 1 KB at once, the model streams
20 deltas of 25 characters. Models and tools take no time: what is measured is what a library adds.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import ClassVar, Final

USER: Final = "Please look up order 4711 and tell me in a few sentences what its current state is."
TOOL_NAME: Final = "lookup"
TOOL_ARGUMENTS: Final = json.dumps({"query": "order 4711 " + "q" * 150, "limit": 10, "lang": "en"})
TOOL_RESULT: Final = "r" * 1000
DELTA: Final = "twenty-five characters..."
DELTAS: Final = 20

CALLS: Final[Counter[str]] = Counter()
"""How often the fake model and the tool really ran in this process: a turn is two of the one and one of the other."""


async def run_tool() -> str:
    """Be the tool: every contestant's own wrapper calls this."""
    CALLS["tool"] += 1
    return TOOL_RESULT


class Contestant(ABC):
    """A library under test, in a process and an empty directory of its own."""

    title: ClassVar[str]
    keeps: ClassVar[str]
    """What of a turn survives a crash."""
    distributions: ClassVar[tuple[str, ...]]
    """Whose versions are reported."""
    imports: ClassVar[str]
    """The statement that a program using the library starts with."""
    metrics: ClassVar[str] = "ABCDE"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.deltas = DELTAS

    @abstractmethod
    async def open(self) -> None:
        """Start the library on the directory."""

    @abstractmethod
    async def close(self) -> None:
        """Stop it."""

    @abstractmethod
    async def turn(self, chat: str) -> int:
        """Run a turn of that chat, a new one if the name is new; return how many characters were streamed."""

    @abstractmethod
    async def model_alone(self) -> None:
        """Iterate the fake model's answer of `deltas` deltas, without the library."""
