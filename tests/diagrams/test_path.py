"""A chat's path counts what its events tell."""

from __future__ import annotations

from collections import Counter
from xml.etree import ElementTree as ET

from support.rich_chat import engine_on, live
from turnwise.diagrams import path
from turnwise.diagrams.slide import WAYS
from turnwise.states.events import StatusEvent

SVG = "{http://www.w3.org/2000/svg}"


def parsed(drawing: str) -> ET.Element:
    assert drawing.encode()
    return ET.fromstring(drawing)  # noqa: S314 - that it can be read is the claim


async def test_path_counts_the_transitions_of_a_chat() -> None:
    async with engine_on("sqlite://") as engine:  # type: ignore[arg-type]
        events = [event async for event in engine.events(await live(engine), follow=False)]
    told = [event for event in events if isinstance(event, StatusEvent)]
    taken = Counter((str(event.previous or "new"), str(event.state)) for event in told)
    drawn = parsed(path(events))
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
