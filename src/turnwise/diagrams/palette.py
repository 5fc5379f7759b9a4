"""The colours of every drawing: dark on light, one tint per kind of node, one ink per party that fires triggers."""

from __future__ import annotations

from typing import Final, NamedTuple

from turnwise.diagrams.model import Kind
from turnwise.states.names import Colour, Party


class Tint(NamedTuple):
    """The inside and the border of a node."""

    fill: str
    stroke: str


INK: Final = "#1f2933"
MUTED: Final = "#5f6b78"
FAINT: Final = "#dfe4ea"
PAPER: Final = "#ffffff"

KIND_TINT: Final[dict[Kind, Tint]] = {
    "start": Tint(INK, INK),
    "resting": Tint("#faf6ea", "#bfae82"),
    "claimable": Tint("#f3effa", "#a898d1"),
    "leased": Tint("#eaf2fb", "#86aad1"),
    "unknown": Tint(PAPER, "#97a1ac"),
}
LIT: Final = Tint("#ffe8cc", "#d9480f")
"""The state a chat stands in."""
HALO: Final = {"stroke": PAPER, "stroke_width": "3", "stroke_linejoin": "round", "paint_order": "stroke"}
"""Around words that stand on lines."""

PARTY_INK: Final[dict[Party, str]] = {
    "client": "#0f6b73",
    "lease holder": "#3d4fa3",
    "clock": "#a35a00",
    "administrator": MUTED,
}

STATE_INK: Final[dict[Colour, str]] = {
    "green": "#2e7d4f",
    "yellow": "#7d6608",
    "cyan": "#0f6b73",
    "blue": "#2f6db3",
    "magenta": "#8e4585",
    "bold yellow": "#a35a00",
    "bold magenta": "#6b4fb3",
    "bold red": "#b3261e",
}
"""The shade of each colour of a state, dark enough for white words."""
