"""Moves of the model checker: every trigger, with a few arguments of each kind."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any, Final, Literal

from msgspec.structs import replace

from support.life import (
    ERROR,
    NOW,
    OVERFLOW,
    PROFILE,
    anything_for,
    client,
    delegated,
    local,
    parts_of,
    summary_of,
    text_parts,
)
from turnwise.states import triggers as t
from turnwise.states.arguments import Cut, Erasing, Partial, StepReply, SubagentAnswer
from turnwise.states.calls import CallOutcome, ToolCall, ToolResult
from turnwise.states.facts import Facts, Lease
from turnwise.states.invariants import broken_invariants
from turnwise.states.messages import Message, ModelFailure, ScheduledMessage
from turnwise.states.names import CallStatus, ChatState
from turnwise.states.triggers import TRIGGERS, Held, Trigger
from turnwise.states.usage import Usage

DUE: Final = NOW + timedelta(seconds=5)
"""A time after every deadline."""
LATER: Final = NOW + timedelta(seconds=10)
HELLO: Final = text_parts("hello")
WINDOW: Final = 100
"""Tokens."""

Kind = Literal["outside", "progress", "mishap"]
"""Sources of moves: a client or operator; a working worker; a crash, a retry, a shutdown."""

TOOLS: Final[dict[str, tuple[ToolCall, ...]]] = {
    "no call": (),
    "a local call": (local("c0"),),
    "two client calls, one with a deadline": (client("c0"), client("c1", 1, within=5.0)),
    "a call to approve": (client("c0", approval="asked"),),
    "a call to approve and a subagent's": (client("c0", approval="asked"), delegated("c1", 1)),
    "a stopping call and a client's": (local("c0", stop_after=True, crash="at_least_once"), client("c1", 1)),
}
_MESSAGE: Final = Message(id="m1", role="user", parts=HELLO, turn=1, step=0, created_at=NOW)
_CUT: Final = Cut(position=1, first_removed="m1", boundary=0, foldable=0, history_version=0)
SUBAGENT: Final = SubagentAnswer(chat_id="h", version=1, head="", usage=Usage())
_HELD: Final = [kind for kind in TRIGGERS.values() if issubclass(kind, Held)]
"""Triggers for the holder of the lease, or its end."""


@dataclass(frozen=True, slots=True)
class Move:
    """One trigger with its arguments."""

    kind: Kind
    trigger: type[Trigger]
    arguments: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    stale: bool = False
    """Whether the move uses a dead token."""
    circumstance: str = ""
    """The name of a condition outside of the chat; empty for the usual one."""

    def __str__(self) -> str:
        return f"{self.trigger.name} ({self.note})" if self.note else self.trigger.name


def moves_from(facts: Facts, *, room: int, tools: Iterable[str] = tuple(TOOLS)) -> Iterator[Move]:
    """Yield possible and impossible moves of the chat while its queue holds at most `room` messages.

    `tools` are the calls of replies, by the names of `TOOLS`.
    """
    if facts.version == 0:
        yield Move("outside", t.Create, {"profile": PROFILE})
        return
    yield from _moves_of_clients(facts, room)
    yield from _moves_of_operators(facts)
    for call in facts.calls:
        if call.is_delegated:
            answer = {"results": (ToolResult(call.call_id, 1),), "subagents": (SUBAGENT,)}
            yield Move("progress", t.SubmitToolResults, answer, f"subagent of {call.call_id}")
    yield Move("progress", t.Claimed, {"worker": "w"})
    yield Move("progress", t.DeadlinePassed, {"now": LATER})
    yield Move("mishap", t.DeadlinePassed, {"now": NOW}, "too early")
    token = facts.lease.token if facts.lease else None
    for move in _moves_of_holders(facts, tools):
        move.arguments["token"] = token
        yield move
    for trigger in _HELD:
        yield _under_a_dead_token(trigger, facts.fence - 1)


@cache
def _under_a_dead_token(trigger: type[Trigger], token: int) -> Move:
    return Move("mishap", trigger, anything_for(trigger, token=token), "under a dead token", stale=True)


def unlikely_moves_from(facts: Facts) -> Iterator[Move]:
    """Yield moves that the table allows but no code makes: answers to closed attempts, calls that never started."""
    yield from (Move("outside", trigger) for trigger in (t.Archived, t.Unarchived))
    yield Move("mishap", t.Repaired, {"error": ERROR})
    yield Move("outside", t.SendMessage, {"parts": HELLO, "when_busy": "interrupt"})
    yield Move("outside", t.Schedule, {"message": ScheduledMessage(id="s", parts=HELLO, due=NOW)})
    open_attempt = replace(facts, step=replace(facts.step, attempt_open=True))
    outcomes = [
        CallOutcome(call_id=call.call_id, status=CallStatus.failed, output=1, is_error=True) for call in facts.calls
    ]
    unlikely = [Move("mishap", t.CallFinished, {"outcome": outcome}) for outcome in outcomes]
    failure = ModelFailure(provider="p", model="m", kind=ERROR.kind)
    unlikely.append(Move("mishap", t.FallbackStarted, {"failure": failure, "error": ERROR, "next_model": "n"}))
    for move in [*_moves_of_holders(open_attempt, TOOLS), *unlikely]:
        move.arguments["token"] = facts.lease.token if facts.lease else None
        yield move


def repairs_of(facts: Facts) -> Iterator[tuple[Facts, Move]]:
    """Yield damaged variants of the chat, and their repair."""
    repair = Move("mishap", t.Repaired, {"error": ERROR})
    yield replace(facts, stored_state="dreaming"), repair
    lease = None if facts.lease else Lease("w", facts.fence)
    damaged = replace(facts, lease=lease)
    if broken_invariants(damaged):
        yield damaged, repair


def _moves_of_clients(facts: Facts, room: int) -> Iterator[Move]:
    word = {"parts": HELLO}
    yield Move("outside", t.SendMessage, {**word, "when_busy": "queue"})
    yield Move("outside", t.SendMessage, {**word, "when_busy": "reject"}, "or not at all")
    yield Move("outside", t.SendMessage, {**word, "when_busy": "steer"}, "to steer")
    if len(facts.queue) < room:
        yield Move("outside", t.SendMessage, {**word, "when_busy": "interrupt"}, "at once")
    for queued in facts.queue[-1:]:
        yield Move("outside", t.EditQueued, {**word, "queued_id": queued.id})
        yield Move("outside", t.DeleteQueued, {"queued_id": queued.id})
        yield Move("outside", t.PromoteQueued, {"queued_id": queued.id})
    for approves in (True, False):
        results = tuple(ToolResult(call.call_id, approves) for call in facts.open_calls if call.is_client)
        yield Move("outside", t.SubmitToolResults, {"results": results}, "yes" if approves else "no")
    yield Move("outside", t.EditMessage, {**word, "cut": _CUT})
    for trigger in (t.Interrupt, t.Resume, t.RequestCompaction, t.ClearContext):
        yield Move("outside", trigger)


def _moves_of_operators(facts: Facts) -> Iterator[Move]:
    yield Move("outside", t.Unarchived if facts.archived else t.Archived)
    yield Move("outside", t.Renamed, {"title": "other"})
    yield Move("outside", t.MetadataChanged, {"metadata": {}})
    yield Move("outside", t.MarkedRead)
    yield Move("outside", t.Configured, {"agent": "research"})
    yield Move("outside", t.MessageErased, {"erasing": Erasing(messages=(_MESSAGE,))})


def _moves_of_holders(facts: Facts, tools: Iterable[str]) -> Iterator[Move]:
    step = facts.step
    yield Move("mishap" if step.attempt_open else "progress", t.AttemptStarted)
    if step.attempt_open:
        discarded = {"error": ERROR, "delay": 1.0, "retry_at": NOW}
        yield Move("mishap", t.AttemptDiscarded, discarded)
        if facts.state is ChatState.streaming:
            yield Move("progress", t.AttemptDiscarded, {**discarded, "error": OVERFLOW}, "the prompt is too long")
            yield from _replies(facts, tools)
        yield Move("progress", t.Compacted, {"summary": summary_of("In short.")})
        yield Move("progress", t.CompactionFailed, {"error": ERROR})
    for call in facts.calls:
        started = call.status is CallStatus.started
        yield Move("mishap" if started else "progress", t.CallStarted, {"call_id": call.call_id}, call.call_id)
        for status in (CallStatus.succeeded, CallStatus.failed) if started else ():
            outcome = CallOutcome(call_id=call.call_id, status=status, output=1, is_error=status is CallStatus.failed)
            yield Move("progress", t.CallFinished, {"outcome": outcome}, f"{call.call_id} {status}")
    yield Move("progress", t.ToolsFinished)
    for note, partial in _partials(facts).items():
        yield Move("progress", t.Settled, {"partial": partial}, note)
        yield Move("mishap", t.Failed, {"partial": partial, "error": ERROR}, note)
    yield Move("mishap", t.Released)
    yield Move("mishap", t.LeaseExpired)


def _replies(facts: Facts, tools: Iterable[str]) -> Iterator[Move]:
    for note in tools:
        calls = _of_step(TOOLS[note], facts)
        for tokens, over in ((10, ""), (90, ", over the threshold"), (79, ", too long with what follows")):
            parts = HELLO if tokens != 79 else text_parts("hello" * WINDOW)
            reply = StepReply(parts=parts + parts_of(calls), calls=calls, context_tokens=tokens, context_limit=WINDOW)
            yield Move("progress", t.StepFinished, {"reply": reply}, note + over)
            if calls and calls[0].is_local:
                fields = {"reply": reply, "starts": (calls[0].call_id,)}
                yield Move("progress", t.StepFinished, fields, f"{note}{over}, the first starts")
            if not calls:
                asked_again = {"reply": replace(reply, refused=True)}
                yield Move("mishap", t.StepFinished, asked_again, f"without the form that is wanted{over}")


def _partials(facts: Facts) -> dict[str, Partial | None]:
    if not (facts.step.attempt_open and facts.step.purpose == "step"):
        return {"": None}
    shown = {"some words": (), "some words and two calls": (local("c0"), client("c1", 1))}
    partials = {
        note: Partial(step=facts.step.number, attempt=1, parts=HELLO + parts_of(tools), calls=_of_step(tools, facts))
        for note, tools in shown.items()
    }
    return {"nothing shown": None, **partials}


def _of_step(tools: tuple[ToolCall, ...], facts: Facts) -> tuple[ToolCall, ...]:
    return tuple(replace(call, step=facts.step.number) for call in tools)
