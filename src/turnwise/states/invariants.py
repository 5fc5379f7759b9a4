"""What must hold of a chat's facts: the invariants of each state, and the bounds that hold in all of them.

Each is a named predicate; its docstring is the sentence an operator reads when it is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from turnwise.states.facts import Facts
from turnwise.states.names import LEASED, ChatState, Need, Stage

Invariant = Callable[[Facts], bool]


def state_is_declared(facts: Facts) -> bool:
    """The stored state is one of the table's."""
    return facts.stored_state is None


def work_is_left(facts: Facts) -> bool:
    """A step is unfinished, a compaction is owed, or the history awaits the model."""
    return facts.step.stage is not Stage.done or facts.compaction.need is not Need.none or facts.history.unfinished


def has_no_lease(facts: Facts) -> bool:
    """No worker holds the chat."""
    return facts.lease is None


def has_a_lease(facts: Facts) -> bool:
    """A worker holds the chat."""
    return facts.lease is not None


def has_no_open_call(facts: Facts) -> bool:
    """Every call has its result."""
    return not facts.calls.has_open


def has_no_open_local_call(facts: Facts) -> bool:
    """Every local call has its result."""
    return not facts.calls.open_local


def has_an_open_outside_call(facts: Facts) -> bool:
    """A call that the client or a subagent answers lacks its result."""
    return facts.calls.open_outside > 0


def has_local_calls(facts: Facts) -> bool:
    """The step has local calls, open or just finished."""
    return facts.step.stage is Stage.acting and facts.calls.local > 0


def queue_is_empty(facts: Facts) -> bool:
    """No message waits in the queue."""
    return not facts.queue


def model_owes_an_answer(facts: Facts) -> bool:
    """The history ends in something the model must answer or continue, and a step has started."""
    return facts.step.stage is Stage.asking and facts.history.unfinished


def step_is_not_compacted(facts: Facts) -> bool:
    """A compaction is owed and none is committed for this step."""
    return facts.compaction.need is not Need.none and facts.compaction.step != facts.step.number


def error_is_named(facts: Facts) -> bool:
    """`last_error` says what went wrong."""
    return facts.last_error is not None


def rests_without_lease_or_calls(facts: Facts) -> bool:
    """Once settled, no worker holds the chat and every call has its result."""
    return not facts.settled or (facts.lease is None and not facts.calls.has_open)


def only_interrupts_are_unsettled(facts: Facts) -> bool:
    """Partial work waits to be settled only in `interrupted`."""
    return facts.settled or facts.state is ChatState.interrupted


def only_unsettled_chats_promote(facts: Facts) -> bool:
    """The head of the queue is promoted as an interrupt is settled, and at no other time."""
    return not (facts.promote and facts.settled)


def lease_is_the_newest(facts: Facts) -> bool:
    """The lease carries the last fencing token given."""
    return facts.lease is None or facts.lease.token == facts.fence


def calls_are_of_this_step(facts: Facts) -> bool:
    """Every remembered call belongs to the current step, each id once."""
    return not facts.calls or (facts.calls.are_distinct and facts.calls.step == facts.step.number)


def archived_chats_have_no_schedules(facts: Facts) -> bool:
    """The clock sends nothing to an archived chat."""
    return not (facts.archived and facts.schedules)


ALWAYS: Final[tuple[Invariant, ...]] = (
    state_is_declared,
    only_interrupts_are_unsettled,
    only_unsettled_chats_promote,
    lease_is_the_newest,
    calls_are_of_this_step,
    archived_chats_have_no_schedules,
)
"""What holds in every state."""

INVARIANTS: Final[dict[ChatState, tuple[Invariant, ...]]] = {
    ChatState.waiting: (has_no_lease, has_no_open_call, queue_is_empty),
    ChatState.pending: (has_no_lease, work_is_left),
    ChatState.streaming: (has_a_lease, has_no_open_call, model_owes_an_answer),
    ChatState.executing_tools: (has_a_lease, has_local_calls),
    ChatState.compacting: (has_a_lease, step_is_not_compacted, has_no_open_local_call),
    ChatState.requires_action: (has_no_lease, has_an_open_outside_call, has_no_open_local_call),
    ChatState.interrupted: (rests_without_lease_or_calls,),
    ChatState.error: (has_no_lease, has_no_open_call, error_is_named),
}
"""What holds in each state."""

assert set(INVARIANTS) == set(ChatState), "every state has an invariant"  # noqa: S101 - checked at import
assert {state for state, invariants in INVARIANTS.items() if has_a_lease in invariants} == LEASED  # noqa: S101 - as above

_HOLDING: Final = {state: (*ALWAYS, *invariants) for state, invariants in INVARIANTS.items()}


def broken_invariants(facts: Facts) -> tuple[str, ...]:
    """Return the names of the invariants that `facts` break: none for a sound chat."""
    if facts.stored_state is not None:
        return (state_is_declared.__name__,)
    return tuple([invariant.__name__ for invariant in _HOLDING[facts.state] if not invariant(facts)])
