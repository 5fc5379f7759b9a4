"""Files and commands of a tutorial, as a reader creates and types them."""

import re
from pathlib import Path
from typing import Final

_TUTORIALS: Final = Path(__file__).parents[2] / "docs" / "tutorials"
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED: Final = re.compile(r"(?:#|//|<!--) (\S+\.\w+)(?: -->)?\n")


def text_of(name: str) -> str:
    """Return a tutorial as its reader sees it."""
    return (_TUTORIALS / f"{name}.md").read_text(encoding="utf-8")


def write_files(name: str, folder: Path) -> list[str]:
    """Write every block of a tutorial that begins with a file's name; return the names."""
    written = []
    for _, block in _BLOCK.findall(text_of(name)):
        found = _NAMED.match(block)
        if found is not None:
            (folder / found[1]).write_text(block)
            written.append(found[1])
    return written


def commands(name: str) -> list[tuple[str, str]]:
    """Return the commands of a tutorial in order, each with the output that the page shows below it."""
    consoles = [block for language, block in _BLOCK.findall(text_of(name)) if language == "console"]
    typed = [piece.partition("\n") for block in consoles for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(command, output) for command, _, output in typed]
