"""The slide shows every state, and of the table nothing that is not in it; so does its Mermaid text."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from turnwise.diagrams import mermaid, slide
from turnwise.diagrams.slide import WAYS
from turnwise.states.names import ChatState
from turnwise.states.table import TABLE

SVG = "{http://www.w3.org/2000/svg}"
DECLARED = {(str(row.source), row.target.value, row.trigger.value) for row in TABLE}


def groups(drawing: str, kind: str) -> list[ET.Element]:
    found = ET.fromstring(drawing).iter(f"{SVG}g")  # noqa: S314 - our own text
    return [group for group in found if kind in group.get("class", "").split()]


def shown(drawing: str) -> set[tuple[str, str, str]]:
    edges = groups(drawing, "edge")
    return {(edge.attrib["data-source"], edge.attrib["data-target"], edge.attrib["data-label"]) for edge in edges}


def test_slide_arrows_are_rows_of_the_table() -> None:
    assert shown(slide()) == {(source, target, way.trigger.value) for (source, target), way in WAYS.items()}
    assert shown(slide()) <= DECLARED


def test_slide_has_and_reaches_every_state() -> None:
    assert [group.attrib["data-state"] for group in groups(slide(), "state")] == [*ChatState]
    assert {target for _, target, _ in shown(slide())} == {*ChatState}


@pytest.mark.parametrize("state", ChatState)
def test_slide_highlights_the_current_state(state: ChatState) -> None:
    assert [group.attrib["data-state"] for group in groups(slide(state), "current")] == [state]
    assert re.findall(r"class (\w+) current", mermaid(state, simple=True)) == [state]
