"""Finds the triggers that a chat would accept now, with the right arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from turnwise.states import guards as g
from turnwise.states.draft import Draft
from turnwise.states.facts import Facts
from turnwise.states.table import Guard, Row, rows_of, triggers_in
from turnwise.states.triggers import Imported, Trigger


def possible_triggers(facts: Facts) -> tuple[str, ...]:
    """Return the names of the triggers that would be accepted with the right arguments, in order of declaration.

    `imported` is not among them: it is what brings a chat into a store, and nobody asks it of one that is there.
    """
    draft = Draft[Any](facts, _NOTHING, _NOTHING)
    return tuple(
        trigger.name
        for trigger in triggers_in(facts.place)
        if trigger is not Imported
        and not is_shut_to(trigger, facts)
        and any(_may_match(row, draft) for row in rows_of(trigger, facts.place))
    )


def is_shut_to(trigger: type[Trigger], facts: Facts) -> bool:
    """Return whether the chat is archived and therefore refuses the trigger."""
    return facts.archived and not trigger.while_archived


def _anything(facts: Facts) -> bool:  # noqa: ARG001 - a question about facts like the others
    return True


_COULD_AGREE: Final[Mapping[Guard[Any], Callable[[Facts], bool]]] = {
    g.wants_interrupt: _anything,
    g.prompt_fits: _anything,
    g.has_local_calls: _anything,
    g.has_outside_calls: _anything,
    g.compaction_due: _anything,
    g.prompt_will_not_fit: _anything,
    g.turn_over: _anything,
    g.turn_goes_on: _anything,
    g.every_call_is_due: _anything,
    g.call_may_start: lambda facts: any(call.may_start or call.may_be_undone for call in facts.calls),
    g.call_lacks_result: lambda facts: facts.calls.open_local > 0,
    g.awaits_more: lambda facts: facts.calls.open_delegated > 0 and facts.calls.open_outside > 1,
    g.call_is_due: lambda facts: any(call.deadline is not None for call in facts.open_calls),
}
"""For guards that ask about the trigger's arguments or the time: whether some arguments would satisfy them.

Other arguments would not. Every other guard asks only about the facts.
"""
_NOTHING: Final[Any] = None


def _may_match(row: Row, draft: Draft[Any]) -> bool:
    return all(_could_agree(guard, draft) for guard in row.when)


def _could_agree(guard: Guard[Any], draft: Draft[Any]) -> bool:
    could = _COULD_AGREE.get(guard)
    return guard(draft) if could is None else could(draft.before)
