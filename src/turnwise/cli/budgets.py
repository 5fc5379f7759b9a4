"""`turnwise usage`, `turnwise budget` and `turnwise budgets`: what chats have cost, and what they may."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from turnwise.cli.connect import ChatSource
from turnwise.cli.options import time_in_utc, with_source
from turnwise.cli.style import Report, clean, moment, plain_table
from turnwise.engine.config.results import Budget, UsageSum
from turnwise.states.errors import SettingsError
from turnwise.states.names import Period

_OwnerOption = Annotated[str | None, typer.Option(help="The budget of this owner's chats.")]
_ChatOption = Annotated[str | None, typer.Option(help="The budget of this chat: its id, or the beginning of it.")]

_ID_WIDTH: Final = 26
"""No id of a chat is broken over lines."""


@with_source("actor")
def budget(  # noqa: PLR0913 - the options
    *,
    owner: _OwnerOption = None,
    chat: _ChatOption = None,
    tokens: Annotated[int | None, typer.Option(help="The limit in tokens, of prompts and replies together.")] = None,
    cost: Annotated[str | None, typer.Option(help="The limit in US dollars.")] = None,
    per: Annotated[Period | None, typer.Option(help="The period; without it, the budget is never renewed.")] = None,
    timezone: Annotated[str, typer.Option(help="The time zone of the period, such as Europe/Berlin.")] = "UTC",
    source: ChatSource,
) -> Report:
    """Limit what an owner's chats, or one chat, may spend; without --tokens and --cost, remove the budget."""
    limits: dict[str, Any] = {"tokens": tokens, "cost": _dollars(cost), "per": per, "timezone": timezone}
    if (owner is None) == (chat is None):
        raise SettingsError("budget", "pass either --owner or --chat; nothing was written")
    if chat is not None:
        changed = source.on_chat(chat, lambda chats, chat_id: chats.set_budget(chat_id=chat_id, **limits))
    else:
        changed = source.run(lambda chats: chats.set_budget(owner=owner, **limits))
    return Report(changed, "The budget is removed." if changed is None else _table([changed]))


def _dollars(cost: str | None) -> Decimal | None:
    try:
        return None if cost is None else Decimal(cost)
    except ArithmeticError:
        raise SettingsError("cost", f"must be a number of US dollars, such as 2.50; it was {cost!r}") from None


@with_source()
def budgets(*, owner: _OwnerOption = None, chat: _ChatOption = None, source: ChatSource) -> Report:
    """List budgets: spent, reserved by open calls, and left."""
    if chat is not None:
        found = source.on_chat(chat, lambda chats, chat_id: chats.budgets(owner=owner, chat_id=chat_id))
    else:
        found = source.run(lambda chats: chats.budgets(owner=owner))
    return Report(found, _table(found) if found else "There is no budget.")


def _table(found: Sequence[Budget]) -> Table:
    table = plain_table("of", "per", "limit", "spent", "reserved", "left", "until (UTC)")
    table.columns[0].min_width = _ID_WIDTH
    for one in found:
        amounts = ((one.tokens, one.cost), one.spent, one.reserved, one.left)
        unpriced = f" + {one.unpriced} unpriced" if one.unpriced and one.cost is not None else ""
        limit, spent, reserved, left = (
            _amount(*(part if isinstance(part, tuple) else (part.tokens, part.cost)), one) for part in amounts
        )
        name = f"owner {one.owner}" if one.owner is not None else f"chat {one.chat_id}"
        table.add_row(clean(name), one.per or "", limit, spent + unpriced, reserved, left, moment(one.until))
    return table


def _amount(tokens: int | None, cost: Decimal | None, budget: Budget) -> str:
    parts = [] if budget.tokens is None else [f"{tokens:,} tokens"]
    return ", ".join(parts if budget.cost is None else [*parts, f"${cost}"])


@with_source()
def usage(
    *,
    by: Annotated[list[str] | None, typer.Option(help="owner, agent, model or day; may be repeated.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="The earliest time, UTC.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="A time after the latest, UTC.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only this owner's chats.")] = None,
    timezone: Annotated[str, typer.Option(help="Whose days count, such as Europe/Berlin.")] = "UTC",
    source: ChatSource,
) -> Report:
    """Sum up what model calls used and cost: by owner, agent, model and day."""
    wanted: dict[str, Any] = {
        "by": by or [],
        "since": time_in_utc("--since", since),
        "until": time_in_utc("--until", until),
        "owner": owner,
        "timezone": timezone,
    }
    found = source.run(lambda chats: chats.usage_report(**wanted))
    table = plain_table(*(by or []), "calls", "input", "output", "cost")
    for one in found:
        figures = (f"{one.calls:,}", _tokens(one.usage.input_tokens), _tokens(one.usage.output_tokens), _cost(one))
        table.add_row(*(clean(getattr(one, name) or "-") for name in by or []), *figures)
    return Report(found, table if found else "No model was called.")


def _tokens(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def _cost(found: UsageSum) -> str:
    known = "unknown" if found.usage.cost is None else f"${found.usage.cost}"
    return f"{known} + {found.unpriced:,} unpriced" if found.unpriced and found.usage.cost is not None else known
