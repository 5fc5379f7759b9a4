"""`turnwise worker`, a process that runs the chats of a store, and `turnwise workers`, which lists those there are."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import anyio
import typer
from rich.console import Group
from rich.table import Table

from turnwise.cli.connect import ChatSource
from turnwise.cli.keys import PublishingKeyOption, PublishOption, checkpoints_of
from turnwise.cli.options import (
    DEFAULT_STORE,
    AgentsStoreOption,
    ConcurrencyOption,
    FileFolderOption,
    QuietOption,
    with_source,
)
from turnwise.cli.style import Report, clean, console, plain_table, show_logs, state_text
from turnwise.cli.target import CreateOption, TargetArgument, engine_of, typed_options
from turnwise.engine.config.results import WorkerInfo
from turnwise.engine.config.settings import Settings
from turnwise.engine.engine import Engine


def worker(  # noqa: PLR0913 - options
    context: typer.Context,
    target: TargetArgument,
    *,
    store: AgentsStoreOption = DEFAULT_STORE,
    file_folder: FileFolderOption = None,
    create: CreateOption = False,
    concurrency: ConcurrencyOption = 100,
    checkpoints: PublishOption = None,
    signing_key: PublishingKeyOption = None,
    quiet: QuietOption = False,
) -> None:
    """Run the chats of a store until SIGTERM or Ctrl-C. Running steps may finish; then the chats are released.

    It runs only chats of the agents that the target declares, and only calls of tools that these have.
    """
    show_logs(quiet=quiet)
    settings = Settings(max_running=concurrency)
    engine = engine_of(
        target,
        store=store,
        file_folder=file_folder,
        create=create,
        settings=settings,
        checkpoints=checkpoints_of(checkpoints, signing_key),
        typed=typed_options(context),
    )
    anyio.run(run_until_stopped, engine)


async def run_until_stopped(engine: Engine) -> None:
    """Run an engine's worker until the process is asked to stop, also while the engine opens; stop gracefully."""
    with anyio.CancelScope() as running, _stopped_by_signals(running):
        async with engine:
            runs = ", ".join(sorted(engine.agents)) if engine.settings.run_worker else "nothing: run_worker is False"
            console.print(f"worker {os.getpid()} runs {runs}; SIGTERM or Ctrl-C stops it")
            await engine.wait_closed()  # which raises what ends it by itself
    console.print("stopped")


@contextmanager
def _stopped_by_signals(running: anyio.CancelScope) -> Iterator[None]:
    """Cancel a scope at the first signal that asks to stop. Further ones change nothing."""

    def stop(received: signal.Signals) -> None:
        if not running.cancel_called:
            console.print(f"{received.name}: releasing the chats")
        running.cancel()

    loop, signals = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


@with_source()
def workers(*, source: ChatSource) -> Report:
    """List the workers of a store: which agents they run, and which chats they hold."""
    found = source.run(lambda chats: chats.workers())
    held = plain_table("chat", "worker", "state", "agent", "since (UTC)")
    held.columns[0].no_wrap = True
    for one in found:
        for chat in one.chats:
            state = state_text(chat.state)
            held.add_row(clean(chat.chat_id), _place(one), state, clean(chat.agent), _minute(chat.since))
    tables = [_table(found) if found else "No worker has reported.", *([held] if held.row_count else [])]
    return Report(found, Group(*tables))


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
