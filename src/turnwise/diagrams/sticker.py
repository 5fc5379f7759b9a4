"""A state as a sticker, for a README or a page of status."""

from __future__ import annotations

from typing import Final

from turnwise.diagrams.extract import machine
from turnwise.diagrams.markup import SANS, Pen, tag, text, title
from turnwise.diagrams.palette import PAPER, STATE_INK
from turnwise.states.names import SPECS, ChatState
from turnwise.states.values.checked import checked

_LETTER: Final = 6.6
_NAME: Final = "turnwise"
_DARK: Final = "#3b4652"


@checked
def sticker(state: str) -> str:
    """Return a small SVG badge that names a state.

    Raises:
        NoSuchState: `state` is no state of the machine.
    """
    named = ChatState(machine().current(state) or "")
    left, right = (len(word) * _LETTER + 14 for word in (_NAME, named))
    pen = Pen(11, PAPER, anchor="middle")
    drawing = tag(
        "svg",
        title(f"{_NAME}: {named}"),
        tag("rect", width=left + right, height=20, rx=4, fill=STATE_INK[SPECS[named].colour]),
        tag("path", d=f"M4,0 H{left:.1f} V20 H4 A4,4 0 0 1 0,16 V4 A4,4 0 0 1 4,0 Z", fill=_DARK),
        text((left / 2, 14), _NAME, pen),
        text((left + right / 2, 14), named, pen),
        xmlns="http://www.w3.org/2000/svg",
        width=left + right,
        height=20,
        role="img",
        font_family=SANS,
    )
    return drawing + "\n"
