"""The Mermaid text says what the table says, no more and no less."""

import re
from collections.abc import Callable, Iterable

import pytest

from turnwise.diagrams import mermaid
from turnwise.diagrams.extract import machine
from turnwise.states.names import NEW, UNKNOWN, ChatState
from turnwise.states.table import TABLE

EDGE = re.compile(r"^    (\S+) --> (\S+) : (.+)$", re.MULTILINE)
NOTE = re.compile(r"^    note left of \S+\n        in every state\n(.+?)\n    end note$", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^(?P<trigger>\w+)(?: \[(?P<when>[^\]]+)\])?(?: / (?P<actions>.+))?$")


def words(functions: Iterable[Callable[..., object]]) -> list[str]:
    return [function.__name__.replace("_", " ") for function in functions]


def declared() -> set[tuple[str, ...]]:
    rows: set[tuple[str, ...]] = set()
    for row in TABLE:
        condition = ", ".join(words(row.when) + [f"not {name}" for name in words(row.unless)])
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


def test_the_text_holds_every_row_of_the_table_once_and_no_other() -> None:
    rows = drawn(mermaid())
    assert len(rows) == len(set(rows))
    assert set(rows) == declared()
    assert len(rows) == len(TABLE)


def test_the_text_declares_exactly_the_states_and_the_unknown_one() -> None:
    assert set(re.findall(r'^    state ".+" as (\w+)$', mermaid(), re.MULTILINE)) == {*ChatState, UNKNOWN}


def test_two_states_are_joined_by_one_edge_at_most() -> None:
    joined = [(source, target) for source, target, _ in EDGE.findall(mermaid())]
    assert len(joined) == len(set(joined))


@pytest.mark.parametrize("state", ChatState)
def test_the_live_text_lights_exactly_the_current_state(state: ChatState) -> None:
    classes = dict(re.findall(r"^    class (\w+) (\w+)$", mermaid(state), re.MULTILINE))
    assert [name for name, style in classes.items() if style == "current"] == [state]
    assert classes.keys() == {*ChatState, UNKNOWN}


def test_the_neutral_text_lights_no_state() -> None:
    assert "current" not in mermaid()


def test_labels_hold_no_character_that_ends_a_label_in_mermaid() -> None:
    """A colon, a semicolon, a hash or a brace in a label is read as syntax, and the page shows an error instead."""
    for _, _, label in EDGE.findall(mermaid()):
        assert not set(label) & set(':;#{}"%')


def test_an_unknown_state_is_refused_with_the_names_of_the_states() -> None:
    with pytest.raises(ValueError, match="'dreaming'; the states are waiting, pending, streaming"):
        mermaid("dreaming")


@pytest.mark.parametrize("place", [NEW, UNKNOWN])
def test_a_chat_never_stands_in_a_place_that_is_no_state(place: str) -> None:
    with pytest.raises(ValueError, match="unknown state"):
        mermaid(place)


def test_the_picture_is_the_same_each_time() -> None:
    assert machine() == machine()
    assert mermaid() == mermaid()


def test_the_lit_state_has_a_style_of_its_own_and_without_one_there_is_none() -> None:
    assert "classDef current" not in mermaid()
    for state in ChatState:
        text = mermaid(state=state)
        assert re.findall(r"^    classDef current .*stroke-width:3px$", text, re.MULTILINE), text
        assert len(re.findall(r":::current|class \w+ current", text)) == 1
