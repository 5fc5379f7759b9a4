"""What the fuzz hands in: for every parameter one odd value after another, and then mixtures that are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from support.exploring import examples
from support.odd_values import CHOSEN, Odd, odd_values
from support.public_surface import Target

DRAWN: Final[Mapping[str, int]] = {
    "declarations": 500,
    "turns": 200,
    "chats": 450,
    "working chats": 120,
    "command lines": 160,
}
"""How many cases each test draws in a plain run."""
PATIENCE: Final = 60
"""Seconds after which a call hangs."""
LONG: Final = pytest.mark.timeout(120 + examples(sum(DRAWN.values())) // 5)
PLAIN: Final = frozenset({"decide"})
"""What Python itself refuses if an argument is missing or misspelt: it is asked for every transition."""
MISSPELT: Final = Odd(None, "misspelt")
MISSING: Final = Odd(None, "missing")

Oddity = tuple[str, Odd]
"""An argument, and what is handed in for it; or one that is left out, or misspelt."""


class Case(NamedTuple):
    """A call with something wrong."""

    target: Target
    odd: list[Oddity]

    def __repr__(self) -> str:
        return f"{self.target.name}({', '.join(f'{name}: {odd!r}' for name, odd in self.odd)})"


def each_parameter(targets: Iterable[Target]) -> list[Case]:
    """Return a case for every parameter of every target and every chosen value, and a misspelt one for each target."""
    targets = list(targets)
    return [
        *(Case(target, [(name, odd)]) for target in targets for name in target.right for odd in CHOSEN),
        *(Case(target, [("nothing", MISSPELT)]) for target in targets if target.name not in PLAIN),
    ]


@st.composite
def cases(draw: st.DrawFn, targets: list[Target]) -> Case:
    """Draw what is wrong with a call: one or two odd arguments, sometimes a missing or a misspelt one beside them."""
    target = draw(st.sampled_from(targets))
    names = list(target.right) or ["nothing"]
    names += 4 * [name for name in names if name not in ("chat_id", "actor")]
    odd = draw(st.lists(st.tuples(st.sampled_from(names), odd_values), min_size=1, max_size=2))
    if target.name not in PLAIN and draw(st.integers(0, 9)) == 0:
        odd.append((draw(st.sampled_from(names)), draw(st.sampled_from([MISSING, MISSPELT]))))
    return Case(target, odd)


def arguments_of(case: Case) -> tuple[list[Any], dict[str, Any]]:
    """Return the right arguments, by place and by name, with what is odd in their places."""
    given: dict[str, Any] = dict(case.target.right)
    for name, odd in case.odd:
        if odd is MISSPELT or name == "nothing":
            given[f"{name}s_"] = given.pop(name, None)
        elif odd is MISSING:
            given.pop(name, None)
        else:
            given[name] = odd.value
    return [given.pop(name) for name in case.target.positional if name in given], given


def draws(name: str) -> Any:
    """Return the decorators of a test that draws cases."""

    def decorate(test: Any) -> Any:
        bound = settings(
            max_examples=examples(DRAWN[name]),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
        )
        return LONG(bound(test))

    return decorate
