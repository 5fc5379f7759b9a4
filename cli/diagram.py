"""`turnwise diagram`: the machine as a drawing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from turnwise.cli.chat_argument import on_chat
from turnwise.cli.options import DEFAULT_STORE, StoreOption
from turnwise.cli.output import write_file
from turnwise.cli.style import clean, console
from turnwise.diagrams import mermaid, svg
from turnwise.engine.engine import Engine
from turnwise.states.errors import SettingsError

Form = Literal["mermaid", "svg", "png"]
ENDINGS: Final[dict[str, Form]] = {
    ".mmd": "mermaid",
    ".mermaid": "mermaid",
    ".svg": "svg",
    ".png": "png",
    "": "mermaid",
}
ZOOM: Final = 1.5
"""Pixels of a PNG for each unit of the drawing."""


def diagram(
    chat: Annotated[str | None, typer.Argument(metavar="[CHAT]", help="Light the state of this chat.")] = None,
    *,
    store: StoreOption = DEFAULT_STORE,
    form: Annotated[Form | None, typer.Option("--format", help="By default what FILE ends in, else mermaid.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write a file instead of printing.")] = None,
) -> None:
    """Draw the declared machine: as Mermaid, SVG or PNG (extra `png`)."""
    form = _form(form, out)
    if form == "png" and out is None and sys.stdout.isatty():
        raise SettingsError("--format", "a PNG is nothing to read: name a file with --out, or send it through a pipe")
    state = None if chat is None else on_chat(store, chat, Engine.get_chat).state
    drawing = mermaid(state) if form == "mermaid" else svg(state)
    content = png(drawing) if form == "png" else drawing.encode()
    if out is None:
        sys.stdout.buffer.write(content)
    else:
        write_file("--out", out, content)
        console.print(f"wrote {clean(str(out))}", soft_wrap=True, markup=False)


def png(drawing: str) -> bytes:
    """Return an SVG drawing as a PNG, on white.

    Raises:
        SettingsError: the library that draws it is not installed.
    """
    try:
        from resvg_py import svg_to_bytes  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise SettingsError(
            "--format", "png needs the extra `png`: pip install 'turnwise[png]'; mermaid and svg need nothing"
        ) from error
    return bytes(svg_to_bytes(svg_string=drawing, zoom=ZOOM, background="#ffffff", font_family="DejaVu Sans"))


def _form(form: Form | None, out: Path | None) -> Form:
    """Return the form that was asked for, unless the file's name says another one, or one that there is not."""
    ending = out.suffix.lower() if out is not None else ""
    named = ENDINGS.get(ending)
    if form is None:
        if named is None:
            raise SettingsError("--out", f"there is no drawing as {ending!r}; a name may end in .mmd, .svg or .png")
        return named
    if named is not None and ending and form != named:
        raise SettingsError("--format", f"{form} does not belong into a file that ends in {ending}")
    return form
