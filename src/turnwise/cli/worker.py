"""`turnwise worker`: a process that runs the chats of a store."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import typer

from turnwise.cli.keys import PublishingKeyOption, PublishOption, checkpoints_of
from turnwise.cli.options import DEFAULT_STORE, AgentsStoreOption, ConcurrencyOption, FileFolderOption, QuietOption
from turnwise.cli.style import console, show_logs
from turnwise.cli.target import CreateOption, TargetArgument, engine_of, typed_options
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
