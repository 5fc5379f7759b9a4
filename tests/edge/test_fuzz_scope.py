"""Everything public is fuzzed, or has a reason not to be; and there are as many cases as were promised."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path
from types import FunctionType
from typing import Final

from support.fuzzed_chats import methods_of
from support.fuzzing import DRAWN, each_parameter
from support.public_surface import NOT_FUZZED, SAID, makers, not_fuzzed, public_names
from support.right_arguments import RIGHT
from turnwise import Engine
from turnwise.client import Client

REFERENCE: Final = Path(__file__).parents[2] / "docs/reference"
METHODS: Final = {kind: methods_of(kind) for kind in (Engine, Client)}
FUZZED: Final = {*RIGHT, *SAID, *(f"{kind.__name__}.{one.name}" for kind, found in METHODS.items() for one in found)}


def test_everything_public_is_fuzzed_or_has_a_reason_not_to_be() -> None:
    assert sorted(public_names().keys() - FUZZED - not_fuzzed()) == []


def test_every_class_and_function_that_the_reference_tells_of_is_public() -> None:
    """Else no test would ask what it refuses. What a page names or imports stands in the reference."""
    pages = [page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md")]
    told = {name for page in pages for name in re.findall(r"^::: (.+)$", page, re.MULTILINE)}
    called = {name.rpartition(".")[2] for name in told if isinstance(pkgutil.resolve_name(name), type | FunctionType)}
    assert called - public_names().keys() == {"Decision", "Diagnosis"}, "which turnwise hands out"


def test_no_name_is_there_that_is_not_public_or_is_fuzzed_all_the_same() -> None:
    listed = [name for names in NOT_FUZZED.values() for name in names.split()]
    assert len(listed) == len(set(listed))
    assert sorted({*FUZZED, *listed} - public_names().keys()) == []
    assert sorted(FUZZED & not_fuzzed()) == []


def test_three_thousand_cases_are_tried_and_more() -> None:
    """Beside those of the command line, which are typed and not called."""
    directed = [each_parameter(targets) for targets in (makers(), *METHODS.values())]
    assert sum(map(len, directed)) + sum(DRAWN.values()) - DRAWN["command lines"] >= 3000
