"""One demo, played once; every command is tried on what it leaves behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.text import Text

from support.look import colours
from support.terminal import Finished, Terminal
from turnwise import SigningKey

PAGE = "A line of text that a model may read, as long as it takes.\n" * 120


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


@pytest.fixture
def coloured() -> Iterator[None]:
    with colours():
        yield


@pytest.fixture
def key(terminal: Terminal) -> SigningKey:
    """Return the key that `turnwise keygen` has made in the terminal's folder."""
    told = terminal.run("keygen", "audit.pem")
    assert told.code == 0
    made = SigningKey.from_file(terminal.folder / "audit.pem")
    assert made.key_id in told.words
    assert made.private_pem.decode().splitlines()[1] not in told.out + told.err
    return made


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """Return a terminal in a folder where the demo is going to be played, or was."""
    folder = tmp_path_factory.mktemp("demo")
    for name in ("first.md", "second.md", "third.md"):
        (folder / name).write_text(PAGE)
    (folder / "demo-out").mkdir()
    (folder / "demo-out" / "notes.txt").write_text("what an earlier demo has noted\n")
    return Terminal(folder, store="sqlite:///demo-out/chats.db")


@pytest.fixture(scope="session")
def screen(demo: Terminal, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Play the demo and return what it printed, colours and all; the complaints of its processes are in `err`."""
    complaints = tmp_path_factory.mktemp("err") / "complaints"
    before = os.dup(2)
    with complaints.open("wb") as file, colours():
        os.dup2(file.fileno(), 2)
        try:
            done = demo.run("demo", "--fast")
        finally:
            os.dup2(before, 2)
            os.close(before)
    return done._replace(err=done.err + complaints.read_text())


@pytest.fixture(scope="session")
def played(screen: Finished) -> Finished:
    """Return what the demo told, in plain letters."""
    return screen._replace(out="".join(f"{Text.from_ansi(line).plain}\n" for line in screen.out.splitlines()))
