"""`turnwise diagram`: the machine as a drawing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import anyio
import typer

from turnwise.diagrams import mermaid, svg
from turnwise.engine.cli.choosing import chosen, reading
from turnwise.engine.cli.look import console
from turnwise.engine.cli.options import DEFAULT_STORE, StoreOption


def diagram(
    chat: Annotated[str | None, typer.Argument(metavar="[CHAT]", help="Light the state of this chat.")] = None,
    *,
    store: StoreOption = DEFAULT_STORE,
    form: Annotated[
        Literal["mermaid", "svg"] | None, typer.Option("--format", help="By default what FILE ends in, else mermaid.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write a file instead of printing.")] = None,
) -> None:
    """Draw the declared machine."""
    state = None if chat is None else anyio.run(_state, store, chat)
    if form is None:
        form = "svg" if out is not None and out.suffix == ".svg" else "mermaid"
    drawing = svg(state) if form == "svg" else mermaid(state)
    if out is None:
        sys.stdout.write(drawing)
    else:
        out.write_text(drawing, encoding="utf-8")
        console.print(f"wrote {out}", soft_wrap=True, markup=False)


async def _state(store: str, name: str) -> str:
    async with reading(store) as engine:
        return (await chosen(engine, name)).state
