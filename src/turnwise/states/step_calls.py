"""The calls of a step, counted as they change, so that questions about them cost the same for any number."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, Self, SupportsIndex, overload

from turnwise.states.calls import ToolCall
from turnwise.states.names import ActionOf, Awaited
from turnwise.states.values.values import unshared


class _Ids:
    """Ids of calls in call order, shared by all `StepCalls` with exactly these ids, so that their JSON is made once."""

    __slots__ = ("places", "spelled")

    def __init__(self, calls: Iterable[ToolCall]) -> None:
        self.places = {call.call_id: place for place, call in enumerate(calls)}
        self.spelled: str | None = None


class StepCalls(tuple[ToolCall, ...]):  # noqa: SLOT001 - slots of a tuple would have to be empty
    """Calls in call order. Immutable: a change gives another one, and counts only what has changed."""

    _ids: _Ids
    local: int
    """How many are local."""
    open_local: int
    """How many are local and have no result."""
    open_client: int
    """How many are the client's and have no result."""
    open_delegated: int
    """How many subagents have still to answer."""
    needs: tuple[str, ...]
    """The names of the tools that a worker must have to run the open local calls, in alphabetical order."""
    _to_run: Mapping[str, int]
    """How many open local calls name each of these tools."""
    agent: str | None
    """The agent that asked for them, if that is known."""
    step: int | None
    """The step to which all of them belong; `None` if there is none, or they belong to several."""

    def __new__(cls, calls: Iterable[ToolCall] = ()) -> Self:
        made = super().__new__(cls, sorted(calls, key=attrgetter("index")))
        made._ids = _Ids(made)
        made._count()
        return made

    @property
    def are_distinct(self) -> bool:
        return len(self._ids.places) == len(self)

    @property
    def has_open(self) -> bool:
        return self.open_local + self.open_outside > 0

    @property
    def open_outside(self) -> int:
        """How many wait for an answer of the client or of a subagent."""
        return self.open_client + self.open_delegated

    @property
    def asked_of_client(self) -> tuple[ToolCall, ...]:
        """Those that the client has to answer, as it may see them."""
        return tuple(call.shown for call in self if call.open and call.is_client)

    @property
    def awaited(self) -> Awaited | None:
        """Who has to answer them; `None` if it is neither the client nor a subagent."""
        if not self.open_delegated:
            return "client" if self.open_client else None
        return "both" if self.open_client else "subagents"

    @property
    def action_of(self) -> ActionOf | None:
        """Whose action is needed: the first that is asked of operator, owner, client and subagents, or `None`."""
        asked = self.asked_of_client
        approvers = {call.approver for call in asked if call.approval == "asked"}
        if approvers:
            return "operator" if "operator" in approvers else "owner"
        return "client" if asked else "subagents" if self.open_delegated else None

    @property
    def agent_needed(self) -> str | None:
        """The agent that a worker must run for the tools that they need; `None` if they need none, or it is unknown."""
        return self.agent if self.needs else None

    @property
    def ids(self) -> str:
        """The ids in call order, as a JSON array."""
        if self._ids.spelled is None:
            self._ids.spelled = json.dumps([call.call_id for call in self])
        return self._ids.spelled

    def are_those_of(self, others: StepCalls) -> bool:
        """Return whether these were derived from the others with the same ids; false also if that is not known."""
        return self._ids is others._ids

    def get(self, call_id: str) -> ToolCall | None:
        place = self._ids.places.get(call_id)
        return None if place is None else self[place]

    def put(self, *calls: ToolCall) -> StepCalls:
        """Return the calls with these inserted, or in the place of those with their ids."""
        made = self
        for number, call in enumerate(calls):
            place = made._ids.places.get(call.call_id)
            if place is None or not made._may_stand_at(place, call):
                return StepCalls({one.call_id: one for one in (*made, *calls[number:])}.values())
            made = made._with(place, call)
        return made

    def unshared(self) -> StepCalls:
        """Return these calls for someone who may change what is in them, at the same cost for any number."""
        copies = tuple.__new__(_UnsharedCalls, self)
        vars(copies).update(vars(self))
        return copies

    def _may_stand_at(self, place: int, call: ToolCall) -> bool:
        return self.are_distinct and self[place].index == call.index and self[place].step == call.step

    def _with(self, place: int, call: ToolCall) -> StepCalls:
        made: StepCalls = tuple.__new__(StepCalls, (*self[:place], call, *self[place + 1 :]))
        before = self[place]
        made._ids, made.step = self._ids, self.step
        made.local = self.local + call.is_local - before.is_local
        made.open_local = self.open_local + _is_open_local(call) - _is_open_local(before)
        made.open_client = self.open_client + _is_open_client(call) - _is_open_client(before)
        made.open_delegated = self.open_delegated + _is_open_delegated(call) - _is_open_delegated(before)
        made.agent = self.agent if call.agent == before.agent else _asked_by(made)
        made._to_run, made.needs = self._to_run, self.needs
        if _runs(call) != _runs(before) or call.name != before.name:
            to_run = {before.name: 0, call.name: 0, **self._to_run}
            to_run[before.name] -= _runs(before)
            to_run[call.name] += _runs(call)
            made._set_to_run(to_run)
        return made

    def _set_to_run(self, to_run: Mapping[str, int]) -> None:
        self._to_run = {name: number for name, number in to_run.items() if number}
        self.needs = tuple(sorted(self._to_run))

    def _count(self) -> None:
        steps = {call.step for call in self}
        self.step = steps.pop() if len(steps) == 1 else None
        self.agent = _asked_by(self)
        self.local = sum(call.is_local for call in self)
        self.open_local = sum(_is_open_local(call) for call in self)
        self.open_client = sum(_is_open_client(call) for call in self)
        self.open_delegated = sum(_is_open_delegated(call) for call in self)
        self._set_to_run(Counter(call.name for call in self if _runs(call)))


class _UnsharedCalls(StepCalls):
    """The calls of a step, each of which is copied when it is read."""

    @overload
    def __getitem__(self, place: SupportsIndex) -> ToolCall: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[ToolCall, ...]: ...

    def __getitem__(self, place: SupportsIndex | slice) -> ToolCall | tuple[ToolCall, ...]:
        copies: ToolCall | tuple[ToolCall, ...] = unshared(super().__getitem__(place))
        return copies

    def __iter__(self) -> Iterator[ToolCall]:
        return map(unshared, super().__iter__())

    def __add__(self, others: Any) -> tuple[Any, ...]:
        return (*self, *others)


def _asked_by(calls: Iterable[ToolCall]) -> str | None:
    return next((call.agent for call in calls if call.agent is not None), None)


def _is_open_local(call: ToolCall) -> bool:
    return call.open and call.is_local


def _runs(call: ToolCall) -> bool:
    return _is_open_local(call) and call.refusal is None


def _is_open_client(call: ToolCall) -> bool:
    return call.open and call.is_client


def _is_open_delegated(call: ToolCall) -> bool:
    return call.open and call.is_delegated


NO_CALLS: Final = StepCalls()
