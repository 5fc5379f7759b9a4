"""A terminal in a folder of its own."""

from pathlib import Path

import pytest

from support.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)
