"""The page of symptoms has every sentence that `explain` can say, and every kind of error, and no others."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import turnwise
from turnwise import ModelError
from turnwise.engine import explain
from turnwise.states import errors

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^### (.+)$", PAGE, re.MULTILINE)
GAP = "…"


def functions(source: str) -> dict[str, ast.FunctionDef]:
    return {one.name: one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef)}


def template(node: ast.expr) -> str:
    """Return a string of the source with a gap for whatever differs."""
    match node:
        case ast.Constant(value=str(words)):
            return words
        case ast.JoinedStr(values=values):
            return "".join(template(value) for value in values)
        case _:
            return GAP


def sentences(source: str, *begin: str) -> Iterator[str]:
    """Yield what the named functions return, and whatever functions they return the answer of."""
    known, waiting, seen = functions(source), list(begin), set(begin)
    while waiting:
        for node in ast.walk(known[waiting.pop()]):
            if not isinstance(node, ast.Return) or node.value is None:
                continue
            match node.value:
                case ast.Call(func=ast.Name(id=name)):
                    waiting += [name] if name not in seen else []
                    seen.add(name)
                case said:
                    yield template(said)


def fragments(source: str, names: set[str]) -> Iterator[str]:
    """Yield every piece of text longer than a word in the functions."""
    for name in names:
        for node in ast.walk(functions(source)[name]):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
                yield node.value


SOURCE = inspect.getsource(explain)
BEGIN = ("_reason", "_unreadable")


def heading_of(sentence: str) -> str:
    """Return a sentence as a heading has it: gaps that touch are one, and so are a gap and the end."""
    return re.sub(f"{GAP}+", GAP, sentence)


def test_every_sentence_of_explain_is_a_heading_and_every_heading_a_sentence() -> None:
    said = {heading_of(sentence) for sentence in sentences(SOURCE, *BEGIN)}
    assert len(said) > 10
    assert {re.sub(r"(…)\.?…?$", r"\1", one) for one in said} == {re.sub(r"(…)\.?$", r"\1", one) for one in HEADINGS}


def test_a_sentence_that_is_new_would_be_missed() -> None:
    planted = SOURCE.replace(
        "def _held(", 'def _new(facts: Facts) -> str:\n    return f"Stuck in {facts}."\n\n\ndef _held('
    )
    planted = planted.replace("return _resting(facts, archived)", "return _new(facts)")
    assert f"Stuck in {GAP}." in set(sentences(planted, *BEGIN))


def test_the_parts_of_sentences_are_on_the_page_too() -> None:
    words = " ".join(PAGE.split())
    parts = {part.strip(" .,;:(") for part in fragments(SOURCE, {"_held", "_resting", "_awaiting_others"})}
    missing = [part for part in parts if part not in words and not part.startswith("%")]
    assert missing == []


PACKAGE = Path(turnwise.__file__).parent
INDIRECT = {
    "engine/agents/missing_model.py": r'kind: ModelErrorKind = "(\w+)"',
    "engine/jobs/watchdog.py": r'self\._time_out[,(] ?"?(\w+)',
    "providers/pydantic_ai/errors.py": r'(?:\w, |return |else )"(\w+)"',
}
"""The modules that hand the kind to a function of their own, and how they write it there."""


def expressions_of_kinds(source: str) -> Iterator[ast.expr]:
    """Yield what the source writes for the kind wherever it makes an error."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="ModelError"), args=[kind, *_]):
                yield kind
            case ast.Call(func=ast.Name(id="time_limit"), args=[_, _, kind, *_]):
                yield kind
            case ast.Call(func=ast.Name(id="ErrorInfo"), keywords=[ast.keyword(arg="kind", value=kind), *_]):
                yield kind


def made_kinds() -> Iterator[str]:
    """Yield the kinds of the errors that the library makes."""
    for module in (
        one for folder in ("states", "engine", "providers", "persistence") for one in (PACKAGE / folder).rglob("*.py")
    ):
        source = module.read_text(encoding="utf-8")
        for kind in expressions_of_kinds(source):
            match kind:
                case ast.Constant(value=str(word)):
                    yield word
                case ast.Name(id=constant) if hasattr(errors, constant):
                    yield getattr(errors, constant)
                case ast.Attribute(attr="kind"):  # another error's
                    continue
                case ast.Name(id="kind") if module.name == "clock.py":  # that of whoever limits the time
                    continue
                case _:
                    words = re.findall(INDIRECT[module.relative_to(PACKAGE).as_posix()], source)
                    yield from (getattr(errors, word, word) for word in words)


def test_every_kind_of_error_has_its_remedy() -> None:
    table = PAGE[PAGE.index("| kind |") : PAGE.index("### The chat is archived")]
    told = {kind for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for kind in re.findall(r"`(\w+)`", row)}
    named = re.findall(r"`(\w+)`", re.findall(r"`ModelErrorKind`: (.*?)\.", str(ModelError.__doc__), re.DOTALL)[0])
    assert named == [*get_args(errors.ModelErrorKind)]
    assert told == {*named, *get_args(errors.OwnErrorKind)}
    assert told == set(made_kinds())


@pytest.mark.parametrize("begin", BEGIN)
def test_each_function_that_makes_a_reason_says_something(begin: str) -> None:
    assert list(sentences(SOURCE, begin))
