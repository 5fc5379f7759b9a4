"""A chat's path and timeline tell what its events tell, whatever models, tools and users have called things."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from support.eventful_life import look, rich_life, rich_script
from support.rich_chat import engine_on, live
from turnwise import CompactionPolicy, Engine, Event, InvalidArgument, Settings
from turnwise.diagrams import mermaid, path, slide, sticker, timeline
from turnwise.diagrams.durations import duration
from turnwise.diagrams.lived import life_of
from turnwise.diagrams.path import LISTED
from turnwise.diagrams.slide import WAYS
from turnwise.diagrams.timeline import DRAWN, LANES, WIDTH
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.events import CompactionEvent, MessageEvent, PartDelta, PartEvent, StatusEvent, ToolResultEvent
from turnwise.states.messages import Message, ToolCallPart
from turnwise.states.names import CallStatus, ChatState, Executor
from turnwise.testing import ManualClock

SVG = "{http://www.w3.org/2000/svg}"
START = datetime(2026, 11, 24, 12, tzinfo=UTC)
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


def bars(drawing: str) -> list[tuple[str, str]]:
    groups = (group for group in parsed(drawing).iter(f"{SVG}g") if group.get("class") == "bar")
    return [(group.attrib["data-kind"], (group[0].text or "").rpartition(", ")[0]) for group in groups]


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def stays(*states: tuple[ChatState, float]) -> list[Event]:
    before = [None, *(state for state, _ in states)]
    pairs = zip(states, before, strict=False)
    return [StatusEvent(state=state, previous=previous, at=after(at)) for (state, at), previous in pairs]


def asked(name: str, call_id: str = "c", executor: Executor = Executor.local, at: float = 2) -> Event:
    call = ToolCallPart(call_id=call_id, name=name, arguments={}, executor=executor)
    message = Message(id="m", role="assistant", parts=(call,), turn=1, step=1, created_at=after(at), position=2)
    return MessageEvent(message=message, at=after(at))


def answered(name: str, call_id: str = "c", at: float = 4) -> Event:
    status = CallStatus.succeeded
    return ToolResultEvent(
        step=1, call_id=call_id, index=0, name=name, output=1, is_error=False, outcome=status, at=after(at)
    )


def phase(name: Any, at: float) -> Event:
    return CompactionEvent(phase=name, step=1, at=after(at))


def eventful() -> list[Event]:
    """Return a life with a bar of every kind but those of attempts, a long rest, and calls at once."""
    executors = {"t": Executor.local, "c": Executor.client, "h": Executor.chat}
    return [
        *stays((S.waiting, 0), (S.streaming, 90_000)),
        *(asked(one, one, how, at=90_002) for one, how in executors.items()),
        *stays((S.executing_tools, 90_003)),
        answered("t", "t", at=90_005.25),
        *stays((S.requires_action, 90_006)),
        answered("c", "c", at=90_066),
        *stays((S.compacting, 90_070)),
        phase("started", 90_071),
        phase("failed", 90_072),
        phase("started", 90_073),
        phase("stored", 90_074),
        *stays((S.error, 90_075), (S.interrupted, 90_076), (S.waiting, 90_077)),
    ]


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


async def test_a_path_counts_what_the_events_of_a_real_chat_tell() -> None:
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


async def test_a_timeline_has_a_bar_for_whatever_took_time() -> None:
    clock = ManualClock()
    model = ScriptedModel(rich_script(), context_limit=100)
    settings = Settings(compaction=CompactionPolicy(context_limit=100))
    async with Engine("sqlite://", model=model, tools=[look], settings=settings, clock=clock) as engine:
        events = [event async for event in engine.events(await rich_life(engine, clock), follow=False)]
    drawing = timeline(events)
    found = Counter(kind for kind, _ in bars(drawing))
    assert found["failed attempt"] >= 1
    assert found["attempt"] >= 4
    assert found["local call"] == found["client call"] == found["compaction"] == 1
    assert found["state"] == sum(isinstance(event, StatusEvent) for event in events)
    marks = [one.get("class") for one in parsed(drawing).iter()]
    assert marks.count("stop") == 1
    assert marks.count("said") == 3, "two messages and an edited one"


def test_a_helper_a_call_of_the_client_and_a_tool_stand_in_lanes_of_their_own() -> None:
    executors = {"t": Executor.local, "c": Executor.client, "h": Executor.chat, "p": Executor.provider}
    events = [*stays((S.waiting, 0), (S.streaming, 1)), *(asked(one, one, how) for one, how in executors.items())]
    assert bars(timeline(events))[3:] == [
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
    for given in (events, iter(events)):
        with pytest.raises(InvalidArgument, match=r"^events.*: must be"):
            draw(given)


@pytest.mark.parametrize("draw", [path, timeline])
def test_a_life_of_one_moment_can_be_drawn(draw: Any) -> None:
    """A clock that is moved by hand stands still, and a chat that was just created has had no time."""
    parsed(draw(stays((S.waiting, 0))))
    for one in parsed(timeline(stays((S.waiting, 0), (S.pending, 0), (S.streaming, 0)))).iter(f"{SVG}rect"):
        assert float(one.attrib.get("x", 0)) + float(one.attrib["width"]) <= WIDTH


def test_what_is_not_over_goes_on_until_now() -> None:
    life = life_of([*stays((S.waiting, 0), (S.executing_tools, 1)), asked("a")])
    assert life.stays[-1].until is None
    assert [one.until for one in life.activities] == [None]
    assert {kind for kinds in LANES.values() for kind in kinds} >= {one.kind for one in life.activities}


async def test_calls_of_a_history_that_was_imported_are_over() -> None:
    """No event but the message tells of their results."""
    call = {"type": "tool_call", "call_id": "a", "name": "look", "arguments": {}}
    result = {"type": "tool_result", "call_id": "a", "name": "look", "output": "there"}
    history = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "parts": [call]},
        {"role": "tool", "parts": [result]},
    ]
    async with Engine("sqlite://", model="demo", settings=Settings(run_worker=False)) as engine:
        chat = await engine.create_chat(history=history)
        life = life_of([event async for event in engine.events(chat.id, follow=False)])
    assert [(one.name, one.until is None) for one in life.activities] == [("look", False)]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (0.25, "0.25 s"), (9.94, "9.9 s"), (12.4, "12 s"), (60, "1 min"), (61, "1 min 1 s"), (3600, "1 h"),
     (5460, "1 h 31 min"), (86_400, "1 d"), (183_600, "2 d 3 h"), (-1, "0 s"), (59.9, "60 s")],
)  # fmt: skip
def test_a_duration_is_told_in_two_units(seconds: float, words: str) -> None:
    assert duration(timedelta(seconds=seconds)) == words
