"""Any command line ends with an exit code and a sentence, never with a traceback, and misuse writes nothing."""

from __future__ import annotations

import os
import signal
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import click
import pytest
import typer
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from support.exploring import examples
from support.terminal import Terminal
from turnwise import ClientTool, Engine
from turnwise.cli.app import app
from turnwise.cli.failures import STOPPED
from turnwise.providers.scripted import Call, Reply, ScriptedModel

COMMANDS: Final[dict[str, click.Command]] = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
ENDLESS: Final = frozenset({"worker", "demo", "serve", "inspect"})
"""These run until they are stopped, or play for a while: only what they refuse is typed."""
WORDS: Final = (
    *("", " ", "\n", "\ud800", "half \udfff", "waiting", "ask", "queue", "demo", "sqlite://", "{}", "a b", "m1"),
    *("m404", "call_1", "0", "-1", "nan", "\u202e\u200f", "💥", "x" * 1025, "x" * 20_000, "é" * 600, "%s%n"),
    *("../../etc/passwd", "'; DROP TABLE chats; --"),
)
FILES: Final = ("/", ".", "-", "--", "/nowhere/at/all", "chats.db", "sqlite:///chats.db", "sqlite:///nowhere/x.db")
CODES: Final = frozenset({0, 1, 2})

words = st.sampled_from([*WORDS, *FILES])


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """Draw a command line: a command, and odd words for some of its arguments and options."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    if name in ENDLESS:
        return [name, draw(st.sampled_from(["--no-such-option", "--store", "too", "--concurrency=x"])), ""]
    typed = [name]
    for one in COMMANDS[name].params:
        if isinstance(one, click.Option):
            if draw(st.integers(0, 3)) == 0:
                typed.append(draw(st.sampled_from(one.opts)))
                typed += [] if one.is_flag else [draw(words)]
        elif draw(st.integers(0, 9)):
            typed.append(draw(st.one_of(st.just("last"), words)))
    return typed


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    folder = tmp_path_factory.mktemp("typed")
    anyio.run(_fill, folder / "chats.db")
    return Terminal(folder, store="sqlite:///chats.db")


async def _fill(path: Path) -> None:
    """Make chats that rest, wait for a client, and failed."""
    script = [Reply("hello"), Reply(calls=[Call("sign", {"x": 1}, id="call_1")])]
    sign = ClientTool("sign", "Sign.", {"type": "object"})
    async with Engine(f"sqlite:///{path}", model=ScriptedModel(script)) as engine:
        for client_tools in ((), (sign,), ()):
            chat = await engine.create_chat(owner="o", title="t", metadata={"k": 1}, client_tools=client_tools)
            await engine.ask(chat.id, "hi")


@pytest.mark.deep
@pytest.mark.timeout(900)
@settings(max_examples=examples(80), phases=[Phase.generate, Phase.shrink])
@given(lines())
def test_any_command_line_ends_with_code_and_sentence(terminal: Terminal, typed: list[str]) -> None:
    before = _stored(terminal.folder)
    with pressing_ctrl_c():
        finished = terminal.run(*typed)
    assert finished.code != STOPPED, f"{typed} did not end"
    assert finished.code in CODES, finished
    assert "Traceback" not in finished.err
    if finished.code == click.UsageError.exit_code:
        assert finished.err.strip()
        assert _stored(terminal.folder) == before, "misuse wrote something"


@contextmanager
def pressing_ctrl_c() -> Iterator[None]:
    """Press Ctrl-C after a minute: an example that never ends would hold up the suite."""
    timer = threading.Timer(60, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _stored(folder: Path) -> Any:
    return {file.name: zlib.crc32(file.read_bytes()) for file in folder.glob("chats.db*") if "shm" not in file.name}
