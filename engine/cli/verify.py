"""`turnwise verify`: whether an audit log is sound."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.text import Text

from turnwise.engine.cli.choosing import chosen, reading
from turnwise.engine.cli.look import clean, console, print_json
from turnwise.engine.cli.options import DEFAULT_STORE, JsonOption, StoreOption
from turnwise.persistence.verification import Verdict, verify_export
from turnwise.states.errors import SettingsError


def verify(
    target: Annotated[str, typer.Argument(metavar="FILE|CHAT", help="An exported log, or a chat of the store.")],
    *,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Check a log: its chain, every transition against the declared table, every promise of a state."""
    file = Path(target)
    if file.is_file():
        verdict = verify_export(file.read_text(encoding="utf-8", errors="replace"))
    elif file.suffix or len(file.parts) > 1:
        raise SettingsError("FILE|CHAT", f"there is no file {target!r}")
    else:
        verdict = anyio.run(_verify, store, target)
    if as_json:
        print_json(verdict)
    else:
        console.print(verdict_line(verdict))
    if not verdict.ok:
        raise typer.Exit(1)


def verdict_line(verdict: Verdict) -> Text:
    """Return a verdict as a sentence."""
    if verdict.ok:
        return Text("✓ sound: the chain is unbroken and every transition is one of the table's", style="green")
    return Text(f"✗ not sound at version {verdict.position}: {clean(verdict.problem or '')}", style="red")


async def _verify(store: str, name: str) -> Verdict:
    async with reading(store) as engine:
        return await engine.verify((await chosen(engine, name)).id)
