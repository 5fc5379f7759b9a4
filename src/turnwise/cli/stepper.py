"""Stepping through a log with the keyboard, on a screen of its own."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from rich.console import Console
from rich.text import Text

from turnwise.cli.audit import Step, state_picture, step_lines
from turnwise.cli.style import console

_ON, _BACK, _LEAVE = (" ", "enter", "right"), ("left", "backspace"), ("q", "c-c", "<sigint>")


class Stepper:
    """Shows one step at a time. With a `delay` it goes on by itself, until a key goes back, and ends after the last."""

    def __init__(self, steps: Sequence[Step], delay: float | None = None) -> None:
        self._steps = steps
        self._delay = delay
        self._place = 0
        keys = KeyBindings()
        for names, by in ((_ON, 1), (_BACK, -1), (("home",), -len(steps)), (("end",), len(steps))):
            for name in names:
                keys.add(name)(lambda _, by=by: self._move(by))
        for name in _LEAVE:
            keys.add(name)(lambda event: event.app.exit())
        control = FormattedTextControl(lambda: ANSI(self._screen()), show_cursor=False)
        self._application: Application[None] = Application(
            Layout(Window(control, wrap_lines=False)), key_bindings=keys, full_screen=True
        )

    def run(self) -> None:
        """Show the steps until the person leaves."""
        self._application.run(pre_run=self._begin)

    def _begin(self) -> None:
        if self._delay is not None:
            self._application.create_background_task(self._play(self._delay))

    async def _play(self, delay: float) -> None:
        while self._delay is not None:
            await asyncio.sleep(delay)
            if self._place == len(self._steps) - 1:
                self._application.exit()
                return
            if self._delay is not None:
                self._move(1)
                self._application.invalidate()

    def _move(self, by: int) -> None:
        if by < 0:
            self._delay = None
        self._place = min(max(self._place + by, 0), len(self._steps) - 1)

    def _screen(self) -> str:
        size = self._application.output.get_size()
        step, count = self._steps[self._place], len(self._steps)
        picture = state_picture(step.record.target, step.record.source, width=size.columns)
        room = max(size.rows - len(picture) - 3, 1)
        lines = step_lines(step, of=count, width=size.columns, most=room)[:room]
        keys = Text("space on · ← back · q leave", style="dim")
        drawn = Console(
            file=io.StringIO(),
            width=size.columns,
            force_terminal=True,
            no_color=console.no_color,
            color_system="standard",
            highlight=False,
            legacy_windows=False,
        )
        for line in (*picture, Text(), *lines, Text(), keys):
            drawn.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        assert isinstance(drawn.file, io.StringIO)  # noqa: S101 - made above
        return drawn.file.getvalue()
