"""`turnwise export` and `turnwise import`: a whole chat as a file that any store takes in."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import anyio
import typer

from turnwise.cli.chat_argument import attached, on_chat
from turnwise.cli.key import KeyOption, signing_key
from turnwise.cli.operating import OPERATOR, tell
from turnwise.cli.options import DEFAULT_STORE, ActorOption, ChatArgument, JsonOption, StoreOption
from turnwise.cli.output import read_file, write_file
from turnwise.cli.style import clean, console, print_json
from turnwise.engine.engine import Engine
from turnwise.engine.results import Chat


def export(
    chat: ChatArgument,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; else it is printed.")
    ] = None,
    key: KeyOption = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Write a whole chat as JSON Lines, which `import` takes in, on a store of any kind."""
    secret = signing_key(key)

    async def lines_of(engine: Engine, chat_id: str) -> list[str]:
        return [line async for line in engine.export_chat(chat_id, key=secret)]

    lines = on_chat(store, chat, lines_of)
    if output is None:
        sys.stdout.writelines(lines)
        return
    write_file("--output", output, lines)
    signed = "" if secret is None else ", signed"
    console.print(f"wrote {len(lines)} lines to {clean(str(output))}{signed}", soft_wrap=True, markup=False)


def import_chat(
    file: Annotated[str, typer.Argument(metavar="FILE", help="An exported chat; - reads standard input.")],
    *,
    key: KeyOption = None,
    store: StoreOption = DEFAULT_STORE,
    actor: ActorOption = OPERATOR,
    as_json: JsonOption = False,
) -> None:
    """Take in a chat that `export` wrote, once all of it was checked; it keeps its id."""
    secret = signing_key(key)
    text = _typed() if file == "-" else read_file("FILE", Path(file)).decode(errors="surrogateescape")

    async def taken_in() -> Chat:
        async with attached(store) as engine:
            return await engine.import_chat(text.split("\n"), key=secret, actor=actor)

    chat = anyio.run(taken_in)
    if as_json:
        print_json(chat)
    else:
        tell(store, chat, f"chat {chat.id} is imported")


def _typed() -> str:
    """Return the standard input; a byte that is no text makes its line one that is refused."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    return sys.stdin.read()
