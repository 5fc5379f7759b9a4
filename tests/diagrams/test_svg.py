"""The drawing says what the table says, can be read, and can be put into any page."""

import itertools
import re
from collections import Counter
from xml.etree import ElementTree as ET

import pytest

from support.rich_chat import engine_on, live
from turnwise.diagrams import mermaid, path, slide, svg
from turnwise.diagrams.grouping import SAME
from turnwise.diagrams.rows import COLUMNS
from turnwise.diagrams.slide import WAYS
from turnwise.states.events import StatusEvent
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
    return {(row.trigger.name, str(row.source), row.target.value) for row in TABLE}


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
        wanted.append((row.trigger.name, str(row.source), row.target.value, *words))
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


# The slide


DECLARED = {(str(row.source), row.target.value, row.trigger.name) for row in TABLE}


def groups_in(drawing: str, kind: str) -> list[ET.Element]:
    found = ET.fromstring(drawing).iter(f"{SVG}g")  # noqa: S314 - our own text
    return [group for group in found if kind in group.get("class", "").split()]


def shown(drawing: str) -> set[tuple[str, str, str]]:
    edges = groups_in(drawing, "edge")
    return {(edge.attrib["data-source"], edge.attrib["data-target"], edge.attrib["data-label"]) for edge in edges}


def test_slide_arrows_are_rows_of_the_table() -> None:
    assert shown(slide()) == {(source, target, way.trigger.name) for (source, target), way in WAYS.items()}
    assert shown(slide()) <= DECLARED


def test_slide_has_and_reaches_every_state() -> None:
    assert [group.attrib["data-state"] for group in groups_in(slide(), "state")] == [*ChatState]
    assert {target for _, target, _ in shown(slide())} == {*ChatState}


@pytest.mark.parametrize("state", ChatState)
def test_slide_highlights_the_current_state(state: ChatState) -> None:
    assert [group.attrib["data-state"] for group in groups_in(slide(state), "current")] == [state]
    assert re.findall(r"class (\w+) current", mermaid(state, simple=True)) == [state]


# A chat's path


def read_from(drawing: str) -> ET.Element:
    assert drawing.encode()
    return ET.fromstring(drawing)  # noqa: S314 - that it can be read is the claim


async def test_path_counts_the_transitions_of_a_chat() -> None:
    async with engine_on("sqlite://") as engine:  # type: ignore[arg-type]
        events = [event async for event in engine.events(await live(engine), follow=False)]
    told = [event for event in events if isinstance(event, StatusEvent)]
    taken = Counter((str(event.previous or "new"), str(event.state)) for event in told)
    drawn = read_from(path(events))
    labels = {
        (edge.attrib["data-source"], edge.attrib["data-target"]): edge.attrib["data-label"]
        for edge in drawn.iter(f"{SVG}g")
        if "edge" in edge.get("class", "")
    }
    said = {pair: "once" if taken[pair] == 1 else f"{taken[pair]} times" for pair in WAYS if taken[pair]}
    assert {pair: label for pair, label in labels.items() if label} == said
    assert [one.attrib["data-state"] for one in drawn.iter(f"{SVG}g") if one.get("class") == "stay"] == [
        event.state for event in told
    ]
    assert [one.attrib["data-state"] for one in drawn.iter(f"{SVG}g") if one.get("class") == "state current"] == [
        "requires_action"
    ]
    assert "compacting to requires_action, once" in "".join(drawn.itertext())
