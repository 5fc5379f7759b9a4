"""`turnwise verify`: whether an audit log is sound."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from turnwise.cli.chat_argument import Chats, on_chat
from turnwise.cli.connected import place_of
from turnwise.cli.file_folder import FileFolderOption
from turnwise.cli.input import STANDARD_INPUT, read_file
from turnwise.cli.key import CheckpointsOption, KeyOption, PublicKeyOption, published_files, signing_key
from turnwise.cli.options import DEFAULT_STORE, JsonOption, ServerOption, StoreOption
from turnwise.cli.style import clean, console, print_json
from turnwise.persistence.audit.verify import Verdict, verify_export
from turnwise.states.errors import SettingsError

_NEED_A_CHAT: Final = {
    "--family": "an exported log is of one chat alone; name a chat of the store",
    "--files": "an exported log holds no files; name a chat of the store",
    "--server": "an exported log is read here, from its file; name a chat of the service",
}


def verify(  # noqa: PLR0913 - the options of a command
    target: Annotated[str, typer.Argument(metavar="FILE|CHAT", help="An exported log (- reads one), or a chat.")],
    *,
    store: StoreOption = DEFAULT_STORE,
    server: ServerOption = None,
    key: KeyOption = None,
    checkpoints: CheckpointsOption = None,
    public_key: PublicKeyOption = None,
    family: Annotated[bool, typer.Option("--family", help="Also the subagents of the chat, and theirs.")] = False,
    files: Annotated[bool, typer.Option("--files", help="Also every file of the chat, byte for byte.")] = False,
    file_folder: FileFolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a log: its chain, every transition against the declared table, every promise of a state.

    With --checkpoints also that it is the log that was published when it was written.
    """
    elsewhere = published_files(checkpoints, public_key)

    async def checked(chats: Chats, chat_id: str) -> Verdict:
        return await chats.verify(chat_id, family=family, files=files, **elsewhere)

    if is_log(target):
        check_options_of_a_log({"--family": family, "--files": files, "--server": server})
        text = read_file("FILE|CHAT", Path(target)).decode(errors="replace")
        verdict = verify_export(text, key=signing_key(key), **elsewhere)
    elif key is not None:
        raise SettingsError("--key", "a key is for an exported log; a chat of the store is not signed")
    elif public_key is not None and checkpoints is None:
        raise SettingsError("--public-key", "is for an exported log or for --checkpoints; a store is not signed")
    else:
        verdict = on_chat(place_of(store, server), target, checked, file_folder=file_folder)
    if as_json:
        print_json(verdict)
    else:
        console.print(verdict_line(verdict))
        if verdict.ok and files:
            console.print(Text("✓ every file of the chat is there, byte for byte", style="green"))
    if not verdict.ok:
        raise typer.Exit(1)


def is_log(target: str) -> bool:
    """Return whether what was typed names an exported log, and not a chat."""
    file = Path(target)
    return target == STANDARD_INPUT or bool(file.suffix) or len(file.parts) > 1 or os.path.exists(file)  # noqa: PTH110 - Path.exists raises if a name is too long


def check_options_of_a_log(options: Mapping[str, object]) -> None:
    """Refuse options that ask for more than a log holds: a verdict would seem to answer them.

    Raises:
        SettingsError: one of them was given.
    """
    for option, value in options.items():
        if value:
            raise SettingsError(option, _NEED_A_CHAT[option])


def verdict_line(verdict: Verdict) -> Text:
    """Return a verdict as a sentence."""
    if verdict.ok:
        elsewhere = "" if verdict.covered is None else f"; checkpoints bear out versions 1 to {verdict.covered}"
        return Text(
            f"✓ sound: the chain is unbroken and every transition is one of the table's{elsewhere}", style="green"
        )
    return Text(f"✗ not sound at version {verdict.position}: {clean(verdict.problem or '')}", style="red")
