"""What the conformance suite asks of a store in more than one place, and the plans that it commits."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from turnwise.persistence.protocol import ChatStore, Committed, Plan
from turnwise.states import triggers as t
from turnwise.states.arguments import Origin, StepReply, SubagentAnswer, Summary
from turnwise.states.calls import CallOutcome, ToolCall, ToolResult
from turnwise.states.decide import Decision, decide
from turnwise.states.events import PartDelta, PartEvent
from turnwise.states.facts import Facts, Limits, Profile
from turnwise.states.messages import Message, Part, TextPart, ToolCallPart
from turnwise.states.names import DEFAULT_AGENT, CallStatus, Executor
from turnwise.states.usage import Usage
from turnwise.states.values.digests import digest

_E = TypeVar("_E", bound=Exception)


def part(text: str, *, step: int = 1, attempt: int = 1) -> PartEvent:
    """Return a piece of a reply."""
    return PartEvent(step=step, attempt=attempt, index=0, part=PartDelta(type="text", delta=text))


async def contents(store: ChatStore, chat_id: str) -> tuple[object, ...]:
    """Return all that a store says about a chat."""
    lease = await store.lease_expiry(chat_id)
    return (
        await store.facts(chat_id),
        await store.history(chat_id),
        await store.events(chat_id, after=0, limit=10_000),
        await store.audit(chat_id),
        await store.ledger(chat_id),
        lease and lease.expires,
    )


async def failure_of(call: Awaitable[object], kind: type[_E]) -> _E:
    """Return the error of the kind that a call must raise."""
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


async def refused(store: ChatStore, chat_id: str, call: Awaitable[object], kind: type[_E]) -> _E:
    """Return the error of the kind that a call must raise, having left the chat as it was."""
    before = await contents(store, chat_id)
    error = await failure_of(call, kind)
    assert await contents(store, chat_id) == before
    return error


Move = Callable[[Facts, datetime], Decision]

_MOMENT: Final = timedelta(microseconds=1)
LIMITS: Final = Limits(context_limit=1000)
RUNS: Final = {"default": ("look",)}
"""A worker that runs every chat of this suite."""
HOLDER: Final = 0
"""Stands for the token of the lease under which a move is made."""


def plan(*moves: Move) -> Plan:
    """Return a plan that makes the moves, each on the facts that the one before left."""

    def decide_all(facts: Facts, now: datetime) -> list[Decision]:
        decisions: list[Decision] = []
        for move in moves:
            decisions.append(move(decisions[-1].facts if decisions else facts, now))
        return decisions

    return decide_all


def idle(facts: Facts, now: datetime) -> list[Decision]:  # noqa: ARG001 - a plan's signature
    return []


async def created(
    store: ChatStore, chat_id: str, *moves: Move, owner: str | None = None, agent: str = DEFAULT_AGENT
) -> Committed:
    """Create a chat, make the moves, and return what the last of them did."""
    committed = await store.create(chat_id, plan(create(owner, agent)))
    for made in moves:
        committed = await store.change(chat_id, plan(made))
    return committed


def move(trigger: t.Trigger, *, limits: Limits = LIMITS, reason: str | None = None) -> Move:
    """Return the move of a trigger; one that needs a token gets that of the chat's lease at that moment."""

    def made(facts: Facts, now: datetime) -> Decision:
        token = facts.lease.token if facts.lease else None
        fired = dataclasses.replace(trigger, token=token) if isinstance(trigger, t.Held) else trigger
        return decide(facts, fired, t.TransitionContext(now=now, limits=limits, reason=reason))

    return made


def create(owner: str | None = None, agent: str = DEFAULT_AGENT) -> Move:
    def made(facts: Facts, now: datetime) -> Decision:
        profile = Profile(created_at=now, agent=agent, system="Be brief.", owner=owner, metadata={"kind": ["test"]})
        return move(t.Create(profile=profile))(facts, now)

    return made


def send(text: str, *, client_id: str | None = None) -> Move:
    parts = (TextPart(text=text),)
    return move(t.SendMessage(parts=parts, client_id=client_id, content_digest=digest(text)))


def claim(worker: str = "worker", *, lease: float = 30) -> Move:
    """Take the chat, for `lease` seconds."""
    return move(t.Claimed(worker=worker), limits=Limits(context_limit=1000, lease=lease))


def start() -> Move:
    return move(t.AttemptStarted(token=HOLDER))


def reply(
    text: str,
    *,
    local: Sequence[str] = (),
    client: Sequence[str] = (),
    delegated: Sequence[str] = (),
    tokens: int = 10,
) -> Move:
    """Finish the step with a text and calls; at 800 `tokens` a compaction is due. Client calls are due at once."""

    def made(facts: Facts, now: datetime) -> Decision:
        by_executor = ((local, Executor.local), (client, Executor.client), (delegated, Executor.chat))
        executors = [(id_, executor) for ids, executor in by_executor for id_ in ids]
        calls = tuple(
            ToolCall(
                call_id=call_id,
                name="look",
                arguments={"at": call_id},
                executor=executor,
                index=index,
                step=facts.step.number,
                subagent="research" if executor is Executor.chat else None,
                within=0 if executor is Executor.client else None,
            )
            for index, (call_id, executor) in enumerate(executors)
        )
        parts: tuple[Part, ...] = (
            TextPart(text=text),
            *(ToolCallPart(call_id=c.call_id, name=c.name, arguments=c.arguments, executor=c.executor) for c in calls),
        )
        asked_by = Origin(agent=facts.profile.agent, model="model", provider="provider")
        usage = Usage(input_tokens=tokens)
        finished = StepReply(parts=parts, calls=calls, usage=usage, context_tokens=tokens, origin=asked_by)
        return move(t.StepFinished(token=HOLDER, reply=finished))(facts, now)

    return made


def finish(call_id: str) -> Move:
    outcome = CallOutcome(call_id=call_id, status=CallStatus.succeeded, output={"saw": call_id}, is_error=False)
    return move(t.CallFinished(token=HOLDER, outcome=outcome))


def tools_finished() -> Move:
    return move(t.ToolsFinished(token=HOLDER))


def help_with(call_id: str, *, subagent: str = "subagent") -> Move:
    """Answer a delegated call."""
    answer = SubagentAnswer(chat_id=subagent, version=3, head="7" * 64, usage=Usage(input_tokens=5))
    return move(t.SubmitToolResults(results=(ToolResult(call_id, "answered"),), subagents=(answer,)))


def submit(*call_ids: str) -> Move:
    """Answer client calls, a moment before they are due."""
    results = tuple(ToolResult(call_id, "seen") for call_id in call_ids)

    def made(facts: Facts, now: datetime) -> Decision:
        due = [call.deadline for call in facts.open_calls if call.deadline is not None]
        return move(t.SubmitToolResults(results=results))(facts, min([now, *due]) - _MOMENT)

    return made


def fold(*messages: str | int) -> Move:
    """Commit a compaction after which the model sees new messages of those texts, and those at those positions."""
    made = (entry if isinstance(entry, int) else _new(entry) for entry in messages)
    summary = Summary(messages=tuple(made), folded=1)
    return move(t.Compacted(token=HOLDER, summary=summary, usage=Usage(input_tokens=7)))


def _new(text: str) -> Message:
    return Message(id="", role="user", parts=(TextPart(text=text),), turn=0, step=0, created_at=datetime.now(UTC))


def turn(asked: str, answered: str, *, tokens: int = 10) -> tuple[Move, ...]:
    """Return the moves of a whole turn."""
    return send(asked), claim(), reply(answered, tokens=tokens)
