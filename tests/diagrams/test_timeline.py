"""Timelines and paths show the events, with any names of tools and users."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.diagrams.lived import START, after, answered, asked, asked_at_once, broken, failed, phase, shown, stays

from support.eventful_life import look, rich_life, rich_script
from support.exploring import examples
from turnwise import CompactionPolicy, Engine, Event, InvalidArgument, Settings
from turnwise.diagrams import mermaid, path, slide, sticker, timeline
from turnwise.diagrams.path import LISTED
from turnwise.diagrams.timeline import DRAWN, WIDTH
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.events import PartDelta, PartEvent, StatusEvent
from turnwise.states.names import ChatState, Executor
from turnwise.testing import ManualClock

SVG = "{http://www.w3.org/2000/svg}"
S = ChatState
HOSTILE = [
    "</text><script>alert(1)</script>",
    "\"><image href='https://evil.example/x'/>",
    "\x00\x1b[2J\x07",
    "\u202egnp.exe\u2066",
    "\ud800",
    "\ufffe\uffff",
    "n" * 5000,
    "",
]


def parsed(drawing: str) -> ET.Element:
    assert drawing.encode()
    return ET.fromstring(drawing)  # noqa: S314 - that it can be read is the claim


def titles(drawing: str) -> list[tuple[str, str]]:
    groups = (group for group in parsed(drawing).iter(f"{SVG}g") if group.get("class") == "bar")
    return [(group.attrib["data-kind"], group[0].text or "") for group in groups]


def bars(drawing: str) -> list[tuple[str, str]]:
    return [(kind, words.rpartition(", ")[0]) for kind, words in titles(drawing)]


def eventful() -> list[Event]:
    """Return a life with a bar of every kind but those of attempts, a long rest, and concurrent calls."""
    executors = {"t": Executor.local, "c": Executor.client, "h": Executor.chat}
    states = stays(
        (S.waiting, 0), (S.streaming, 90_000), (S.executing_tools, 90_003), (S.requires_action, 90_006),
        (S.compacting, 90_070), (S.error, 90_075), (S.interrupted, 90_076), (S.waiting, 90_077),
    )  # fmt: skip
    others = [
        asked_at_once(*((one, one, how) for one, how in executors.items()), at=90_003),
        answered("t", "t", at=90_005.25),
        answered("c", "c", at=90_066),
        phase("started", 90_071),
        phase("failed", 90_072),
        phase("started", 90_073),
        phase("finished", 90_074),
    ]
    return sorted([*others, *states], key=lambda event: event.at or START)


DRAWINGS = {
    "path.svg": lambda: path(eventful()),
    "long-path.svg": lambda: path(stays(*((S.streaming if at % 2 else S.waiting, at * 1.5) for at in range(100)))),
    "timeline.svg": lambda: timeline(eventful()),
    "slide-error.svg": lambda: slide("error"),
    "streaming.mmd": lambda: mermaid("streaming"),
    **{f"sticker-{state}.svg": partial(sticker, state) for state in ("waiting", "streaming", "requires_action")},
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawing_equals_the_approved_one(name: str) -> None:
    """If this fails: run it with APPROVE=1, look at the picture, commit it."""
    drawn, approved = DRAWINGS[name](), Path(__file__).parent / "approved" / name
    if os.environ.get("APPROVE"):
        approved.write_text(drawn, encoding="utf-8")
    assert drawn == approved.read_text(encoding="utf-8")


async def rich_events() -> list[Event]:
    clock = ManualClock()
    model = ScriptedModel(rich_script(), context_limit=100)
    settings = Settings(compaction=CompactionPolicy(context_limit=100))
    async with Engine("sqlite://", model=model, tools=[look], settings=settings, clock=clock) as engine:
        return [event async for event in engine.events(await rich_life(engine, clock), follow=False)]


async def test_timeline_has_a_bar_for_each_activity() -> None:
    events = await rich_events()
    drawing = timeline(events)
    found = Counter(kind for kind, _ in bars(drawing))
    assert found["failed attempt"] >= 1
    assert found["attempt"] >= 4
    assert found["local call"] == found["client call"] == found["compaction"] == 1
    assert found["state"] == sum(isinstance(event, StatusEvent) for event in events)
    marks = [one.get("class") for one in parsed(drawing).iter()]
    assert marks.count("stop") == 1
    assert marks.count("said") == 3, "two messages and an edited one"


def lines_of_text(drawing: str) -> list[str]:
    return [one.text or "" for one in parsed(drawing).iter(f"{SVG}text")]


async def test_every_bar_is_named() -> None:
    """Inside of it, beside it or below it, unless there are dozens in one place."""
    for events in (eventful(), await rich_events()):
        drawing = timeline(events)
        wanted = Counter(words.removeprefix(f"{kind} ") for kind, words in bars(drawing))
        found = Counter(line.partition(",")[0] if line.partition(",")[0] in wanted else line
                        for line in lines_of_text(drawing))  # fmt: skip
        assert not wanted - found


@pytest.mark.parametrize("apart", [0.05, 0.4, 7, 90_000])
def test_time_axis_repeats_no_label(apart: float) -> None:
    turns = [(state, (turn + part) * apart) for turn in range(30) for part, state in ((0, S.waiting), (0.5, S.pending))]
    groups = (one for one in parsed(timeline(stays(*turns))).iter(f"{SVG}g") if one.get("class") == "time")
    times = [one[0].text for one in groups]
    assert times
    assert len(times) == len({*times})


async def test_timeline_is_unchanged_after_pruning() -> None:
    """Parts are pruned a day later; an attempt that failed at once has none."""
    events = await rich_events()
    lasting = [event for event in events if not isinstance(event, PartEvent)]
    assert len(lasting) < len(events)
    assert titles(timeline(lasting)) == titles(timeline(events))


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("draw", [path, timeline])
def test_hostile_names_are_text_in_a_drawing(draw: Any, name: str) -> None:
    """A drawing is embedded in pages: no name may become an element, an attribute, or break the document."""
    plain = [*stays((S.waiting, 0), (S.executing_tools, 1)), asked("name"), answered("name"), *stays((S.waiting, 5))]
    hostile = [*stays((S.waiting, 0), (S.executing_tools, 1)), asked(name), answered(name), *stays((S.waiting, 5))]
    drawn = parsed(draw(hostile))
    known = {(one.tag, *sorted(one.attrib)) for one in parsed(draw(plain)).iter()}
    assert {(one.tag, *sorted(one.attrib)) for one in drawn.iter()} <= known
    words = "".join(drawn.itertext())
    assert not set(words) & set("\x00\x1b\x07\u202e\u2066")
    if draw is timeline and name.isprintable():
        assert f"local call {name}, 2 s" in words


@pytest.mark.parametrize("draw", [path, timeline])
def test_long_life_shows_only_its_latest_part(draw: Any) -> None:
    states = [(S.streaming if at % 2 else S.waiting, float(at)) for at in range(1000)]
    drawn = parsed(draw(stays(*states)))
    shown = [one for one in drawn.iter(f"{SVG}g") if one.get("class") in ("stay", "bar")]
    most = LISTED if draw is path else DRAWN
    assert len([one for one in shown if one.get("data-kind", "state") == "state"]) == most
    assert f"{1000 - most} earlier" in "".join(drawn.itertext())


@pytest.mark.parametrize("draw", [path, timeline])
@pytest.mark.parametrize(
    "events",
    [[], [None], ["<svg/>"], [PartEvent(step=1, attempt=1, index=0, part=PartDelta(type="text"), at=START)]],
    ids=["none", "None", "text", "no state"],
)
def test_events_without_a_state_are_rejected(draw: Any, events: Sequence[Any]) -> None:
    for one in (events, iter(events)):
        with pytest.raises(InvalidArgument, match=r"^events.*: must be"):
            draw(one)


# Clocks that are set


def rects(drawing: str, kind: str) -> list[tuple[float, float]]:
    """Return the start and the end of the bars of a kind."""
    groups = [one for one in parsed(drawing).iter(f"{SVG}g") if one.get("data-kind") == kind]
    places = [(float(one[1].attrib["x"]), float(one[1].attrib["width"])) for one in groups]
    return [(x, x + width) for x, width in places]


CLOCKS: Final = st.one_of(st.datetimes(timezones=st.just(UTC)), st.integers(-7200, 7200).map(after), st.just(START))
HAPPENED: Final = st.one_of(
    st.sampled_from(ChatState).map(lambda state: stays((state, 0))[0]),
    st.sampled_from([asked("a", "a"), asked("b", "b", Executor.client), answered("a", "a"), answered("b", "b")]),
    st.sampled_from([phase("started", 0), phase("finished", 0), phase("failed", 0)]),
    st.sampled_from([*failed(1, 1, 0), *failed(1, 2, 0, delay=60), *broken(0), shown(1, 2, 0)]),
)


@settings(max_examples=examples(150))
@given(st.lists(st.tuples(HAPPENED, CLOCKS), max_size=30), CLOCKS)
def test_any_life_can_be_drawn_with_any_clock(happened: list[tuple[Event, datetime]], start: datetime) -> None:
    """Back, forth, by years: bars stay on the page, states in their order, and no duration is negative."""
    events = [msgspec.structs.replace(event, at=at) for event, at in [(stays((S.waiting, 0))[0], start), *happened]]
    drawing = timeline(events)
    for kind in {kind for kind, _ in titles(drawing)}:
        assert all(0 <= left <= right <= WIDTH for left, right in rects(drawing, kind))
    states = rects(drawing, "state")
    assert all(left[0] <= right[0] and left[1] <= right[0] + 2.1 for left, right in pairwise(states))
    for drawn in (drawing, path(events)):
        assert not [words for words in parsed(drawn).itertext() if re.search(r"(^|[ ,])-\d", words)]
