"""Deciding: pure, synchronous, and the only way to move a chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, overload

from turnwise.states import actions as a
from turnwise.states import guards as g
from turnwise.states.draft import Draft
from turnwise.states.errors import BrokenInvariant, ChatArchived, IllegalTransition, InvalidArgument, WrongCall
from turnwise.states.events import ErrorInfo, Event, StatusEvent
from turnwise.states.facts import Facts, Limits, TurnFacts
from turnwise.states.invariants import broken_invariants
from turnwise.states.machine import fire
from turnwise.states.names import NEW, UNKNOWN, ChatState, Job, job_in
from turnwise.states.refusals import REFUSALS
from turnwise.states.table import TABLE, Guard, rows_of, triggers_in
from turnwise.states.triggers import TRIGGERS, Imported, TransitionContext, Trigger, trigger_of
from turnwise.states.values.plain import shown
from turnwise.states.values.values import Value
from turnwise.states.writes import Write


def legal_triggers(facts: Facts) -> tuple[str, ...]:
    """Return the names of the triggers that would be accepted with the right arguments, in order of declaration.

    `imported` is not among them: it brings a chat into a store, and is no trigger of a stored one.
    """
    draft = Draft[Any](facts, _NOTHING, _NOTHING)
    return tuple(
        trigger.name
        for trigger in triggers_in(facts.place)
        if trigger is not Imported
        and not is_shut_to(trigger, facts)
        and any(all(_could_agree(guard, draft) for guard in row.when) for row in rows_of(trigger, facts.place))
    )


def is_shut_to(trigger: type[Trigger], facts: Facts) -> bool:
    """Return whether the chat is archived and therefore refuses the trigger."""
    return facts.archived and not trigger.while_archived


def _anything(facts: Facts) -> bool:  # noqa: ARG001 - a question about facts like the others
    return True


_COULD_AGREE: Final[Mapping[Guard[Any], Callable[[Facts], bool]]] = {
    g.wants_interrupt: _anything,
    g.prompt_fits: _anything,
    g.next_model_waits: _anything,
    g.has_local_calls: _anything,
    g.has_outside_calls: _anything,
    g.compaction_due: _anything,
    g.prompt_will_not_fit: _anything,
    g.turn_over: _anything,
    g.budget_short: _anything,
    g.call_affordable: _anything,
    g.turn_goes_on: _anything,
    g.every_call_is_due: _anything,
    g.schedule_is_due: lambda facts: bool(facts.schedules),
    g.is_skipped: _anything,
    g.queue_has_room: _anything,
    g.call_may_start: lambda facts: any(call.may_start or call.may_be_undone for call in facts.calls),
    g.call_lacks_result: lambda facts: facts.calls.open_local > 0,
    g.awaits_more: lambda facts: facts.calls.open_delegated > 0 and facts.calls.open_outside > 1,
    g.call_is_due: lambda facts: any(call.deadline is not None for call in facts.open_calls),
}
"""For guards that ask about the trigger's arguments or the time: whether some arguments would satisfy them.

