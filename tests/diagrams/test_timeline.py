"""A timeline, and what a path has in common with it, tells what events tell, whatever tools and users are called."""

from __future__ import annotations

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

from support.eventful_life import look, rich_life, rich_script
from support.exploring import examples
from support.lived import START, after, answered, asked, asked_at_once, broken, failed, phase, shown, stays
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
    "]]>&amp;&#x3c;b&#x3e;",
    "\x00\x1b[2J\x07",
    "\u202egnp.exe\u2066",
    "\ud800",
    "\ufffe\uffff",
    "line\nbreak\ttab",
    "%s {0} ${x}",
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
    """Return a life with a bar of every kind but those of attempts, a long rest, and calls at once."""
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
def test_a_drawing_is_the_one_that_was_looked_at(name: str) -> None:
    """If this fails: run it with APPROVE=1, look at the picture, commit it."""
    drawn, approved = DRAWINGS[name](), Path(__file__).parent / "approved" / name
    if os.environ.get("APPROVE"):
        approved.write_text(drawn, encoding="utf-8")
    assert drawn == approved.read_text(encoding="utf-8")


async def rich_events() -> list[Event]:
    """Return the events of a life in which everything happens."""
    clock = ManualClock()
    model = ScriptedModel(rich_script(), context_limit=100)
    settings = Settings(compaction=CompactionPolicy(context_limit=100))
    async with Engine("sqlite://", model=model, tools=[look], settings=settings, clock=clock) as engine:
        return [event async for event in engine.events(await rich_life(engine, clock), follow=False)]


async def test_a_timeline_has_a_bar_for_whatever_took_time() -> None:
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


async def test_a_timeline_is_the_same_after_the_parts_are_pruned() -> None:
    """They are, a day later; an attempt that failed at once has none to begin with."""
    events = await rich_events()
    lasting = [event for event in events if not isinstance(event, PartEvent)]
    assert len(lasting) < len(events)
    assert titles(timeline(lasting)) == titles(timeline(events))


def test_a_helper_a_call_of_the_client_and_a_tool_stand_in_lanes_of_their_own() -> None:
    executors = {"t": Executor.local, "c": Executor.client, "h": Executor.chat, "p": Executor.provider}
    asking = asked_at_once(*((one, one, how) for one, how in executors.items()), at=2)
    assert bars(timeline([*stays((S.waiting, 0), (S.streaming, 1)), asking]))[3:] == [
        ("local call", "local call t"),
        ("client call", "client call c"),
        ("helper", "helper h"),
    ]


def test_calls_at_once_do_not_cover_each_other() -> None:
    events = [*stays((S.waiting, 0), (S.executing_tools, 1)), asked("a", "a"), asked("b", "b"), answered("a", "a"),
              answered("b", "b"), asked("c", "c", at=5), answered("c", "c", at=6)]  # fmt: skip
    rows: dict[str, list[tuple[float, float]]] = {}
    for group in parsed(timeline(events)).iter(f"{SVG}g"):
        if group.get("class") == "bar":
            rect = group[1].attrib
            rows.setdefault(rect["y"], []).append((float(rect["x"]), float(rect["x"]) + float(rect["width"])))
    assert sorted(len(row) for row in rows.values()) == [1, 2, 2]
    for row in rows.values():
        assert all(left[1] <= right[0] + 2 for left, right in pairwise(sorted(row)))


def test_a_long_rest_is_drawn_short_and_says_how_long_it_was() -> None:
    week = 7 * 86_400
    events = stays((S.waiting, 0), (S.streaming, week), (S.waiting, week + 10), (S.streaming, week + 20))
    widths: dict[str | None, float] = {}
    for group in parsed(timeline([*events, *stays((S.waiting, week + 30))])).iter(f"{SVG}g"):
        if group.get("class") == "bar":
            widths.setdefault(group[0].text, float(group[1].attrib["width"]))
    assert 2 < widths["state waiting, 7 d"] < widths["state streaming, 10 s"] / 5


def test_a_failed_compaction_is_told_from_one_that_was_stored() -> None:
    events = [
        *stays((S.compacting, 0)),
        phase("started", 1),
        phase("failed", 2),
        phase("started", 3),
        phase("stored", 4),
    ]
    assert [kind for kind, _ in bars(timeline([*events, phase("finished", 5)]))] == [
        "state",
        "failed compaction",
        "compaction",
    ]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("draw", [path, timeline])
def test_what_models_and_tools_call_things_is_text_and_nothing_else(draw: Any, name: str) -> None:
    """A drawing is put into pages: no name may become an element, an attribute, or break the document."""
    plain = [*stays((S.waiting, 0), (S.executing_tools, 1)), asked("name"), answered("name"), *stays((S.waiting, 5))]
    hostile = [*stays((S.waiting, 0), (S.executing_tools, 1)), asked(name), answered(name), *stays((S.waiting, 5))]
    drawn = parsed(draw(hostile))
    known = {(one.tag, *sorted(one.attrib)) for one in parsed(draw(plain)).iter()}
    assert {(one.tag, *sorted(one.attrib)) for one in drawn.iter()} <= known
    words = "".join(drawn.itertext())
    assert not set(words) & set("\x00\x1b\x07\u202e\u2066")
    if draw is timeline and name.isprintable():
        assert f"local call {name}, 2 s" in words


def test_a_name_that_is_hidden_is_spelled_out() -> None:
    events = [*stays((S.waiting, 0)), asked("\u202egnp\x00")]
    assert ("local call", r"local call \u202egnp\x00") in {
        (kind, words.replace(", since 2026-11-24 12:00:02", "")) for kind, words in bars(timeline(events))
    }


