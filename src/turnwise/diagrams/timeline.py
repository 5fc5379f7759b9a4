"""The timeline of one chat: its states, attempts, calls, subagents and compactions as bars over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from turnwise.diagrams.document import document
from turnwise.diagrams.durations import Scale, duration, moment
from turnwise.diagrams.life import Activity, ChatLife, Instant, Kind, Stay, life_of
from turnwise.diagrams.markup import Pen, legible, tag, text, title
from turnwise.diagrams.model import machine
from turnwise.diagrams.palette import FAINT, HALO, INK, KIND_TINT, MUTED, PAPER, Tint
from turnwise.states.events import Event
from turnwise.states.names import RESTING, ChatState
from turnwise.states.values.checked import checked

WIDTH: Final = 1680
_LEFT: Final = 150.0
_RIGHT: Final = WIDTH - 160.0
"""Where time ends; beside it is room for the name of the last bar."""
_TOP: Final = 130.0
_BAR: Final = 22.0
_LANE: Final = 30.0
_LEADING: Final = 14.0
_THIN: Final = 2.0
_BREAK: Final = 14.0
DRAWN: Final = 300
"""How many stays are drawn; they are the latest."""
_MOST_ROWS: Final = 16
"""How many rows names may take beside or below their bars; a pointer still shows those for which no room is left."""
_LONGEST_NAME: Final = 22

LANES: Final[dict[str, tuple[Kind, ...]]] = {
    "model": ("attempt", "failed attempt"),
    "compactions": ("compaction", "failed compaction"),
    "tools": ("local call",),
    "client": ("client call",),
    "subagents": ("subagent",),
}
_FAILED: Final = Tint("#fbe3e0", "#b3261e")
_TINTS: Final[dict[Kind, Tint]] = {
    "attempt": Tint("#dbe9f9", "#3d4fa3"),
    "failed attempt": _FAILED,
    "local call": Tint("#d9f0ee", "#0f6b73"),
    "client call": Tint("#faefd2", "#a35a00"),
    "subagent": Tint("#ece5f9", "#6b4fb3"),
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

    Time runs to the right. Where the chat was at rest, a long time is drawn short: its bar is broken and says how
    long it was. Where the clock was set back, no time passes.

    Raises:
        InvalidArgument: `events` are not those of a chat, from the first on.
    """
    life = life_of(events)
    stays = life.stays[-DRAWN:]
    scale = Scale(stays, life.end, left=_LEFT, right=_RIGHT)
    left_out = len(life.stays) - len(stays)
    pieces, bottom = _lanes(life, stays, scale)
    earlier = f"; {left_out} earlier stays are left out" if left_out else ""
    broken = " Broken bars: a rest that was longer than it is drawn." if scale.shortened else ""
    rings = ", rings one that steered the turn" if life.steering_times else ""
    drawn = f"From {moment(stays[0].since.at)} to {moment(life.end.at)} UTC{earlier}"
    return document(
        "The timeline of a chat",
        f"{drawn}. Dots: a user's message{rings}. Red lines: a stop.{broken}",
        *_marks(life, stays, scale, bottom),
        *pieces,
        height=bottom + 30,
        width=WIDTH,
    )


class _Bar(msgspec.Struct, frozen=True):
    """What took time, and from where to where it is drawn."""

    one: Activity | Stay
    name: str
    left: float
    right: float
    broken: bool = False

    @property
    def is_named_inside(self) -> bool:
        """Whether there is room for the name in the bar."""
        return self.left + _WORDS.width(self.name) + 10 + (_BREAK if self.broken else 0) < self.right

    @property
    def end(self) -> float:
        """Where the bar ends, or its name if that stands beside it."""
        return self.right if self.is_named_inside else self.right + 4 + _WORDS.width(self.name)

    def drawn(self, y: float, tint: Tint, *, named: bool = True) -> str:
        """Return the bar as a group, with its name in it or, if `named`, beside it."""
        one = self.one
        kind, name = ("state", str(one.state)) if isinstance(one, Stay) else (one.kind, legible(one.name))
        x = self.left + 5 if self.is_named_inside else self.right + 4
        width = self.right - self.left
        return tag(
            "g",
            title(f"{kind} {name}, {_long(one.since, one.until)}"),
            tag(
                "rect",
                x=self.left,
                y=y,
                width=width,
                height=_BAR,
                rx=min(4, width / 2),
                fill=tint.fill,
                stroke=tint.stroke,
            ),
            *([_break(self.right - _BREAK / 2, y, tint)] if self.broken and width >= _BREAK else []),
            *([text((x, y + 15), self.name, _WORDS)] if named or self.is_named_inside else []),
            class_="bar",
            data_kind=kind,
        )


def _lanes(life: ChatLife, stays: Sequence[Stay], scale: Scale) -> tuple[list[str], float]:
    pieces, y = _states(stays, scale)
    first = stays[0].since.passed
    for name, drawn in LANES.items():
        latest = (one for one in life.activities if one.until is None or one.until.passed >= first)
        found = sorted((one for one in latest if one.kind in drawn), key=lambda one: one.since.passed)
        rows = _rows(_bar(scale, one, _excerpt(one.name)) for one in found)
        pieces += [_label(name, y)] if rows else []
        for row in rows:
            starts = [*(bar.left for bar in row[1:]), float(WIDTH)]
            pieces += [
                bar.drawn(y, _TINTS[bar.one.kind], named=bar.end <= start)
                for bar, start in zip(row, starts, strict=True)
                if isinstance(bar.one, Activity)
            ]
            y += _LANE
    return pieces, y


