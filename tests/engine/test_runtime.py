"""The runtime: what is known to come next in a chat shares the commit."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from support.life import NOW, local, parts_of, streaming
from support.runtimes import runtime_of
from support.stores import stored_at
from turnwise.engine.apply import Chain
from turnwise.states.arguments import Reply
from turnwise.states.facts import Limits
from turnwise.states.triggers import Circumstances, StepFinished
from turnwise.testing import ManualClock

CLAIMED, STARTED = ("claimed", "worker:w"), ("attempt_started", "worker:w")


@pytest.mark.parametrize(
    ("worker", "deps", "started"),
    [
        ("w", {}, ["a"]),
        ("v", {}, []),
        ("w", {"made": "each time"}, []),
        ("w", {"made": "each time", "open": "default"}, ["a"]),
        ("w", {"made": "each time", "open": "another"}, []),
        ("w", {"stopping": "it may let the chat go next"}, []),
    ],
)
async def test_first_call_starts_in_the_commit_that_plans_it(
    database: Path, worker: str, deps: dict[str, str], started: list[str]
) -> None:
    """But not if `deps` have to be opened first, or if the worker may let the chat go."""
    clock = ManualClock(NOW)
    runtime = runtime_of(stored_at(database, clock), clock)
    runtime.worker_id, runtime.stopping = worker, "stopping" in deps
    runtime.deps = (lambda chat: chat) if "made" in deps else "a value"
    life = streaming()
    calls = tuple(replace(call, step=life.facts.step.number) for call in (local("a"), local("b", 1)))
    chain = Chain(life.facts, Circumstances(now=NOW, limits=Limits(), actor="client"))
    assert life.facts.lease is not None
    token = life.facts.lease.token
    chain.fire(StepFinished(token=token, reply=Reply(parts=parts_of(calls), calls=calls)))
    runtime.begin(chain, claims=True, deps_of=deps.get("open"))
    follows = chain.decisions[1:]
    assert [(str(decision.trigger), decision.actor) for decision in follows] == [
        ("call_started", f"worker:{worker}") for _ in started
    ]
    assert [call.call_id for call in chain.facts.calls if call.status != "planned"] == started
