"""`turnwise erase` and `turnwise delete`: remove content for good, and list where copies are left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, cast, get_args

import typer
from rich.console import Group
from rich.text import Text

from turnwise.cli.connect import Chats, ChatSource, chosen_id
from turnwise.cli.options import ChatArgument, with_source
from turnwise.cli.style import Report, clean, errors, labelled
from turnwise.engine.admin.erase import OUTSIDE, Erasable, Erasure, parse_request
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.errors import ChatDeleted, SettingsError

YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation; required without a terminal.")
]


def confirm(question: str, *, done: str) -> None:
    """Ask for confirmation, and exit without it. `done` is the participle, such as "erased"."""
    if not sys.stdin.isatty():
        raise SettingsError("--yes", f"say it where no terminal is there to ask at: what is {done} does not come back")
    errors.print(f"{question} [y/N] ", end="", soft_wrap=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        errors.print(f"Nothing was {done}.")
        raise typer.Exit(1)


@with_source("file_folder", "actor")
def erase(  # noqa: PLR0913 - the options of a command
    chat: Annotated[
        str | None, typer.Argument(metavar="[CHAT]", help="A chat: its id, the beginning of it, or 'last'.")
    ] = None,
    messages: Annotated[
        list[str] | None,
        typer.Argument(metavar="MESSAGE", help="The ids of messages, as `show --json` prints them."),
    ] = None,
    *,
    what: Annotated[
        list[str] | None,
        typer.Option(
            "--what",
            metavar="WORD",
            help=f"Erase all content of a kind: {', '.join(get_args(Erasable))}; may be repeated.",
        ),
    ] = None,
    owner: Annotated[
        str | None, typer.Option(help="Delete every chat of this owner instead, and the owner's budget.")
    ] = None,
    everything: Annotated[bool, typer.Option("--everything", help="The same as --what everything.")] = False,
    yes: YesOption = False,
    source: ChatSource,
) -> Report:
    """Erase the content of messages for good, and print where copies are left. The audit log still verifies."""
    if (owner is None) == (chat is None):
        raise SettingsError("CHAT", "pass either a chat or --owner; nothing was erased")
    if owner is not None:
        return _erase_owner(source, owner, yes=yes)
    names = messages or []
    whole = cast("list[Erasable]", ["everything"] if everything else what or [])
    if not names and not whole:
        raise SettingsError("MESSAGE", "name messages, or what is to go as a whole: --what title, or --everything")
    parse_request(names, whole)
    chat_id = source.run(lambda chats: chosen_id(chats, str(chat)))
    if not yes:
        confirm(f"Erase {clean(', '.join([*names, *whole]))} of {clean(chat_id)}, for good?", done="erased")
    erasure = source.run(lambda chats: chats.erase(chat_id, messages=names, what=whole))
    done = Text.assemble(("✓ ", "green"), f"erased in {clean(erasure.chat.id)}")
    return Report(erasure, Group(done, labelled(_erased(erasure)), labelled(_leftovers(erasure))))


def _erase_owner(source: ChatSource, owner: str, *, yes: bool) -> Report:
    if not yes:
        confirm(f"Delete every chat of {clean(owner)}, for good?", done="erased")
    erasure = source.run(lambda chats: chats.erase_owner(owner))
    done = Text.assemble(("✓ ", "green"), f"deleted {len(erasure.deleted)} chat(s) of {clean(owner)}")
    left = labelled((clean(chat_id), clean(problem)) for chat_id, problem in erasure.left.items())
    return Report(erasure, Group(done, left), code=1 if erasure.left else 0)


def _erased(erasure: Erasure) -> Iterator[tuple[str, str]]:
    yield "messages", ", ".join(erasure.messages) or "none"
    if erasure.queued:
        yield "of the queue", ", ".join(erasure.queued)
    if erasure.labels:
        yield "labels", ", ".join(erasure.labels)
    if erasure.quarantined:
        yield "put aside", f"{erasure.quarantined} row(s) of repairs"


def _leftovers(erasure: Erasure) -> Iterator[tuple[str, str]]:
    if erasure.may_quote:
        yield "may quote it", f"{', '.join(erasure.may_quote)}: summaries, to be erased like any message"
    if erasure.forks:
        yield "copied it", f"{', '.join(erasure.forks)}: forks, under the same message ids"
    if not erasure.overwritten:
        yield (
            "files",
            "may hold it still: not overwritten yet, or in a folder that --file-folder has to name",
        )
    for number, text in enumerate(erasure.outside):
        yield "" if number else "elsewhere", text


@with_source("file_folder", "actor")
def delete(chat: ChatArgument, *, yes: YesOption = False, source: ChatSource) -> Report:
    """Delete a resting chat for good. A tombstone stays, with its times and the end of its log."""

    async def meant(chats: Chats) -> tuple[str, bool]:
        try:
            return await chosen_id(chats, chat), True
        except ChatDeleted as deleted:
            return deleted.chat_id, False

    chat_id, is_there = source.run(meant)
    if is_there and not yes:
        confirm(f"Delete {clean(chat_id)}, all of it, for good?", done="deleted")
    tombstone = source.run(lambda chats: chats.delete_chat(chat_id))
    done = Text.assemble(("✓ ", "green"), f"deleted {clean(chat_id)}")
    return Report(tombstone, Group(done, labelled(_lines_of(tombstone))))


def _lines_of(tombstone: Tombstone) -> Iterator[tuple[str, str]]:
    yield "deleted at", f"{tombstone.deleted_at:%Y-%m-%d %H:%M:%S}, by {tombstone.actor}"
    yield "its log had", f"{tombstone.records} records; the last has the hash {tombstone.head or 'that was unreadable'}"
    if tombstone.forks:
        yield "copied it", f"{', '.join(tombstone.forks)}: forks, which stay"
    if tombstone.children:
        yield "children", f"{', '.join(tombstone.children)}: chats of their own, which stay"
    if not tombstone.overwritten:
        yield "files", "may hold it still: the database has not overwritten them"
    for number, text in enumerate(OUTSIDE):
        yield "" if number else "elsewhere", text
