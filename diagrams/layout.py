"""The layout, the one hand-made part of the picture. Names are those of states and groups.

The happy path runs from left to right at one height; the leased states stand in a column; what stops a chat lies
below. A route leads from a border, through corners, to a border; routes to one target may share their last part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from turnwise.diagrams.grouping import SAME
from turnwise.diagrams.markup import Point


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, and the points on its border, counted from its upper left corner."""

    x: float
    y: float
    width: float
    height: float

    def left(self, down: float) -> Point:
        """Return a point on the left border."""
        return self.x, self.y + down

    def right(self, down: float) -> Point:
        """Return a point on the right border."""
        return self.x + self.width, self.y + down

    def top(self, along: float) -> Point:
        """Return a point on the upper border."""
        return self.x + along, self.y

    def bottom(self, along: float) -> Point:
        """Return a point on the lower border."""
        return self.x + along, self.y + self.height


@dataclass(frozen=True, slots=True)
class Route:
    """The way of an arrow, and where its captions stand: the point is their lower or upper edge, or their middle."""

    points: tuple[Point, ...]
    label: Point
    lift: Literal["above", "beside", "below"] = "above"
    anchor: Literal["start", "end"] = "start"
    stacked: bool = False
    """Whether each condition has a line of its own below its triggers."""


WIDTH: Final = 1680
HEIGHT: Final = 1245

_START: Final = Box(75, 335, 20, 20)
_WAITING: Final = Box(40, 425, 220, 130)
_PENDING: Final = Box(450, 425, 220, 130)
_EXECUTING: Final = Box(890, 235, 250, 120)
_STREAMING: Final = Box(890, 430, 250, 120)
_COMPACTING: Final = Box(890, 620, 250, 120)
_ACTION: Final = Box(1390, 425, 220, 130)
_INTERRUPTED: Final = Box(430, 1035, 250, 140)
_ERROR: Final = Box(1025, 1035, 250, 140)
_UNKNOWN: Final = Box(1440, 1165, 200, 36)
_EVERY: Final = Box(1440, 1035, 200, 100)
_BUSY: Final = Box(405, 140, 1235, 790)
_LEASED: Final = Box(860, 190, 445, 575)

BOXES: Final = {
    "new": _START,
    "waiting": _WAITING,
    "pending": _PENDING,
    "streaming": _STREAMING,
    "executing_tools": _EXECUTING,
    "compacting": _COMPACTING,
    "requires_action": _ACTION,
    "interrupted": _INTERRUPTED,
    "error": _ERROR,
    "unknown": _UNKNOWN,
}
FRAMES: Final = {"every state": _EVERY, "busy": _BUSY, "leased": _LEASED}
FRAME_TEXT: Final = {
    "every state": ((1453.0, 1059.0), 174.0),
    "busy": ((1385.0, 166.0), 240.0),
    "leased": ((873.0, 214.0), 240.0),
}
"""Where the name of a frame stands, and how wide the text below it may be."""

_BACK: Final = 724.0
"""Where the ways back to `pending` join."""
_REST: Final = 1335.0
"""Where the ways to rest rise, to run above everything to `waiting`."""
_CLIENT: Final = 1362.0
"""Where the ways to the client's turn join."""
_SKY: Final = 112.0

_TO_WAITING: Final = ((_REST, _SKY), (195.0, _SKY), _WAITING.top(155))
_TO_ACTION: Final = ((_CLIENT, 515.0), _ACTION.left(90))
_TO_PENDING_ABOVE: Final = ((_BACK, 462.0), _PENDING.right(37))
_TO_PENDING_BELOW: Final = ((_BACK, 530.0), _PENDING.right(105))

_stacked: Final = partial(Route, stacked=True)

