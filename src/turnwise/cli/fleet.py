"""`turnwise workers`: the workers of a store, with their agents and chats."""

from __future__ import annotations

from datetime import datetime

from rich.table import Table

from turnwise.cli.connect import ChatSource
from turnwise.cli.options import JsonOption, with_source
from turnwise.cli.style import clean, console, plain_table, print_json, state_text
from turnwise.engine.config.results import WorkerInfo


@with_source()
def workers(*, source: ChatSource, as_json: JsonOption = False) -> None:
    """List the workers of a store: which agents they run, and which chats they hold."""
    found = source.run(lambda chats: chats.workers())
    if as_json:
        print_json(found)
        return
    console.print(_table(found) if found else "No worker has reported.")
    held = plain_table("chat", "worker", "state", "agent", "since (UTC)")
    held.columns[0].no_wrap = True
    for one in found:
        for chat in one.chats:
            state = state_text(chat.state)
            held.add_row(clean(chat.chat_id), _place(one), state, clean(chat.agent), _minute(chat.since))
    if held.row_count:
        console.print(held)


def _table(found: list[WorkerInfo]) -> Table:
    table = plain_table("worker", "alive", "agents", "holds", "seen (UTC)")
    for one in found:
        most = f" of {one.max_running}" if one.max_running is not None else ""
        alive = "yes" if one.is_alive else "no"
        table.add_row(_place(one), alive, clean(", ".join(one.agents)), f"{len(one.chats)}{most}", _minute(one.seen_at))
    return table


def _minute(time: datetime | None) -> str:
    return "" if time is None else f"{time:%Y-%m-%d %H:%M}"


def _place(worker: WorkerInfo) -> str:
    return clean(f"{worker.host}:{worker.pid}" if worker.pid is not None else worker.name)
