"""The drawing says what the table says, can be read, and can be put into any page."""

import itertools
from xml.etree import ElementTree as ET

import pytest

from turnwise.diagrams import svg
from turnwise.diagrams.grouping import SAME
from turnwise.diagrams.rows import COLUMNS
from turnwise.states.names import ChatState
from turnwise.states.table import TABLE, rows_of

SVG = "{http://www.w3.org/2000/svg}"


def parsed(state: str | None = None, *, rows: bool = True) -> ET.Element:
    return ET.fromstring(svg(state, rows=rows))  # noqa: S314 - our own text


def groups(root: ET.Element, kind: str) -> list[ET.Element]:
    return [group for group in root.iter(f"{SVG}g") if kind in group.get("class", "").split()]


def goal(source: str, target: str) -> str:
    return source if target == SAME else target


def declared() -> set[tuple[str, ...]]:
    return {(row.trigger.value, str(row.source), row.target.value) for row in TABLE}


def graph_of(root: ET.Element) -> list[tuple[str, str, str]]:
    """Every (trigger, source, target) of the graph: arrows, and what states and frames stay on."""
    found = []
    for edge in groups(root, "edge"):
        ends = itertools.product(edge.attrib["data-triggers"].split(), edge.attrib["data-source"].split())
        found += [(trigger, source, edge.attrib["data-target"]) for trigger, source in ends]
    for state in groups(root, "state"):
        found += [(trigger, state.attrib["data-state"], state.attrib["data-state"]) for trigger in stays(state)]
    for frame in groups(root, "frame"):
        ends = itertools.product(stays(frame), frame.attrib["data-members"].split())
        found += [(trigger, member, member) for trigger, member in ends]
    return found


def stays(group: ET.Element) -> list[str]:
    return group.get("data-stays", "").split()


def test_graph_has_exactly_the_declared_transitions() -> None:
    found = graph_of(parsed())
    assert set(found) == declared()
    assert len(found) == len(set(found))


def test_list_has_every_row_with_guards_and_actions() -> None:
    wanted, listed = [], []
    for row in TABLE:
        otherwise = ["otherwise"] if len(rows_of(row.trigger, row.source)) > 1 else []
        condition = [guard.__name__ for guard in row.when] or otherwise
        taken = [action.__name__ for action in row.actions]
        words = ", ".join(condition).replace("_", " "), ", ".join(taken).replace("_", " ")
        wanted.append((row.trigger.value, str(row.source), row.target.value, *words))
    for entry in groups(parsed(), "row"):
        columns: dict[float, list[str]] = {}
        for cell in entry.iter(f"{SVG}text"):
            columns.setdefault(float(cell.attrib["x"]), []).append(cell.text or "")
        asked, done = (" ".join(columns.get(COLUMNS[name][0], [])) for name in ("when", "actions"))
        for source in entry.attrib["data-source"].split():
            target = goal(source, entry.attrib["data-target"])
            listed.append((entry.attrib["data-trigger"], source, target, asked, done))
    assert sorted(listed) == sorted(wanted)


@pytest.mark.parametrize("state", ChatState)
def test_live_drawing_highlights_the_current_state(state: ChatState) -> None:
    root = parsed(state)
    assert [group.attrib["data-state"] for group in groups(root, "current")] == [state]
    assert f"stands in {state}" in root.findtext(f"{SVG}desc", "")


def test_drawing_has_no_style_script_or_font() -> None:
    """The inspector's page has a strict content security policy, and a drawing in a README is only an image."""
    for element in parsed("pending").iter():
        assert element.tag.removeprefix(SVG) not in {"style", "script", "font", "image", "foreignObject"}
        assert not {"style", "href", "onclick"} & element.attrib.keys()


def test_unknown_state_error_names_the_states() -> None:
    with pytest.raises(ValueError, match="'dreaming'; the states are waiting, pending"):
        svg("dreaming")
