"""The head of the picture: its title, and what tints and arrows mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from turnwise.diagrams.markup import Pen, tag, text
from turnwise.diagrams.model import Kind
from turnwise.diagrams.palette import INK, KIND_TINT, MUTED, PARTY_INK
from turnwise.states.names import Party

KIND_WORDS: Final[dict[Kind, str]] = {"resting": "at rest", "claimable": "to be claimed", "leased": "held by a worker"}

_WORDS: Final = Pen(12, INK)
_LETTER: Final = 5.8
_LEFT: Final = 760.0


def heading(parties: Iterable[Party]) -> str:
    """Return the title and the key to the tints and to the arrows of these parties."""
    pieces = [
        text((40, 48), "The life of a chat", Pen(24, INK, "bold")),
        text((40, 72), "An arrow from the border of a frame leaves every state inside it.", Pen(12.5, MUTED)),
    ]
    x = _LEFT
    for kind, words in KIND_WORDS.items():
        fill, stroke = KIND_TINT[kind]
        pieces.append(tag("rect", x=x, y=37, width=22, height=14, rx=4, fill=fill, stroke=stroke))
        pieces.append(text((x + 29, 48), words, _WORDS))
        x += 52 + len(words) * _LETTER
    for party in parties:
        words = f"fired by the {party}"
        pieces.append(arrow(f"M{x:.0f},44 h26", party))
        pieces.append(text((x + 34, 48), words, _WORDS))
        x += 58 + len(words) * _LETTER
    return tag("g", *pieces, class_="heading")


def arrow(path: str, party: Party) -> str:
    """Return a line in the ink of a party, with its arrowhead."""
    head = f"url(#{_head_id(party)})"
    return tag("path", d=path, fill="none", stroke=PARTY_INK[party], stroke_width=1.5, marker_end=head)


def arrowhead(party: Party) -> str:
    """Return the definition that the arrows of a party refer to."""
    return tag(
        "marker",
        tag("path", d="M0,0.5 L9,4 L0,7.5 L2,4 Z", fill=PARTY_INK[party]),
        id=_head_id(party),
        viewBox="0 0 9 8",
        refX=8.5,
        refY=4,
        markerWidth=9,
        markerHeight=8,
        markerUnits="userSpaceOnUse",
        orient="auto",
    )


def _head_id(party: Party) -> str:
    return f"turnwise-arrow-{party.replace(' ', '-')}"