@pytest.mark.parametrize("draw", [path, timeline])
def test_a_long_life_is_drawn_in_its_latest_part_and_says_so(draw: Any) -> None:
    states = [(S.streaming if at % 2 else S.waiting, float(at)) for at in range(1000)]
    drawn = parsed(draw(stays(*states)))
    shown = [one for one in drawn.iter(f"{SVG}g") if one.get("class") in ("stay", "bar")]
    most = LISTED if draw is path else DRAWN
    assert len([one for one in shown if one.get("data-kind", "state") == "state"]) == most
    assert f"{1000 - most} earlier" in "".join(drawn.itertext())


def test_of_a_long_life_what_was_over_before_its_latest_part_is_left_out() -> None:
    calls = [asked("over", "a", at=1), answered("over", "a", at=2), asked("goes on", "b", at=3)]
    states = [(S.streaming if at % 2 else S.waiting, float(at)) for at in range(2 * DRAWN)]
    events = sorted([*stays(*states), *calls], key=lambda event: event.at or START)
    assert [words for kind, words in bars(timeline(events)) if kind == "local call"] == ["local call goes on"]


@pytest.mark.parametrize("draw", [path, timeline])
@pytest.mark.parametrize(
    "events",
    [[], [None], ["<svg/>"], [PartEvent(step=1, attempt=1, index=0, part=PartDelta(type="text"), at=START)]],
    ids=["none", "None", "text", "no state"],
)
def test_what_is_no_life_is_refused(draw: Any, events: Sequence[Any]) -> None:
    for one in (events, iter(events)):
        with pytest.raises(InvalidArgument, match=r"^events.*: must be"):
            draw(one)


@pytest.mark.parametrize("draw", [path, timeline])
def test_a_life_of_one_moment_can_be_drawn(draw: Any) -> None:
    """A clock that is moved by hand stands still, and a chat that was just created has had no time."""
    parsed(draw(stays((S.waiting, 0))))
    for one in parsed(timeline(stays((S.waiting, 0), (S.pending, 0), (S.streaming, 0)))).iter(f"{SVG}rect"):
        assert float(one.attrib.get("x", 0)) + float(one.attrib["width"]) <= WIDTH


# Clocks that are set


def rects(drawing: str, kind: str) -> list[tuple[float, float]]:
    """Return where the bars of a kind begin and end."""
    groups = [one for one in parsed(drawing).iter(f"{SVG}g") if one.get("data-kind") == kind]
    places = [(float(one[1].attrib["x"]), float(one[1].attrib["width"])) for one in groups]
    return [(x, x + width) for x, width in places]


def test_where_the_clock_was_set_back_no_time_passes() -> None:
    """By 2 hours, while the model answered: all before that and after it is drawn as long as it was."""
    back = -7200
    events = stays((S.waiting, 0), (S.streaming, 10), (S.waiting, back + 40), (S.streaming, back + 45),
                   (S.waiting, back + 55))  # fmt: skip
    told = [words for _, words in titles(timeline(events))]
    assert told[:4] == ["state waiting, 10 s", "state streaming, 0 s", "state waiting, 5 s", "state streaming, 10 s"]
    assert told[4].startswith("state waiting, since 2026-11-24 10:00:55")
    listed = "".join(parsed(path(events)).itertext())
    assert "2 times, 10 s" in listed
    assert "3 times, 15 s" in listed


def test_a_life_whose_first_stay_had_no_time_can_be_drawn_although_the_clock_went_back() -> None:
    """A helper is created and asked in one commit. One second of a clock that is corrected is enough."""
    drawing = timeline(stays((S.waiting, 0), (S.pending, 0), (S.streaming, -1), (S.waiting, -1)))
    assert len(rects(drawing, "state")) == 4


CLOCKS: Final = st.one_of(st.datetimes(timezones=st.just(UTC)), st.integers(-7200, 7200).map(after), st.just(START))
HAPPENED: Final = st.one_of(
    st.sampled_from(ChatState).map(lambda state: stays((state, 0))[0]),
    st.sampled_from([asked("a", "a"), asked("b", "b", Executor.client), answered("a", "a"), answered("b", "b")]),
    st.sampled_from([phase("started", 0), phase("finished", 0), phase("failed", 0)]),
    st.sampled_from([*failed(1, 1, 0), *failed(1, 2, 0, delay=60), *broken(0), shown(1, 2, 0)]),
)


@settings(max_examples=examples(150))
@given(st.lists(st.tuples(HAPPENED, CLOCKS), max_size=30), CLOCKS)
def test_any_life_can_be_drawn_however_its_clock_was_set(
    happened: list[tuple[Event, datetime]], begun: datetime
) -> None:
    """Back, forth, by years: bars stand on the page, states in their order, and no time is less than none."""
    events = [msgspec.structs.replace(event, at=at) for event, at in [(stays((S.waiting, 0))[0], begun), *happened]]
    drawing = timeline(events)
    for kind in {kind for kind, _ in titles(drawing)}:
        assert all(0 <= left <= right <= WIDTH for left, right in rects(drawing, kind))
    states = rects(drawing, "state")
    assert all(left[0] <= right[0] and left[1] <= right[0] + 2.1 for left, right in pairwise(states))
    for drawn in (drawing, path(events)):
        assert not [words for words in parsed(drawn).itertext() if re.search(r"(^|[ ,])-\d", words)]
