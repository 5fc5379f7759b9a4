"""The Mermaid text says what the table says, no more and no less."""

import re
from collections.abc import Callable, Iterable

import pytest

from turnwise.diagrams import mermaid
from turnwise.states.names import NEW, UNKNOWN, ChatState
from turnwise.states.table import TABLE, rows_of

EDGE = re.compile(r"^    (\S+) --> (\S+) : (.+)$", re.MULTILINE)
NOTE = re.compile(r"^    note left of \S+\n        in every state\n(.+?)\n    end note$", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^(?P<trigger>\w+)(?: \[(?P<when>[^\]]+)\])?(?: / (?P<actions>.+))?$")


def words(functions: Iterable[Callable[..., object]]) -> list[str]:
    return [function.__name__.replace("_", " ") for function in functions]


def declared() -> set[tuple[str, ...]]:
    rows: set[tuple[str, ...]] = set()
    for row in TABLE:
        otherwise = "otherwise" if len(rows_of(row.trigger, row.source)) > 1 else ""
        condition = ", ".join(words(row.when)) or otherwise
        rows.add((row.trigger.value, str(row.source), row.target.value, condition, ", ".join(words(row.actions))))
    return rows


def drawn(text: str) -> list[tuple[str, ...]]:
    found = []
    for source, target, lines in EDGE.findall(text):
        found += [(NEW if source == "[*]" else source, target, line) for line in lines.split("<br/>")]
    for line in NOTE.findall(text)[0].split("\n"):
        found += [(state.value, state.value, line.strip()) for state in ChatState]
    rows: list[tuple[str, ...]] = []
    for source, target, line in found:
        match = LINE.match(line)
        assert match, line
        rows.append((match["trigger"], source, target, match["when"] or "", match["actions"] or ""))
    return rows


def test_text_has_every_row_of_the_table_once() -> None:
    rows = drawn(mermaid())
    assert len(rows) == len(set(rows))
    assert set(rows) == declared()
    assert len(rows) == len(TABLE)


@pytest.mark.parametrize("state", ChatState)
def test_live_text_highlights_the_current_state(state: ChatState) -> None:
    classes = dict(re.findall(r"^    class (\w+) (\w+)$", mermaid(state), re.MULTILINE))
    assert [name for name, style in classes.items() if style == "current"] == [state]
    assert classes.keys() == {*ChatState, UNKNOWN}


def test_labels_have_no_mermaid_syntax() -> None:
    """A colon, a semicolon, a hash or a brace in a label is read as syntax, and the page shows an error instead."""
    for _, _, label in EDGE.findall(mermaid()):
        assert not set(label) & set(':;#{}"%')


def test_unknown_state_error_names_the_states() -> None:
    with pytest.raises(ValueError, match="'dreaming'; the states are waiting, pending, streaming"):
        mermaid("dreaming")
