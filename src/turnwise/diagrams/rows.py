"""The list below the graph: every row of the table in full, as drawn text."""

from __future__ import annotations

from itertools import groupby
from typing import Final

from turnwise.diagrams.grouping import TableEntry, entries
from turnwise.diagrams.markup import SANS, Pen, tag, text, title
from turnwise.diagrams.model import Picture, machine
from turnwise.diagrams.palette import FAINT, INK, MUTED, PAPER, PARTY_INK
from turnwise.states.values.checked import checked

WIDTH: Final = 1680
COLUMNS: Final = {
    "trigger": (40.0, 140.0),
    "from": (185.0, 250.0),
    "to": (445.0, 120.0),
    "when": (570.0, 340.0),
    "actions": (920.0, 720.0),
}
"""Where each column starts and how wide it is."""

_HEAD: Final = Pen(11, MUTED, "bold")
_CELL: Final = Pen(11, INK)
_LEADING: Final = 14
_RIGHT: Final = 1640


@checked
def table() -> str:
    """Return every row of the table as an SVG document of its own."""
    drawn, height = drawn_rows(machine(), 0)
    drawing = tag(
        "svg",
        title("Every row of the table"),
        tag("rect", width=WIDTH, height=height, rx=14, fill=PAPER),
        drawn,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height:.0f}",
        role="img",
        font_family=SANS,
    )
    return drawing + "\n"


def drawn_rows(picture: Picture, top: float) -> tuple[str, float]:
    """Return the list as one group of elements, and the height at which it ends."""
    y = top + 20
    pieces = [text((40, y), "Every row", Pen(18, INK, "bold"))]
    for party, fired in groupby(entries(picture), key=lambda entry: entry.line.party):
        pieces.append(text((40, y + 34), f"fired by the {party}", Pen(13, PARTY_INK[party], "bold")))
        pieces += [text((x, y + 54), name, _HEAD) for name, (x, _) in COLUMNS.items()]
        y += 62
        for _, rows in groupby(fired, key=lambda entry: entry.line.trigger):
            pieces.append(tag("path", d=f"M40,{y:.1f} H{_RIGHT}", stroke=FAINT))
            for place, entry in enumerate(rows):
                drawn, height = _row(entry, y, Pen(11, PARTY_INK[party], "600"), named=place == 0)
                pieces.append(drawn)
                y += height
    return tag("g", *pieces, class_="rows"), y + 30


def _row(entry: TableEntry, top: float, trigger_pen: Pen, *, named: bool) -> tuple[str, float]:
    """Draw an entry; only the first of a trigger names it."""
    line = entry.line
    cells = {
        "trigger": (line.trigger if named else "", trigger_pen),
        "from": (entry.origin, _CELL),
        "to": (entry.target, _CELL),
        "when": (line.condition, _CELL),
        "actions": (line.actions_in_words, _CELL),
    }
    wrapped = {name: pen.lines(words, COLUMNS[name][1]) for name, (words, pen) in cells.items()}
    drawn = tag(
        "g",
        *(
            text((COLUMNS[name][0], top + 15 + place * _LEADING), words, cells[name][1])
            for name, lines in wrapped.items()
            for place, words in enumerate(lines)
        ),
        class_="row",
        data_trigger=line.trigger,
        data_source=" ".join(entry.sources),
        data_target=entry.target,
    )
    return drawn, max(len(lines) for lines in wrapped.values()) * _LEADING + 5
