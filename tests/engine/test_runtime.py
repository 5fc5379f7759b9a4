"""The runtime: what is known to come next in a chat shares the commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from support.life import NOW, Life, interrupted, local, parts_of, pending, streaming, waiting
from support.runtimes import runtime_of
from support.stores import stored_at
from turnwise.engine.apply import Chain
from turnwise.states.arguments import Reply
from turnwise.states.facts import Facts, Limits
from turnwise.states.names import Trigger
from turnwise.states.triggers import Circumstances, StepFinished
from turnwise.testing import ManualClock


def _backed_off() -> Life:
    """A chat between two attempts that its holder has let go."""
    life = streaming()
    life.discard()
    life.held(Trigger.lease_expired)
    return life


CLAIMED, STARTED = ("claimed", "worker:w"), ("attempt_started", "worker:w")


@pytest.mark.parametrize(
    ("facts", "more", "fired"),
    [
        (pending().facts, {}, [CLAIMED, STARTED]),
        (pending().facts, {"claims": False}, []),
        (pending().facts, {"stopping": True}, []),
        (_backed_off().facts, {}, [CLAIMED]),
        (waiting().facts, {}, []),
        (streaming().facts, {}, []),
        (streaming().facts, {"worker": "v"}, []),
        (interrupted().facts, {}, []),
    ],
)
async def test_commit_brings_what_is_known_to_follow(
    database: Path, facts: Facts, more: dict[str, Any], fired: list[tuple[str, str]]
) -> None:
    clock = ManualClock(NOW)
    runtime = runtime_of(stored_at(database, clock), clock)
    runtime.stopping, runtime.worker_id = more.get("stopping", False), more.get("worker", "w")
    chain = Chain(facts, Circumstances(now=NOW, limits=Limits(), actor="client"))
    runtime.begin(chain, claims=more.get("claims", True))
    assert [(str(decision.trigger), decision.actor) for decision in chain.decisions] == fired


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
