"""The results as a table of Markdown, which reads well in a terminal, too."""

from __future__ import annotations

from typing import Any, Final

OPERATIONS: Final = (
    "send", "claim", "sweep", "list", "of owner", "in state", "of owner in state", "show", "explain", "prune", "open",
)  # fmt: skip
"""What is measured in a store of many chats."""

Figures = dict[str, dict[str, float]]

_COLUMNS: Final = (
    ("A ms/turn", "A", "ms", 1),
    ("A CPU ms", "A", "cpu_ms", 1),
    ("B chats/s", "B", "per_second", 0),
    ("C first ms", "C", "first_ms", 1),
    ("C last ms", "C", "last_ms", 1),
    ("C MB", "C", "stored_kb", 1),
    ("D us/delta", "D", "us_per_delta", 1),
    ("E import ms", "E", "import_ms", 0),
    ("E MB", "E", "rss_mb", 0),
)


def render(results: dict[str, Any]) -> str:
    """Return the table, and below it what only turnwise does."""
    measured = results["medians"]
    columns = [column for column in _COLUMNS if any(column[1] in of for of in measured.values())]
    rows = [["", "survives a crash", *(title for title, *_ in columns)]]
    for name, about in results["contestants"].items():
        figures = measured.get(name, {})
        rows.append([about["title"], about["keeps"], *(_cell(figures, *column[1:]) for column in columns)])
    return "\n".join((_table(rows, left=2) if columns else []) + _alone(results))


def _alone(results: dict[str, Any]) -> list[str]:
    figures = results["medians"].get("turnwise", {})
    lines = []
    if "F killed" in figures:
        lines.append(f"F  turnwise, worker killed: streams elsewhere after {figures['F killed']['seconds']:.2f} s")
    if "F frozen" in figures:
        frozen = figures["F frozen"]
        lines.append(
            f"F  turnwise, worker frozen: after {frozen['seconds']:.2f} s, {frozen['past_lease']:.2f} s past its lease"
        )
    for key, row in figures.items():
        if key.startswith("G "):
            lines.append(
                f"G  turnwise, PostgreSQL, workers: {key.split()[1]}; {row['per_second']:.0f} chats/s, each for "
                f"{row['worker_ms']:.2f} ms of the workers' CPU and {row['server_ms']:.2f} of the server's"
            )
    for key, row in figures.items():
        letter, *names = key.split()
        if letter == "I":
            lines.append(f"I  turnwise, memory, chats {names[0]}: {row['mb']:.0f} MB, {row['kb_per_chat']:.1f} KB each")
        elif letter == "J":
            lines.append(
                f"J  turnwise, {names[0]}, workers: {names[1]}; all orphans stream again after {row['seconds']:.1f} s, "
                f"{row['per_second']:,.0f} a second"
            )
        elif letter == "K":
            lines.append(
                f"K  turnwise, {' '.join(names)}: {row['first_ms']:.2f} ms first, {row['last_ms']:.2f} at last; "
                f"transcript {row['show_ms']:.1f}, explain {row['explain_ms']:.1f}"
            )
        elif letter == "L":
            lines.append(
                f"L  turnwise, {names[0]}, {row['streams']:.0f} streams of {row['chats']:.0f} chats, "
                f"{row['read_per_second']:,.0f} parts a second: {row['median_ms']:.0f} ms median, {row['p99_ms']:.0f} "
                f"at p99; {row['kb_per_stream']:.0f} KB each; cores: {row['service_cores']:.2f} serve, "
                f"{row['readers_cores']:.2f} read"
            )
    return (["", *lines] if lines else []) + _many_chats(figures)


def _many_chats(figures: Figures) -> list[str]:
    """Return a table for each store: what the operations take, a line for each size, and the last to the first."""
    lines = []
    for store in dict.fromkeys(key.split()[1] for key in figures if key.startswith("H ")):
        sizes = {int(key.split()[2]): row for key, row in figures.items() if key.startswith(f"H {store} ")}
        first, last = sizes[min(sizes)], sizes[max(sizes)]
        rows = [[f"H {store}, ms", *OPERATIONS]]
        rows += [[f"{size:,} chats", *(f"{sizes[size][name]:.2f}" for name in OPERATIONS)] for size in sorted(sizes)]
        rows.append(["last : first", *(f"{last[name] / first[name]:.2f}" for name in OPERATIONS)])
        lines += ["", *_table(rows, left=1)]
    return lines


def _table(rows: list[list[str]], *, left: int) -> list[str]:
    """Return the lines of a table, its first columns aligned to the left."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = [_line(row, widths, left) for row in rows]
    lines[1:1] = [_line(["-" * width for width in widths], widths, left)]
    return lines


def _cell(figures: dict[str, dict[str, float]], measurement: str, figure: str, digits: int) -> str:
    value = figures.get(measurement, {}).get(figure)
    if value is None:
        return "-"
    return f"{value / 1024 if figure == 'stored_kb' else value:,.{digits}f}"


def _line(row: list[str], widths: list[int], left: int) -> str:
    cells = [
        text.ljust(width) if place < left else text.rjust(width)
        for place, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return f"| {' | '.join(cells)} |"
