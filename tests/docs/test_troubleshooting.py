"""The page of symptoms has a remedy for every kind of error, and for no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from turnwise.states import errors

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def test_page_has_a_remedy_for_each_error_kind() -> None:
    table = PAGE[PAGE.index("| kind |") : PAGE.index("### The chat is archived")]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = {kind for cell in cells for kind in re.findall(r"`(\w+)`", cell)}
    assert named == {*get_args(errors.ModelErrorKind), *get_args(errors.OwnErrorKind)}
