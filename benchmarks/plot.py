"""The results as a drawing for the README: six small charts of bars, turnwise picked out, the raw limit in outline."""

from __future__ import annotations

from html import escape
from typing import Any, Final

from turnwise.diagrams.palette import FAINT, INK, MUTED, PAPER, PARTY_INK

_CHARTS: Final = (
    ("One chat after another", "ms per turn", "A", "ms", 1, 1),
    ("200 chats at once", "chats per second, more is better", "B", "per_second", 1, 0),
    ("The 300th turn of a chat", "ms per turn", "C", "last_ms", 1, 1),
    ("300 turns on disk", "MB", "C", "stored_kb", 1024, 1),
    ("A streamed delta", "microseconds beyond the model's own", "D", "us_per_delta", 1, 1),
    ("Import", "ms", "E", "import_ms", 1, 0),
)
_ROW, _HEAD, _GAP, _WIDTH, _MARGIN = 22, 58, 26, 400, 24
_LABEL, _VALUE = 172, 48
_OWN: Final = PARTY_INK["client"]
_OTHER: Final = "#b4bdc7"
_LIMITS: Final = ("raw-sqlite", "own-sql")


def draw(results: dict[str, Any]) -> str:
    """Return the SVG."""
    titles = {name: about["title"] for name, about in results["contestants"].items()}
    charts = []
    for title, unit, measurement, figure, scale, digits in _CHARTS:
        bars = {
            name: max(0.0, of[measurement][figure] / scale)
            for name, of in results["medians"].items()
            if measurement in of and not (figure == "stored_kb" and of[measurement][figure] == 0)
        }
        if bars:
            charts.append(_chart(title, unit, {name: bars[name] for name in titles if name in bars}, titles, digits))
    height = _HEAD + len(titles) * _ROW + _GAP
    lines = []
    for place, chart in enumerate(charts):
        x, y = _MARGIN + place % 2 * (_WIDTH + 2 * _MARGIN), _MARGIN + place // 2 * height
        lines.append(f'<g transform="translate({x} {y})">{chart}</g>')
    width, tall = 2 * _WIDTH + 4 * _MARGIN, _MARGIN + (len(charts) + 1) // 2 * height
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {tall}" width="{width}" height="{tall}"'
        ' font-family="system-ui, sans-serif" font-size="12" role="img"'
        ' aria-label="turnwise and other libraries, measured">'
    )
    paper = f'<rect width="{width}" height="{tall}" rx="8" fill="{PAPER}"/>'
    return "\n".join([opening, paper, *lines, "</svg>\n"])


def _chart(title: str, unit: str, bars: dict[str, float], titles: dict[str, str], digits: int) -> str:
    longest = max((value for name, value in bars.items() if name not in _LIMITS), default=0) or max(bars.values()) or 1
    parts = [
        f'<text y="14" font-size="14" font-weight="600" fill="{INK}">{escape(title)}</text>',
        f'<text y="31" fill="{MUTED}">{escape(unit)}</text>',
        f'<line x1="{_LABEL}" x2="{_LABEL}" y1="42" y2="{42 + len(bars) * _ROW}" stroke="{FAINT}"/>',
    ]
    for place, (name, value) in enumerate(bars.items()):
        top, share = 42 + place * _ROW + 4, value / longest
        length = round(max(1.0, min(share, 1) * (_WIDTH - _LABEL - _VALUE)), 1)
        style = f'fill="{INK}" font-weight="600"' if name == "turnwise" else f'fill="{MUTED}"'
        parts += [
            f'<text x="{_LABEL - 8}" y="{top + 11}" text-anchor="end" {style}>{escape(titles[name])}</text>',
            _bar(name, top, length, beyond=share > 1),
            f'<text x="{_LABEL + length + 6:.1f}" y="{top + 11}" {style}>{value:,.{digits}f}</text>',
        ]
    return "".join(parts)


def _bar(name: str, top: int, length: float, *, beyond: bool) -> str:
    """Return a bar; the limit's is an outline, left open at its end where it leaves the scale."""
    if name in _LIMITS:
        outline = f"M{_LABEL + length} {top}H{_LABEL}v14H{_LABEL + length}{'' if beyond else 'z'}"
        return f'<path d="{outline}" fill="none" stroke="{_OTHER}" stroke-dasharray="3 2"/>'
    fill = _OWN if name == "turnwise" else _OTHER
    return f'<rect x="{_LABEL}" y="{top}" width="{length}" height="14" rx="2" fill="{fill}"/>'
