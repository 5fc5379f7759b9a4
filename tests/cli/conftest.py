"""One demo, played once; every command is tried on what it leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.terminal import Finished, Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """Return a terminal in a folder where the demo is going to be played, or was."""
    return Terminal(tmp_path_factory.mktemp("demo"), store="sqlite:///demo-out/chats.db")


@pytest.fixture(scope="session")
def played(demo: Terminal) -> Finished:
    """Play the demo. The folder is empty, so it reads turnwise's engine."""
    return demo.run_apart("demo", "--fast")
