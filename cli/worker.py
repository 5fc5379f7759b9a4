"""`turnwise worker`: a process that runs the chats of a store."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Annotated

import anyio
import typer

from turnwise.cli.files import file_tools
from turnwise.cli.options import DEFAULT_STORE, ModelOption, StoreOption
from turnwise.cli.style import console
from turnwise.engine.engine import Engine
from turnwise.engine.settings import Settings


def worker(
    *,
    store: StoreOption = DEFAULT_STORE,
    model: ModelOption = "demo",
    concurrency: Annotated[int, typer.Option(min=1, help="Chats to run at once.")] = 100,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not tell every transition.")] = False,
) -> None:
    """Run the chats of a store until SIGTERM or Ctrl-C; running steps get their grace, then the chats are let go."""
    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    logging.raiseExceptions = False  # whoever reads the log may leave
    settings = Settings(max_running=concurrency)
    engine = Engine(store, model=model, tools=file_tools(Path.cwd()), settings=settings)
    anyio.run(run_until_stopped, engine)


async def run_until_stopped(engine: Engine) -> None:
    """Run an engine's worker until the process is asked to stop, then stop gracefully."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with engine:
            console.print(f"worker {os.getpid()} runs; SIGTERM or Ctrl-C stops it")
            async for received in signals:
                console.print(f"{received.name}: letting the chats go")
                break
    console.print("stopped")
