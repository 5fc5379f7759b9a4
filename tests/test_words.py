"""One word per thing: no name of the library says what the page of words says that a thing is not called."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = (ROOT / "docs" / "words.md").read_text(encoding="utf-8")
PACKAGE: Final = ROOT / "src" / "turnwise"
PARTS_OF_NAMES: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

Synonyms = Mapping[str, str]
"""What a thing is not called, and what it is called."""


HEAD: Final = ["| word | means | not |", "| --- | --- | --- |"]


def tables(page: str) -> Iterator[list[str]]:
    """Yield the tables of the page, each as its lines: whatever begins with a bar, up to a line that does not."""
    for is_table, lines in groupby(page.splitlines(), lambda line: line.startswith("|")):
        if is_table:
            yield [*lines]


def entries(page: str) -> Iterator[tuple[str, str]]:
    """Yield each word of the page and what stands in its last column."""
    for table in tables(page):
        for row in table[len(HEAD) :]:
            word, _, banned = (cell.strip() for cell in row.strip().strip("|").split("|"))
            yield word, banned


def synonyms_of(page: str) -> Synonyms:
    """Return the words in code type of the last column, each with the words that stand for it."""
    found: dict[str, list[str]] = {}
    for word, banned in entries(page):
        for synonym in re.findall(r"`(\w+)`", banned):
            found.setdefault(synonym, []).append(word)
    return {synonym: " or ".join(words) for synonym, words in found.items()}


def names_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield every name that a module gives, with its line: of functions, classes, arguments, attributes, variables."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield node.lineno, name
            case _:
                pass


def offences(source: str, file: str, synonyms: Synonyms) -> list[str]:
    """Return what is called by a wrong word in a module: where, and what the right word is."""
    parts = Path(file).with_suffix("").parts
    names = [*((1, part) for part in parts), *names_in(source)]
    return [
        f"{file}:{line}: {name!r} says {word!r}; the word is {synonyms[synonym]!r} (docs/words.md)"
        for line, name in names
        if not (name.startswith("__") and name.endswith("__"))  # Python's own
        for word in (part.lower() for part in PARTS_OF_NAMES.findall(name))
        for synonym in {word, word.removesuffix("s")}
        if synonym in synonyms
    ]


def modules() -> Iterator[Path]:
    """Yield the modules of the library, by the folders that it links to."""
    folders = (link.resolve() for link in PACKAGE.iterdir() if link.is_symlink())
    yield from sorted(file for folder in folders for file in folder.rglob("*.py"))
    yield from sorted(PACKAGE.glob("*.py"))


def test_no_name_of_the_library_is_a_synonym() -> None:
    synonyms = synonyms_of(PAGE)
    wrong = [
        offence
        for file in modules()
        for offence in offences(file.read_text(encoding="utf-8"), str(file.relative_to(ROOT)), synonyms)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def open_conversation(): ...", "open_conversation"),
        ("class ConversationState: ...", "ConversationState"),
        ("async def f(*, conversations): ...", "conversations"),
        ("class A:\n    def __init__(self):\n        self._conversation = 1", "_conversation"),
        ("class A:\n    conversation: int", "conversation"),
        ("for old_conversation in []: ...", "old_conversation"),
        ("import json as conversation", "conversation"),
        ("MOST_CONVERSATIONS = 1", "MOST_CONVERSATIONS"),
    ],
)
def test_a_planted_synonym_is_named_with_its_place_and_the_right_word(source: str, name: str) -> None:
    (offence,) = offences(source, "engine/planted.py", synonyms_of(PAGE))
    assert re.match(r"engine/planted\.py:\d+: ", offence)
    assert repr(name) in offence
    assert "the word is 'chat'" in offence


def test_a_module_is_not_named_by_a_synonym() -> None:
    (offence,) = offences("", "engine/hub.py", synonyms_of(PAGE))
    assert offence == "engine/hub.py:1: 'hub' says 'hub'; the word is 'broadcaster' (docs/words.md)"


def test_a_word_that_only_holds_the_letters_of_a_synonym_is_none() -> None:
    assert offences("household, scripted, effective = 1, 2, 3", "engine/sound.py", synonyms_of(PAGE)) == []


PARTICIPLES = {"found", "known", "shown"}
"""Names of variables that hide what the value is."""


def participles(source: str) -> list[str]:
    """Return the variables of functions that are called by a participle: with the line."""
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    names = [node for one in functions for node in ast.walk(one) if isinstance(node, ast.Name)]
    return [f"{one.lineno}: {one.id}" for one in names if isinstance(one.ctx, ast.Store) and one.id in PARTICIPLES]


def test_variables_are_nouns() -> None:
    wrong = [f"{file}:{one}" for file in modules() for one in participles(file.read_text(encoding="utf-8"))]
    assert not wrong, "\n".join(wrong)
    assert participles("def rows():\n    found = [known for known in ()]") == ["2: found", "2: known"]


def test_a_word_is_on_the_page_once_and_nowhere_a_synonym() -> None:
    words = [word for word, _ in entries(PAGE)]
    assert [word for word, count in Counter(words).items() if count > 1] == []
    assert not set(words) & set(synonyms_of(PAGE))


def test_every_row_stands_under_the_head_of_a_table() -> None:
    """After an empty line rows are no table any more, but text with bars."""
    assert [table[: len(HEAD)] for table in tables(PAGE) if table[: len(HEAD)] != HEAD] == []


def test_the_page_bans_something_and_only_single_words() -> None:
    """An empty or misread column would let everything pass."""
    banned = re.findall(r"`([^`]+)`", " ".join(column for _, column in entries(PAGE)))
    assert len(banned) > 40
    assert all(re.fullmatch(r"[a-z]+", word) for word in banned), banned
