"""The drawing says what the table says, can be read, and can be put into any page."""

import itertools
import re
from xml.etree import ElementTree as ET

import pytest

from turnwise.diagrams import layout, svg
from turnwise.diagrams.extract import machine
from turnwise.diagrams.grouping import SAME
from turnwise.diagrams.rows import COLUMNS
from turnwise.states.names import NEW, UNKNOWN, ChatState
from turnwise.states.table import TABLE

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


def said(group: ET.Element) -> list[str]:
    return [" ".join(text.itertext()) for text in group.iter(f"{SVG}text")]


def test_the_graph_holds_exactly_the_declared_transitions() -> None:
    found = graph_of(parsed())
    assert set(found) == declared()
    assert len(found) == len(set(found))


def test_the_graph_holds_exactly_the_declared_states() -> None:
    root = parsed()
    assert {state.attrib["data-state"] for state in groups(root, "state")} == {*ChatState, UNKNOWN}
    assert [start.attrib["data-state"] for start in groups(root, "start")] == [NEW]


def test_what_an_arrow_is_marked_with_is_written_beside_it() -> None:
    for edge in groups(parsed(), "edge"):
        shown = set(re.findall(r"\w+", " ".join(said(edge))))
        assert shown.issuperset(edge.attrib["data-triggers"].split())


def test_the_list_holds_every_row_with_its_guards_and_actions_in_words() -> None:
    wanted, listed = [], []
    for row in TABLE:
        condition = [guard.__name__ for guard in row.when] + [f"not {guard.__name__}" for guard in row.unless]
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


def test_the_list_can_be_left_out() -> None:
    assert not groups(parsed(rows=False), "row")
    assert set(graph_of(parsed(rows=False))) == declared()


@pytest.mark.parametrize("state", ChatState)
def test_the_live_drawing_lights_exactly_the_current_state(state: ChatState) -> None:
    root = parsed(state)
    assert [group.attrib["data-state"] for group in groups(root, "current")] == [state]
    assert f"stands in {state}" in root.findtext(f"{SVG}desc", "")


def test_the_neutral_drawing_lights_no_state() -> None:
    assert not groups(parsed(), "current")


def test_each_state_shows_its_promise_and_its_job() -> None:
    shown = {group.attrib["data-state"]: " ".join(said(group)) for group in groups(parsed(), "state")}
    for node in machine().states:
        assert ", ".join(promise.words for promise in node.promise) in shown[node.id]
        assert (f"job {node.job}" in shown[node.id]) == bool(node.job)


def test_no_text_stands_outside_the_box_of_its_state() -> None:
    for group in groups(parsed(), "state"):
        box = layout.BOXES[group.attrib["data-state"]]
        for text in group.iter(f"{SVG}text"):
            assert box.y < float(text.attrib["y"]) < box.y + box.height - 4


def test_the_drawing_needs_no_style_no_script_and_no_font_of_its_own() -> None:
    """The inspector's page has a strict content security policy, and a drawing in a README is only an image."""
    for element in parsed("pending").iter():
        assert element.tag.removeprefix(SVG) not in {"style", "script", "font", "image", "foreignObject"}
        assert not {"style", "href", "onclick"} & element.attrib.keys()


def test_the_drawing_has_a_title_and_a_description() -> None:
    root = parsed()
    assert root.get("role") == "img"
    assert root[0].tag == f"{SVG}title"
    assert root[0].text
    assert root.findtext(f"{SVG}desc", "")


def test_an_unknown_state_is_refused_with_the_names_of_the_states() -> None:
    with pytest.raises(ValueError, match="'dreaming'; the states are waiting, pending"):
        svg("dreaming")


def test_a_row_that_takes_what_the_others_leave_is_called_otherwise() -> None:
    """Its guards would fill the picture; the list below has them."""
    for edge in groups(parsed(), "edge"):
        if (edge.attrib["data-source"], edge.attrib["data-target"]) == ("executing_tools", "streaming"):
            assert said(edge) == ["tools_finished", "[otherwise]"]
            break
    else:
        pytest.fail("executing_tools never goes back to streaming")


def lines_of(row: ET.Element) -> list[tuple[float, float, str]]:
    """Where each line of a row of the list stands, and what it says."""
    return [(float(line.attrib["x"]), float(line.attrib["y"]), line.text or "") for line in row.iter(f"{SVG}text")]


def test_the_lines_of_a_cell_stand_below_each_other_and_the_rows_too() -> None:
    below = 0.0
    for row in groups(parsed(), "row"):
        lines = lines_of(row)
        for x in {x for x, _, _ in lines}:
            column = [y for at, y, _ in lines if at == x]
            assert column == sorted(set(column)), "no line upon another, and the first one on top"
            assert all(9 <= lower - upper <= 20 for upper, lower in itertools.pairwise(column))
        assert min(y for _, y, _ in lines) > below
        assert len({min(y for at, y, _ in lines if at == x) for x in {x for x, _, _ in lines}}) == 1, "on one line"
        below = max(y for _, y, _ in lines)


def test_a_word_of_the_list_is_never_broken() -> None:
    known = {word for row in groups(parsed(), "row") for _, _, words in lines_of(row) for word in words.split()}
    for row in TABLE:
        assert row.trigger.value in known
