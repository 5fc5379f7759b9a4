"""`turnwise diagram`: the machine as a drawing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from turnwise.cli.connect import Chats, ChatSource
from turnwise.cli.files import write_file
from turnwise.cli.options import with_source
from turnwise.cli.style import clean, console
from turnwise.diagrams import machine_json, mermaid, path, slide, sticker, svg, table, timeline
from turnwise.states.errors import SettingsError
from turnwise.states.events import Event

Form = Literal["mermaid", "svg", "png", "json"]
Subject = Literal["machine", "table", "path", "timeline", "sticker"]
NEEDS_CHAT: Final = frozenset({"path", "timeline", "sticker"})
FORMAT_BY_SUFFIX: Final[dict[str, Form]] = {
    ".mmd": "mermaid",
    ".mermaid": "mermaid",
    ".svg": "svg",
    ".png": "png",
    ".json": "json",
}
ZOOM: Final = 1.5
"""Pixels of a PNG for each unit of the drawing."""
SANS: Final = "DejaVu Sans"
MONO: Final = "DejaVu Sans Mono"
"""The fonts of a PNG where the machine has none of those that the drawing asks for by name."""


@with_source()
def diagram(
    chat: Annotated[str | None, typer.Argument(metavar="[CHAT]", help="Highlight this chat's state.")] = None,
    *,
    source: ChatSource,
    simple: Annotated[bool, typer.Option("--simple", help="Draw only the states and the happy path.")] = False,
    show: Annotated[
        Subject,
        typer.Option(
            "--show", help="What to draw: the machine or its table; of a chat, its path, timeline or sticker."
        ),
    ] = "machine",
    form: Annotated[
        Form | None,
        typer.Option(
            "--format",
            help="The format; by default that of FILE's suffix, or mermaid for the machine and svg for a chat.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write to this file instead of printing.")
    ] = None,
) -> None:
    """Draw the declared machine, or the path of a chat: as Mermaid, SVG or PNG (extra `png`).

    JSON is the machine's table as data.
    """
    form = _form(form, out, "mermaid" if show == "machine" else "svg")
    _check_options(chat, show, form, simple=simple)
    if form == "png" and out is None and sys.stdout.isatty():
        raise SettingsError("--format", "cannot write a PNG to a terminal: pass `--out FILE` or pipe it")
    drawing = machine_json() if form == "json" else _drawing(source, chat, show, simple=simple, form=form)
    content = png(drawing) if form == "png" else drawing.encode()
    if out is None:
        sys.stdout.buffer.write(content)
    else:
        write_file("--out", out, content)
        console.print(f"wrote {clean(str(out))}", soft_wrap=True)


def _check_options(chat: str | None, show: Subject, form: Form, *, simple: bool) -> None:
    if show in NEEDS_CHAT and chat is None:
        raise SettingsError("--show", f"a {show} needs a chat: pass its id, or `last`")
    if show == "table" and chat is not None:
        raise SettingsError("--show", "the table is the same for every chat: name none")
    if simple and show != "machine":
        raise SettingsError("--simple", f"is a way to show the machine, not the {show}")
    if form == "json" and (chat is not None or simple or show not in ("machine", "table")):
        raise SettingsError("--format", "json holds the whole machine, the same for every chat: name no chat")
    if form == "mermaid" and show != "machine":
        raise SettingsError("--format", f"mermaid draws the machine only; the {show} is drawn as svg or png")


def _drawing(source: ChatSource, chat: str | None, show: Subject, *, simple: bool, form: Form) -> str:
    if show == "table":
        return table()
    if chat is not None and show in ("path", "timeline"):
        events = source.on_chat(chat, _events)
        return path(events) if show == "path" else timeline(events)
    state = None if chat is None else source.on_chat(chat, lambda chats, chat_id: chats.get_chat(chat_id)).state
    if state is not None and show == "sticker":
        return sticker(state)
    if form == "mermaid":
        return mermaid(state, simple=simple)
    return slide(state) if simple else svg(state)


async def _events(chats: Chats, chat_id: str) -> list[Event]:
    return [event async for event in chats.events(chat_id, follow=False)]


def png(drawing: str) -> bytes:
    """Return an SVG drawing as a PNG, on white."""
    try:
        from resvg_py import svg_to_bytes  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise SettingsError(
            "--format", "png needs the extra `png`: pip install 'turnwise[png]'; mermaid and svg need nothing"
        ) from error
    return bytes(
        svg_to_bytes(svg_string=drawing, zoom=ZOOM, background="#ffffff", sans_serif_family=SANS, monospace_family=MONO)
    )


def _form(form: Form | None, out: Path | None, default: Form) -> Form:
    suffix = out.suffix.lower() if out is not None else ""
    named = FORMAT_BY_SUFFIX.get(suffix)
    if form is None and suffix and named is None:
        raise SettingsError("--out", f"there is no drawing as {suffix!r}; a name may end in .mmd, .svg, .png or .json")
    if form is not None and named not in (None, form):
        raise SettingsError("--format", f"{form} does not belong into a file that ends in {suffix}")
    return form or named or default
