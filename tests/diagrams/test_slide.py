"""The slide shows every state, and of the table nothing that is not in it; so does its Mermaid text."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree as ET

import pytest

from turnwise.diagrams import mermaid, slide, sticker, table
from turnwise.diagrams.slide import BOXES, HEIGHT, WAYS, WIDTH
from turnwise.states.names import NEW, ChatState
from turnwise.states.table import TABLE

SVG = "{http://www.w3.org/2000/svg}"
DECLARED = {(str(row.source), row.target.value, row.trigger.value) for row in TABLE}


def groups(drawing: str, kind: str) -> list[ET.Element]:
    found = ET.fromstring(drawing).iter(f"{SVG}g")  # noqa: S314 - our own text
    return [group for group in found if kind in group.get("class", "").split()]


def shown(drawing: str) -> set[tuple[str, str, str]]:
    edges = groups(drawing, "edge")
    return {(edge.attrib["data-source"], edge.attrib["data-target"], edge.attrib["data-label"]) for edge in edges}


def test_every_arrow_of_the_slide_is_a_row_of_the_table() -> None:
    assert shown(slide()) == {(source, target, way.trigger.value) for (source, target), way in WAYS.items()}
    assert shown(slide()) <= DECLARED


def test_the_slide_has_every_state_once_and_each_is_reached() -> None:
    assert [group.attrib["data-state"] for group in groups(slide(), "state")] == [*ChatState]
    assert {target for _, target, _ in shown(slide())} == {*ChatState}


def test_the_happy_path_leads_from_nowhere_to_an_answer_and_back() -> None:
    happy = {pair for pair, way in WAYS.items() if way.happy}
    bold = {(edge.attrib["data-source"], edge.attrib["data-target"]) for edge in groups(slide(), "taken")}
    assert bold == happy
    tour = [NEW, "waiting", "pending", "streaming", "executing_tools", "streaming", "waiting"]
    assert happy == set(itertools.pairwise(tour))


@pytest.mark.parametrize("state", ChatState)
def test_the_state_of_a_chat_is_lit_on_the_slide_and_in_its_text(state: ChatState) -> None:
    assert [group.attrib["data-state"] for group in groups(slide(state), "current")] == [state]
    assert re.findall(r"class (\w+) current", mermaid(state, simple=True)) == [state]


def test_arrows_start_and_end_on_borders_and_cross_no_state() -> None:
    for (source, target), way in WAYS.items():
        for name, (x, y) in ((source, way.route.points[0]), (target, way.route.points[-1])):
            if name != NEW:
                box = BOXES[name]
                assert x in (box.x, box.x + box.width) or y in (box.y, box.y + box.height)
                assert box.x <= x <= box.x + box.width
                assert box.y <= y <= box.y + box.height
        for (x1, y1), (x2, y2) in itertools.pairwise(way.route.points):
            assert x1 == x2 or y1 == y2
            for box in BOXES.values():
                beside = max(x1, x2) <= box.x or min(x1, x2) >= box.x + box.width
                assert beside or max(y1, y2) <= box.y or min(y1, y2) >= box.y + box.height, (source, target)


def test_nothing_stands_outside_of_the_slide() -> None:
    for box in BOXES.values():
        assert 0 < box.x < box.x + box.width < WIDTH
        assert 0 < box.y < box.y + box.height < HEIGHT


def test_the_simple_text_says_what_the_slide_shows() -> None:
    text = mermaid(simple=True)
    edges = re.findall(r"^    (\S+) --> (\S+) : (\w+)$", text, re.MULTILINE)
    assert {(NEW if source == "[*]" else source, target, trigger) for source, target, trigger in edges} == shown(
        slide()
    )
    assert set(re.findall(r'^    state ".+" as (\w+)$', text, re.MULTILINE)) == {*ChatState}
    assert text.startswith("stateDiagram-v2\n")


def test_the_table_is_a_page_of_its_own_that_holds_every_row() -> None:
    rows = groups(table(), "row")
    listed = {
        (
            source,
            source if row.attrib["data-target"] == "same" else row.attrib["data-target"],
            row.attrib["data-trigger"],
        )
        for row in rows
        for source in row.attrib["data-source"].split()
    }
    assert listed == DECLARED
    assert groups(table(), "state") == []


@pytest.mark.parametrize("draw", [slide, sticker])
@pytest.mark.parametrize("name", ["dreaming", "<b>", "new"])
def test_an_unknown_state_is_refused_with_the_names_of_the_states(draw: type[str], name: str) -> None:
    with pytest.raises(ValueError, match="the states are waiting, pending, streaming"):
        draw(name)