ROUTES: Final = {
    ("new", "waiting"): Route((_START.bottom(10), _WAITING.top(45)), (93, 392), "beside"),
    ("waiting", "pending"): _stacked((_WAITING.right(45), _PENDING.left(45)), (268, 464)),
    ("pending", "waiting"): _stacked((_PENDING.left(95), _WAITING.right(95)), (268, 526), "below"),
    # Into the leased states and between them.
    ("pending", "executing_tools"): _stacked((_PENDING.top(195), (645, 265), _EXECUTING.left(30)), (737, 259)),
    ("pending", "streaming"): _stacked((_PENDING.right(65), _STREAMING.left(60)), (737, 484)),
    ("pending", "compacting"): _stacked((_PENDING.bottom(190), (640, 712), _COMPACTING.left(92)), (737, 706)),
    ("streaming", "executing_tools"): _stacked((_STREAMING.top(20), _EXECUTING.bottom(20)), (917, 395), "beside"),
    ("executing_tools", "streaming"): _stacked((_EXECUTING.bottom(140), _STREAMING.top(140)), (1037, 395), "beside"),
    ("streaming", "compacting"): _stacked((_STREAMING.bottom(20), _COMPACTING.top(20)), (917, 585), "beside"),
    ("compacting", "streaming"): _stacked((_COMPACTING.top(140), _STREAMING.bottom(140)), (1037, 585), "beside"),
    ("executing_tools", "compacting"): _stacked(
        (_EXECUTING.right(105), (1165, 340), (1165, 632), _COMPACTING.right(12)), (1173, 397), "beside"
    ),
    # Back to pending.
    ("executing_tools", "pending"): _stacked((_EXECUTING.left(85), (_BACK, 320), *_TO_PENDING_ABOVE), (737, 314)),
    ("leased", "pending"): _stacked((_LEASED.left(205), (_BACK, 395), *_TO_PENDING_ABOVE), (737, 389)),
    ("streaming", "pending"): _stacked((_STREAMING.left(100), _PENDING.right(105)), (737, 524)),
    ("compacting", "pending"): _stacked((_COMPACTING.left(35), (_BACK, 655), *_TO_PENDING_BELOW), (737, 649)),
    # To the client's turn and back.
    ("executing_tools", "requires_action"): _stacked((_EXECUTING.right(75), (_CLIENT, 310), *_TO_ACTION), (1173, 304)),
    ("streaming", "requires_action"): _stacked((_STREAMING.right(85), _ACTION.left(90)), (1173, 509)),
    ("compacting", "requires_action"): _stacked((_COMPACTING.right(105), (_CLIENT, 725), *_TO_ACTION), (1173, 719)),
    ("pending", "requires_action"): Route(
        (_PENDING.bottom(135), (585, 820), (1470, 820), _ACTION.bottom(80)), (660, 814)
    ),
    ("requires_action", "pending"): Route(
        (_ACTION.bottom(140), (1530, 855), (545, 855), _PENDING.bottom(95)), (660, 849)
    ),
    # To rest.
    ("executing_tools", "waiting"): _stacked((_EXECUTING.right(25), (_REST, 260), *_TO_WAITING), (1173, 254)),
    ("streaming", "waiting"): _stacked((_STREAMING.right(35), (_REST, 465), *_TO_WAITING), (1173, 459)),
    ("compacting", "waiting"): _stacked((_COMPACTING.right(38), (_REST, 658), *_TO_WAITING), (1173, 652)),
    # To a stop, and on from there.
    ("busy", "interrupted"): Route((_BUSY.bottom(155), _INTERRUPTED.top(130)), (570, 982), "beside"),
    ("interrupted", "pending"): Route((_INTERRUPTED.top(45), _PENDING.bottom(25)), (465, 982), "beside", "end"),
    ("interrupted", "waiting"): Route((_INTERRUPTED.left(80), (110, 1115), _WAITING.bottom(70)), (125, 1109)),
    ("interrupted", "error"): Route((_INTERRUPTED.right(80), _ERROR.left(80)), (700, 1109)),
    ("pending", "error"): Route((_PENDING.bottom(165), (615, 788), (1115, 788), _ERROR.top(90)), (660, 782)),
    ("leased", "error"): Route((_LEASED.bottom(255), _ERROR.top(90)), (1125, 982), "beside"),
    ("compacting", "error"): _stacked(
        (_COMPACTING.bottom(235), (1125, 778), (1180, 778), _ERROR.top(155)), (1190, 960), "beside"
    ),
    ("error", "pending"): Route(
        (_ERROR.top(35), (1060, 900), (510, 900), _PENDING.bottom(60)), (1051, 982), "beside", "end"
    ),
    ("error", "waiting"): Route((_ERROR.bottom(35), (1060, 1210), (75, 1210), _WAITING.bottom(35)), (125, 1204)),
    ("every state", "pending"): Route(
        (_EVERY.top(100), (1540, 880), (530, 880), _PENDING.bottom(80)), (1530, 982), "beside", "end"
    ),
    ("every state", "error"): Route((_EVERY.left(50), _ERROR.right(50)), (1286, 1079)),
    ("unknown", "error"): Route((_UNKNOWN.left(18), (1315, 1183), (1315, 1150), _ERROR.right(115)), (1335, 1177)),
}
"""The way of every arrow, by where it starts and ends."""


def route(origin: str, target: str) -> Route | None:
    """Return the way of an arrow: none if it stays, a straight line if nobody has laid one out yet."""
    if target == SAME:
        return None
    if (origin, target) in ROUTES:
        return ROUTES[origin, target]
    start, end = {**BOXES, **FRAMES}[origin], BOXES[target]
    points = (start.top(start.width / 2), end.bottom(end.width / 2))
    return Route(points, ((points[0][0] + points[1][0]) / 2, (points[0][1] + points[1][1]) / 2))
