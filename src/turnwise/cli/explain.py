"""`turnwise explain`: why a chat is where it is."""

from __future__ import annotations

import typer
from rich.table import Table

from turnwise.cli.chat_argument import on_chat
from turnwise.cli.connected import place_of
from turnwise.cli.options import DEFAULT_STORE, ChatArgument, JsonOption, ServerOption, StoreOption
from turnwise.cli.style import clean, console, excerpt, moment, plain_table, print_json, state_text
from turnwise.engine.admin.explain import Explanation


def explain(
    chat: ChatArgument,
    *,
    store: StoreOption = DEFAULT_STORE,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say where a chat stands, and in one sentence why it is not moving."""
    explanation = on_chat(place_of(store, server), chat, lambda chats, chat_id: chats.explain(chat_id))
    if as_json:
        print_json(explanation)
    else:
        console.print(explanation_table(explanation))
    if explanation.broken_invariants or explanation.unreadable:
        raise typer.Exit(1)


def explanation_table(explanation: Explanation) -> Table:
    """Return what is known, without the lines that have nothing to say."""
    lines = {
        "why": clean(explanation.reason),
        "since": moment(explanation.since),
        "lease of": clean(explanation.lease_worker or ""),
        "lease until": moment(explanation.lease_expires),
        "next timer": moment(explanation.next_timer),
        "open calls": clean(
            ", ".join(f"{call.name} ({call.call_id}, {call.status})" for call in explanation.open_calls)
        ),
        "queue": str(explanation.queued or ""),
        "last error": excerpt(explanation.last_error.message, 300) if explanation.last_error else "",
        "in detail": excerpt(explanation.last_error.detail or "", 1000) if explanation.last_error else "",
        "may come": ", ".join(explanation.legal_triggers),
        "unreadable": clean("; ".join(f"{flaw.column}: {flaw.problem}" for flaw in explanation.unreadable)),
        "broken": ", ".join(explanation.broken_invariants),
    }
    table = plain_table("", "")
    table.columns[0].style = "dim"
    table.columns[0].no_wrap = True
    table.add_row("state", state_text(explanation.state))
    for name, value in lines.items():
        if value:
            table.add_row(name, value)
    return table
