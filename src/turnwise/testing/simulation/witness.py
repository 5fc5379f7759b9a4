"""What worlds have met, so that a world in which nothing happened is not taken for one in which all went well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from turnwise.engine.observers.observer import Ended, Observer, ToolRun
from turnwise.engine.tools.declare import Tool
from turnwise.foreign import described
from turnwise.states import triggers as t
from turnwise.states.calls import CallOutcome
from turnwise.states.decide import Decision
from turnwise.states.errors import FatalToolError, ToolFailed
from turnwise.states.names import CallStatus, ChatState
from turnwise.states.triggers import Trigger

_S: Final = ChatState
SITUATIONS: Final[Mapping[str, tuple[type[Trigger] | None, ChatState | None, ChatState | None]]] = {
    "an interrupt while the model answers": (None, _S.streaming, _S.interrupted),
    "an interrupt while tools run": (None, _S.executing_tools, _S.interrupted),
    "a crash while the model answers": (t.LeaseExpired, _S.streaming, None),
    "a crash while tools run": (t.LeaseExpired, _S.executing_tools, None),
    "a failed reply that is asked for again": (t.AttemptDiscarded, None, None),
    "a model that is asked instead of another": (t.FallbackStarted, None, None),
    "results of a client's tools": (t.SubmitToolResults, None, None),
    "a compaction": (t.Compacted, None, None),
    "an edit": (t.EditMessage, None, None),
    "a message that the clock sends": (t.ScheduleFired, None, None),
}
"""What has to happen in some world: a trigger, the state in which it comes, the one it leads to; `None` for any."""
_ENOUGH_RUNS: Final = 3
"""How often a tool may fail, in one world in which it never succeeds, before that is a problem of the world."""


class ToolSeen(msgspec.Struct):
    """What became of the runs of a tool."""

    runs: int = 0
    succeeded: int = 0
    raised: int = 0
    """How often it raised what is no `ToolFailed` or `FatalToolError`, by which tools speak of themselves."""
    last_error: str = ""


class Witness(Observer):
    """Notes what the engines of worlds do."""

    def __init__(self) -> None:
        self.states: set[ChatState] = set()
        self.situations: set[str] = set()
        self.tools: dict[str, ToolSeen] = {}
        self._starts: Counter[tuple[str, str, str]] = Counter()

    def transitioned(self, decision: Decision) -> None:
        """Note where a chat comes from and goes to."""
        self.states.add(decision.target)
        met = (decision.trigger, decision.source, decision.target)
        for name, wanted in SITUATIONS.items():
            if all(one in (None, found) for one, found in zip(wanted, met, strict=True)):
                self.situations.add(name)

    def tool_started(self, run: ToolRun) -> Ended | None:
        """Note that a tool runs, and how that ends."""
        seen = self.tools.setdefault(run.call.name, ToolSeen())
        seen.runs += 1
        if run.call.crash == "at_most_once":
            self._starts[run.chat_id, run.call.call_id, run.call.name] += 1

        def ended() -> None:
            seen.succeeded += isinstance(run.result, CallOutcome) and run.result.status is CallStatus.succeeded
            if run.error is not None and not isinstance(run.error, ToolFailed | FatalToolError):
                seen.raised += 1
                seen.last_error = described(run.error)

        return ended

    def started_twice(self) -> Iterator[tuple[str, str]]:
        """Yield the chat of each call of an at-most-once tool that began more than once, and what is wrong with it."""
        for (chat_id, call_id, name), times in self._starts.items():
            if times > 1:
                yield chat_id, f"{chat_id}: the call {call_id} of {name}, at most once, began {times} times"

    def hopeless(self) -> Iterator[str]:
        """Yield the tools that have failed again and again."""
        for name, seen in self.tools.items():
            if not seen.succeeded and seen.raised >= _ENOUGH_RUNS:
                yield f"the tool {name} raised in {seen.raised} runs and never succeeded; at last {seen.last_error}"


def missing_in(witnesses: Iterable[Witness], tools: Mapping[str, Tool], *, except_for: Iterable[str]) -> list[str]:
    """Return what none of these has met: states, situations, and tools that succeed; less what was excepted."""
    every, excepted = [*witnesses], {*except_for}
    states = set[ChatState]().union(*(one.states for one in every))
    situations = set[str]().union(*(one.situations for one in every))
    missing = [f"the state {state}" for state in ChatState if state not in states and str(state) not in excepted]
    missing += [f"the situation {name!r}" for name in SITUATIONS if name not in situations and name not in excepted]
    for name, tool in tools.items():
        seen = [one.tools[name] for one in every if name in one.tools]
        if tool.subagent_action is None and name not in excepted and not any(one.succeeded for one in seen):
            missing.append(f"the tool {name}: {_what_became_of(seen)}")
    return missing


def _what_became_of(seen: list[ToolSeen]) -> str:
    runs = sum(one.runs for one in seen)
    errors = [one.last_error for one in seen if one.last_error]
    if not runs:
        return "it never ran"
    return f"it never succeeded in {runs} runs; the last one raised {errors[-1]}" if errors else f"{runs} runs failed"
