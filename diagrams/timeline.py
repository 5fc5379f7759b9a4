"""The timeline of one chat: its states, attempts, calls, helpers and compactions as bars over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from turnwise.diagrams.durations import duration, moment
from turnwise.diagrams.extract import machine
from turnwise.diagrams.lived import Activity, Instant, Kind, Life, Stay, life_of
from turnwise.diagrams.markup import GLYPH_WIDTH, Pen, legible, tag, text, title
from turnwise.diagrams.palette import FAINT, INK, KIND_TINT, MUTED, Tint
from turnwise.diagrams.slide import document
from turnwise.states.checked import checked
from turnwise.states.events import Event
from turnwise.states.names import RESTING, ChatState

WIDTH: Final = 1680
_LEFT: Final = 150.0
_RIGHT: Final = WIDTH - 40.0
_TOP: Final = 130.0
_BAR: Final = 22.0
_LANE: Final = 30.0
_THIN: Final = 2.0
DRAWN: Final = 300
"""How many stays are drawn; they are the latest."""
_RESTS: Final = 0.25
"""How long all rests together are drawn at most, as a share of the time in which something went on."""
_FEW: Final = 3
"""Fewer rests share as much as this many."""

LANES: Final[dict[str, tuple[Kind, ...]]] = {
    "model": ("attempt", "failed attempt"),
    "compactions": ("compaction", "failed compaction"),
    "tools": ("local call",),
    "client": ("client call",),
    "helpers": ("helper",),
}
_FAILED: Final = Tint("#fbe3e0", "#b3261e")
_TINTS: Final[dict[Kind, Tint]] = {
    "attempt": Tint("#dbe9f9", "#3d4fa3"),
    "failed attempt": _FAILED,
    "local call": Tint("#d9f0ee", "#0f6b73"),
    "client call": Tint("#faefd2", "#a35a00"),
    "helper": Tint("#ece5f9", "#6b4fb3"),
    "compaction": Tint("#e6ebf0", "#5f6b78"),
    "failed compaction": _FAILED,
}
_STOP: Final = "#d9480f"

_NAME: Final = Pen(13, INK, "bold")
_WORDS: Final = Pen(11, INK)
_TIME: Final = Pen(11, MUTED)


@checked
def timeline(events: Iterable[Event]) -> str:
    """Return a chat's life so far as an SVG document, from its stored events; of a long one the latest part.

    Time runs to the right. Where the chat rested, a long time is drawn short; its bar says how long it was. Where the
    clock was set back, no time passes.

    Raises:
        InvalidArgument: `events` are not those of a chat, from the first on.
    """
    life = life_of(events)
    stays = life.stays[-DRAWN:]
    scale = _Scale(stays, life.end)
    left_out = len(life.stays) - len(stays)
    pieces, bottom = _lanes(life, stays, scale)
    earlier = f"; {left_out} earlier stays are left out" if left_out else ""
    drawn = f"From {moment(stays[0].since.at)} to {moment(life.end.at)} UTC{earlier}"
    return document(
        "The timeline of a chat",
        f"{drawn}. Dots: a user's message. Red lines: a stop.",
        *_marks(life, stays, scale, bottom),
        *pieces,
        height=bottom + 30,
        width=WIDTH,
    )


class _Scale:
    """Where a time is drawn. Between two changes of state time is even; rests are shortened."""

    def __init__(self, stays: Sequence[Stay], end: Instant) -> None:
        spans = [stay.lasted(end).total_seconds() for stay in stays]
        rests = [stay.state in RESTING for stay in stays]
        active = sum(span for span, rest in zip(spans, rests, strict=True) if not rest) or 1.0
        longest = _RESTS * active / max(sum(rests), _FEW)
        drawn = [min(span, longest) if rest else span for span, rest in zip(spans, rests, strict=True)]
        drawn[-1] = max(drawn[-1], longest)
        unit = (_RIGHT - _LEFT) / sum(drawn)
        self._times = [*(stay.since.passed for stay in stays), end.passed]
        self._places = [_LEFT]
        for span in drawn:
            self._places.append(self._places[-1] + span * unit)

    def x(self, at: Instant | None) -> float:
        """Return the place of an instant; that of one before all stays is the left end, that of none the right."""
        if at is None:
            return self._places[-1]
        passed = max(at.passed, self._times[0])
        for (since, until), (left, right) in zip(pairwise(self._times), pairwise(self._places), strict=True):
            if passed < until:
                return left + (passed - since) / (until - since) * (right - left)
        return self._places[-1]


def _lanes(life: Life, stays: Sequence[Stay], scale: _Scale) -> tuple[list[str], float]:
    kinds = {node.id: KIND_TINT[node.kind] for node in machine().states}
    y, first = _TOP, stays[0].since.passed
    pieces = [_label("state", y), *(_bar(scale, y, stay, kinds[stay.state]) for stay in stays)]
    y += _LANE
    for name, drawn in LANES.items():
        latest = (one for one in life.activities if one.until is None or one.until.passed >= first)
        rows = _rows(sorted((one for one in latest if one.kind in drawn), key=lambda one: one.since.passed))
        pieces += [_label(name, y)] if rows else []
        for row in rows:
            pieces += [_bar(scale, y, one, _TINTS[one.kind]) for one in row]
            y += _LANE
    return pieces, y


def _rows(activities: Iterable[Activity]) -> list[list[Activity]]:
    """Put activities into as few rows as none overlaps another."""
    rows: list[list[Activity]] = []
    for one in activities:
        for row in rows:
            before = row[-1].until
            if before is not None and before.passed <= one.since.passed:
                row.append(one)
                break
        else:
            rows.append([one])
    return rows


def _marks(life: Life, stays: Sequence[Stay], scale: _Scale, bottom: float) -> Iterable[str]:
    free = _LEFT
    for stay in stays:
        x = scale.x(stay.since)
        if stay.state not in RESTING and stay.previous in RESTING and x >= free:
            yield tag("path", d=f"M{x:.1f},{_TOP - 14:.0f} V{bottom:.0f}", stroke=FAINT)
            yield text((x, _TOP - 20), f"{stay.since.at:%m-%d %H:%M:%S}", _TIME)
            free = x + 100
        if stay.state is ChatState.interrupted:
            drawn = tag(
                "path", title("stop"), d=f"M{x:.1f},{_TOP - 6:.0f} V{bottom:.0f}", stroke=_STOP, stroke_width=1.5
            )
            yield tag("g", drawn, class_="stop")
    for at in life.message_times:
        if at.passed >= stays[0].since.passed:
            yield tag(
                "circle", title(f"message, {moment(at.at)}"), cx=scale.x(at), cy=_TOP - 8, r=3, fill=INK, class_="said"
            )


def _label(words: str, y: float) -> str:
    return text((40, y + 15), words, _NAME)


def _bar(scale: _Scale, y: float, one: Activity | Stay, tint: Tint) -> str:
    """Draw what took time; its name stands in it if there is room."""
    kind, name = ("state", str(one.state)) if isinstance(one, Stay) else (one.kind, legible(one.name))
    left = scale.x(one.since)
    width = max(scale.x(one.until) - left, _THIN)
    room = len(name) * _WORDS.size * GLYPH_WIDTH + 10 < width
    return tag(
        "g",
        title(f"{kind} {name}, {_long(one.since, one.until)}"),
        tag("rect", x=left, y=y, width=width, height=_BAR, rx=min(4, width / 2), fill=tint.fill, stroke=tint.stroke),
        *([text((left + 5, y + 15), name, _WORDS)] if room else []),
        class_="bar",
        data_kind=kind,
    )


def _long(since: Instant, until: Instant | None) -> str:
    return f"since {moment(since.at)}" if until is None else duration(until.passed - since.passed)
