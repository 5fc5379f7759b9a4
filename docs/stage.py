"""Stages the pages of the site: `docs/`, and whatever they link to elsewhere in the repository, as pages, too.

A page links to the files that it speaks of by their place in the repository, so that it can be read there. A site has
no files beside its pages: text becomes a page that shows it, a picture is copied, and the link leads there.

A comment such as `<!-- generated: commands -->` becomes what the generator of that name writes.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from generate import GENERATORS

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
STAGED: Final = ROOT / "build" / "pages"
SOURCES: Final = Path("sources")
"""The folder of the site for what stands outside of `docs/`."""

PICTURES: Final = frozenset({".svg", ".png"})
LANGUAGES: Final = {
    ".py": "python",
    ".yaml": "yaml",
    ".json": "json",
    ".mjs": "javascript",
    ".mmd": "text",
    "": "docker",
}

FENCED: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
GENERATED: Final = re.compile(r"^<!-- generated: (\w+) ?(.*?) -->$", re.MULTILINE)
LINK: Final = re.compile(r"(\]\(|^\[[^\]\n]+\]: )(?!https://)([^)\s#]+)(#[^)\s]*)?(?=\)|$)", re.MULTILINE)
"""A link in a sentence, `[text](path)`, or one that is defined apart, `[text]: path`."""


def stage(target: Path = STAGED) -> None:
    """Write the pages of the site into a folder that is emptied first.

    Raises:
        FileNotFoundError: a page links to a file that is not there.
    """
    shutil.rmtree(target, ignore_errors=True)
    waiting = [file for file in DOCS.rglob("*") if file.is_file() and file.suffix not in {".py", ".pyc"}]
    seen = set(waiting)
    while waiting:
        file = waiting.pop()
        place = target / place_of(file)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.suffix == ".md":
            place.write_text(page_of(file), encoding="utf-8")
            found = set(links_of(file)) - seen
            seen |= found
            waiting += found
        else:
            shutil.copyfile(file, place)


def place_of(file: Path) -> Path:
    """Return where the site has a file of the repository."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS)
    place = SOURCES / file.relative_to(ROOT)
    return place if file.suffix in {".md", *PICTURES} else place.with_name(f"{place.name}.md")


def page_of(file: Path) -> str:
    """Return a file as a page: one of Markdown with its links rewritten, any other as it is, in a frame."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".md":
        return f"# `{file.relative_to(ROOT).as_posix()}`\n\n~~~~{LANGUAGES[file.suffix]}\n{text.rstrip()}\n~~~~\n"
    here = place_of(file).parent

    def rewritten(link: re.Match[str]) -> str:
        place = os.path.relpath(place_of((file.parent / link[2]).resolve()), here)
        return f"{link[1]}{Path(place).as_posix()}{link[3] or ''}"

    pieces = FENCED.split(text)
    page = "".join(piece if piece.startswith("```") else LINK.sub(rewritten, piece) for piece in pieces)
    return GENERATED.sub(lambda found: GENERATORS[found[1]](*found[2].split()), page)


def links_of(file: Path) -> Iterable[Path]:
    """Yield the files that a page links to."""
    if file.suffix == ".md":
        for link in LINK.finditer(FENCED.sub("", file.read_text(encoding="utf-8"))):
            yield (file.parent / link[2]).resolve()


if __name__ == "__main__":
    stage(*map(Path, sys.argv[1:]))
