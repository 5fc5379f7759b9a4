"""The Mermaid text contains exactly the table."""

import json
import re
from collections.abc import Callable, Iterable

import pytest

from turnwise.diagrams import machine_json, mermaid
from turnwise.diagrams.graph import SAME
from turnwise.diagrams.texts import REFUSED, matrix
from turnwise.states.names import NEW, UNKNOWN, ChatState
from turnwise.states.table import TABLE, rows_of
from turnwise.states.triggers import TRIGGERS

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
        rows.add((row.trigger.name, str(row.source), row.target.value, condition, ", ".join(words(row.actions))))
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
    """Mermaid parses a colon, a semicolon, a hash or a brace in a label, and the page shows an error instead."""
    for _, _, label in EDGE.findall(mermaid()):
        assert not set(label) & set(':;#{}"%')


def test_unknown_state_error_names_the_states() -> None:
    with pytest.raises(ValueError, match="'dreaming'; the states are waiting, pending, streaming"):
        mermaid("dreaming")


# The matrix


PAGE = matrix()


def tables(head: str) -> list[list[dict[str, str]]]:
    """The page's tables with such a first column, each as a list of dictionaries."""
    found = []
    for block in PAGE.split("\n\n"):
        if block.startswith(f"| {head} |"):
            raw = [[cell.strip().strip("`") for cell in line[1:-1].split("|")] for line in block.strip().splitlines()]
            found.append([dict(zip(raw[0], row, strict=True)) for row in raw[2:]])
    return found


def cells() -> dict[str, dict[str, str]]:
    return {row["trigger"]: row for table in tables("trigger")[:-1] for row in table}


def test_cells_name_the_targets_of_the_table() -> None:
    found = cells()
    for trigger in TRIGGERS.values():
        for source in (NEW, *ChatState, UNKNOWN):
            targets = {SAME if row.target == source else row.target.value for row in rows_of(trigger, source)}
            assert set(found[trigger.name].get(source, REFUSED).split(", ")) == (targets or {REFUSED})


def test_every_guard_and_write_is_explained() -> None:
    explained = {row["name"]: row["meaning"] for table in tables("name") for row in table}
    used = {one for row in TABLE for one in (*row.when, *row.actions)}
    assert explained.keys() == {one.__name__.replace("_", " ") for one in used}
    assert all(explained.values())


# The machine as data


def test_json_has_every_row_with_guards_and_actions() -> None:
    reported = json.loads(machine_json())
    assert reported["format"] == "turnwise-machine/1"
    assert reported["states"] == [*ChatState]
    assert set(reported["triggers"]) == {*TRIGGERS}
    assert reported["triggers"]["unarchived"]["while_archived"]
    assert not reported["triggers"]["send_message"]["while_archived"]
    assert {reported["new"], reported["unknown"]} == {"new", "unknown"}
    assert [(row["trigger"], row["source"], row["target"]) for row in reported["rows"]] == [
        (row.trigger.name, str(row.source), row.target.value) for row in TABLE
    ]
    assert [row["when"] for row in reported["rows"]] == [[guard.__name__ for guard in row.when] for row in TABLE]
    assert [row["actions"] for row in reported["rows"]] == [
        [action.__name__ for action in row.actions] for row in TABLE
    ]
