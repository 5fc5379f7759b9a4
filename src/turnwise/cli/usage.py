"""`turnwise usage`: what model calls used and cost."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from turnwise.cli.connect import ChatSource
from turnwise.cli.options import JsonOption, time_in_utc, with_source
from turnwise.cli.style import clean, console, plain_table, print_json
from turnwise.engine.config.results import UsageSum


@with_source()
def usage(  # noqa: PLR0913 - the options
    *,
    by: Annotated[list[str] | None, typer.Option(help="owner, agent, model or day; may be repeated.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="The earliest time, UTC.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="A time after the latest, UTC.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only this owner's chats.")] = None,
    timezone: Annotated[str, typer.Option(help="Whose days count, such as Europe/Berlin.")] = "UTC",
    source: ChatSource,
    as_json: JsonOption = False,
) -> None:
    """Sum up what model calls used and cost: by owner, agent, model and day."""
    wanted: dict[str, Any] = {
        "by": by or [],
        "since": time_in_utc("--since", since),
        "until": time_in_utc("--until", until),
        "owner": owner,
        "timezone": timezone,
    }
    found = source.run(lambda chats: chats.usage_report(**wanted))
    if as_json:
        print_json(found)
        return
    table = plain_table(*(by or []), "calls", "input", "output", "cost")
    for one in found:
        figures = (f"{one.calls:,}", _tokens(one.usage.input_tokens), _tokens(one.usage.output_tokens), _cost(one))
        table.add_row(*(clean(getattr(one, name) or "-") for name in by or []), *figures)
    console.print(table if found else "No model was called.")


def _tokens(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def _cost(found: UsageSum) -> str:
    known = "unknown" if found.usage.cost is None else f"${found.usage.cost}"
    return f"{known} + {found.unpriced:,} unpriced" if found.unpriced and found.usage.cost is not None else known