Other arguments would not. Every other guard asks only about the facts.
"""
_NOTHING: Final[Any] = None

BEGIN_ATTEMPTS: Final = frozenset(
    (row.trigger, row.target) for row in TABLE if {a.start_attempt, a.start_due_attempt} & {*row.actions}
)
"""The triggers and targets of rows that begin an attempt, if none has to wait."""


def _could_agree(guard: Guard[Any], draft: Draft[Any]) -> bool:
    could = _COULD_AGREE.get(guard)
    return guard(draft) if could is None else could(draft.before)


class Decision(Value, frozen=True):
    """What a trigger does to a chat. A store performs all of it in one transaction, or nothing."""

    trigger: type[Trigger]
    source: str | None
    """The state it starts from; `None` for a chat that did not exist."""
    target: ChatState
    facts: Facts
    """The facts afterwards."""
    writes: tuple[Write, ...]
    """What a store does, in order."""
    events: tuple[Event, ...]
    """The events for subscribers, in order."""
    actor: str
    reason: str | None
    salt: str = ""
    """The salt of this commit; empty if nothing is salted."""
    ended: TurnFacts | None = None
    """The turn that ended, if one did; the facts may already have the next one."""
    error: ErrorInfo | None = None
    """The error that the trigger brought, also if the chat goes on; `None` for a compaction that was declined."""

    @property
    def begins_attempt(self) -> bool:
        """Whether an attempt at a step or a summary begins with it."""
        return self.facts.step.attempt_open and (self.trigger, self.target) in BEGIN_ATTEMPTS


@overload
def decide(facts: Facts, trigger: Trigger, at: TransitionContext) -> Decision: ...


@overload
def decide(facts: Facts, trigger: type[Trigger], *, now: datetime, limits: Limits, **arguments: Any) -> Decision: ...


def decide(
    facts: Facts, trigger: Trigger | type[Trigger], at: TransitionContext | None = None, **arguments: Any
) -> Decision:
    """Return what a trigger does to a chat with these facts.

    Give a trigger and its circumstances, or the class of a trigger with the arguments of both by name, as in
    `decide(facts, Claimed, worker="w", now=now, limits=limits)`. Nothing is read, written or awaited: the same
    arguments always give the same decision.

    Raises:
        IllegalTransition: the table has no matching row. It names what is possible instead.
        TurnwiseError: a refusal of bad input, see `refusals`.
        BrokenInvariant: the facts afterwards would break an invariant.
        InvalidArgument: `facts` are not facts, or there is no such trigger.
        WrongCall: an argument of the trigger is missing, or the trigger has none of that name.
    """
    if type(facts) is not Facts:
        raise InvalidArgument("facts", f"must be Facts; it was {shown(facts)}")
    kind = trigger if isinstance(trigger, type) else type(trigger)
    if TRIGGERS.get(getattr(kind, "name", "")) is not kind:
        raise InvalidArgument("trigger", f"must be a trigger or its class; it was {shown(trigger)}")
    if is_shut_to(kind, facts):
        raise ChatArchived(facts.chat_id)
    if not rows_of(kind, facts.place):
        raise IllegalTransition(facts.place, kind.name, legal_triggers(facts))
    draft = Draft(facts, *_with_context(trigger, at, arguments))
    for refuse in REFUSALS[kind]:
        refuse(draft)
    if not fire(draft):
        raise IllegalTransition(facts.place, kind.name, legal_triggers(facts))
    return _decision(draft)


def _with_context(
    trigger: Trigger | type[Trigger], at: TransitionContext | None, arguments: dict[str, Any]
) -> tuple[Trigger, TransitionContext]:
    if isinstance(trigger, type):
        if at is None:
            return trigger_of(trigger, arguments)
    elif type(at) is TransitionContext and not arguments:
        return trigger, at
    raise WrongCall("at", "a trigger comes with its circumstances, the class of a trigger with arguments by name")


def job_of(facts: Facts) -> Job | None:
    """Return the job that runs while the chat is as `facts` say."""
    return None if facts.stored_state is not None else job_in(facts.state, settled=facts.settled)


def _decision(draft: Draft[Any]) -> Decision:
    before, trigger, at = draft.before, draft.trigger, draft.at
    status = _STATUS[before.place, draft.state]
    after = draft.finish(event_count=len(draft.events) + len(status) + len(draft.closing))
    broken = broken_invariants(after)
    if broken:
        raise BrokenInvariant(before.chat_id, trigger.name, broken)
    return Decision(
        trigger=type(trigger),
        source=None if before.place == NEW else before.state_as_stored,
        target=after.state,
        facts=after,
        writes=tuple(draft.writes),
        events=(*draft.events, *status, *draft.closing),
        actor=at.actor,
        reason=at.reason,
        salt=at.salt,
        ended=draft.ended,
        error=None if getattr(trigger, "declined", False) else getattr(trigger, "error", None),
    )


def _status_events(source: str, target: ChatState) -> tuple[StatusEvent, ...]:
    if source == target:
        return ()
    previous = None if source in (NEW, UNKNOWN) else ChatState(source)
    return (StatusEvent(state=target, previous=previous),)


_STATUS: Final[dict[tuple[str, str], tuple[StatusEvent, ...]]] = {
    (row.source, row.target): _status_events(row.source, row.target) for row in TABLE
}
"""The `status` event of a row, by its source and target."""
