"""The path of one chat: which states it was in, how often and how long, and its latest stays with their times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from turnwise.diagrams.document import document
from turnwise.diagrams.durations import duration, moment
from turnwise.diagrams.life import ChatLife, Stay, life_of
from turnwise.diagrams.markup import MONO, Pen, tag, text
from turnwise.diagrams.palette import FAINT, INK, MUTED
from turnwise.diagrams.slide import WAYS, graph
from turnwise.states.events import Event
from turnwise.states.names import ChatState
from turnwise.states.values.checked import checked

LISTED: Final = 36
"""How many stays are listed; they are the latest."""
_COLUMNS: Final = 3
_LEADING: Final = 20
_MARGIN: Final = 60.0

_HEAD: Final = Pen(15, INK, "bold")
_TIME: Final = Pen(12, MUTED, family=MONO)
_STATE: Final = Pen(12, INK, "600", family=MONO)
_LONG: Final = Pen(12, MUTED)


@checked
def path(events: Iterable[Event]) -> str:
    """Return the path that a chat has taken through its states as an SVG document, from its stored events.

    Raises:
        InvalidArgument: `events` are not those of a chat, from the first on.
    """
    life = life_of(events)
    taken = Counter((stay.previous, str(stay.state)) for stay in life.stays)
    listed = life.stays[-LISTED:]
    lines = -(-len(listed) // _COLUMNS)
    drawn = graph(
        {state: _spent(life, state) for state in ChatState},
        {pair: _times(count) for pair, count in taken.items()},
        lit=life.stays[-1].state,
        bold=taken.keys(),
    )
    return document(
        "The path of a chat",
        f"From {moment(life.stays[0].since.at)} to {moment(life.end.at)} UTC{_beside(taken)}",
        *drawn.elements,
        *_list(listed, earlier=len(life.stays) - len(listed), top=drawn.height + 40, width=drawn.width),
        width=drawn.width,
        height=drawn.height + 40 + 60 + lines * _LEADING + 30,
    )


def _beside(taken: Mapping[tuple[str, str], int]) -> str:
    """Return in words what the chat has taken and the slide has no arrow for."""
    others = [f"{one[0]} to {one[1]}, {_times(count)}" for one, count in taken.items() if one not in WAYS]
    return f". Without an arrow here: {'; '.join(others)}" if others else ""


def _spent(life: ChatLife, state: ChatState) -> str:
    stays = [stay for stay in life.stays if stay.state is state]
    if not stays:
        return "never"
    spent = sum((stay.lasted(life.end) for stay in stays), timedelta())
    return f"{_times(len(stays))}, {duration(spent)}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _list(stays: Sequence[Stay], *, earlier: int, top: float, width: float) -> Iterable[str]:
    yield tag("path", d=f"M{_MARGIN:.0f},{top:.1f} H{width - _MARGIN:.1f}", stroke=FAINT)
    words = f"The latest stays; {earlier} earlier ones are not listed" if earlier else "Every stay"
    yield text((_MARGIN, top + 28), words, _HEAD)
    lines, step = -(-len(stays) // _COLUMNS), (width - 2 * _MARGIN) / _COLUMNS
    for place, stay in enumerate(stays):
        x, y = _MARGIN + place // lines * step, top + 56 + place % lines * _LEADING
        stayed = "until now" if stay.until is None else duration(stay.lasted(stay.until))
        yield tag(
            "g",
            text((x, y), moment(stay.since.at), _TIME),
            text((x + 150, y), stay.state, _STATE),
            text((x + 265, y), stayed, _LONG),
            class_="stay",
            data_state=stay.state,
        )