def _states(stays: Sequence[Stay], scale: Scale) -> tuple[list[str], float]:
    """Return the states as bars in a row, below it the names of those that have no room for theirs, and its end."""
    kinds = {node.id: KIND_TINT[node.kind] for node in machine().states}
    bars = []
    for stay in stays:
        broken = stay.since in scale.shortened
        lasted = f", {_long(stay.since, stay.until)}" if broken else ""
        bars.append(_bar(scale, stay, f"{stay.state}{lasted}", broken=broken))
    pieces = [bar.drawn(_TOP, kinds[stay.state], named=False) for bar, stay in zip(bars, stays, strict=True)]
    named = _names_below([bar for bar in bars if not bar.is_named_inside])
    for bar, row in named:
        y = _TOP + _BAR + (row + 1) * _LEADING
        line = f"M{bar.left + 1:.1f},{_TOP + _BAR:.0f} V{y:.0f}"
        pieces.append(tag("path", d=line, stroke=MUTED, stroke_width=0.5))
        pieces.append(tag("g", text((bar.left + 4, y), bar.name, _WORDS), **HALO))
    deepest = max((row + 1 for _, row in named), default=0)
    return [_label("state", _TOP), *pieces], _TOP + _LANE + deepest * _LEADING


def _names_below(bars: Sequence[_Bar]) -> list[tuple[_Bar, int]]:
    """Return bars with the row of their name, which lies on no other, and on no line that leads down to another.

    Names stand right of their line, so those of later bars come first; one that would stand too low is left out.
    """
    placed: list[tuple[_Bar, int]] = []
    for bar in reversed(bars):
        end = bar.left + 10 + _WORDS.width(bar.name)
        row = max((row for later, row in placed if later.left < end), default=-1) + 1
        if row < _MOST_ROWS:
            placed.append((bar, row))
    return placed


def _rows(bars: Iterable[_Bar]) -> list[list[_Bar]]:
    """Put bars into as few rows as none overlaps another, nor the name beside it while there are not too many rows."""
    rows: list[list[_Bar]] = []
    for bar in bars:
        free = [row for row in rows if row[-1].end <= bar.left]
        if not free and len(rows) >= _MOST_ROWS:
            free = [row for row in rows if row[-1].right <= bar.left]
        if free:
            free[0].append(bar)
        else:
            rows.append([bar])
    return rows


def _marks(life: ChatLife, stays: Sequence[Stay], scale: Scale, bottom: float) -> Iterator[str]:
    free, before = _LEFT, ""
    for stay in stays:
        x = scale.x(stay.since)
        at = moment(stay.since.at)
        if stay.state not in RESTING and stay.previous in RESTING and x >= free and at != before:
            yield tag("path", d=f"M{x:.1f},{_TOP - 14:.0f} V{bottom:.0f}", stroke=FAINT)
            day, _, time = at.partition(" ")
            words = time if before.startswith(day) else at
            yield tag("g", text((x, _TOP - 20), words, _TIME), class_="time")
            free, before = x + _TIME.width(words) + 10, at
        if stay.state is ChatState.interrupted:
            drawn = tag(
                "path", title("stop"), d=f"M{x:.1f},{_TOP - 6:.0f} V{bottom:.0f}", stroke=_STOP, stroke_width=1.5
            )
            yield tag("g", drawn, class_="stop")
    for at_once in life.message_times:
        if at_once.passed >= stays[0].since.passed:
            steers = at_once in life.steering_times
            words, x = f"message{' that steers' if steers else ''}, {moment(at_once.at)}", scale.x(at_once)
            fill = PAPER if steers else INK
            yield tag("circle", title(words), cx=x, cy=_TOP - 8, r=3, fill=fill, stroke=INK, class_="said")


def _label(words: str, y: float) -> str:
    return text((40, y + 15), words, _NAME)


def _bar(scale: Scale, one: Activity | Stay, name: str, *, broken: bool = False) -> _Bar:
    left = scale.x(one.since)
    return _Bar(one, name, left, max(scale.x(one.until), left + _THIN), broken)


def _excerpt(name: str) -> str:
    words = legible(name)
    return words if len(words) <= _LONGEST_NAME else f"{words[: _LONGEST_NAME - 1]}…"


def _break(x: float, y: float, tint: Tint) -> str:
    """Return two slanted strokes across a bar, as on a broken axis."""
    gap = f"M{x - 4:.1f},{y + _BAR + 3:.0f} l4,-{_BAR + 6:.0f} l4,0 l-4,{_BAR + 6:.0f} Z"
    edges = f"M{x - 4:.1f},{y + _BAR + 3:.0f} l4,-{_BAR + 6:.0f} m4,0 l-4,{_BAR + 6:.0f}"
    return tag("g", tag("path", d=gap, fill=PAPER), tag("path", d=edges, stroke=tint.stroke), class_="break")


def _long(since: Instant, until: Instant | None) -> str:
    return f"since {moment(since.at)}" if until is None else duration(until.passed - since.passed)
