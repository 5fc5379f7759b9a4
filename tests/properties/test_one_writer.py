"""One writer at a time: a worker that lost its lease can write nothing, not even a heartbeat.

Under a dead token no call changes a row, with or without another holder. Seen red: a dead token that is refused only if
somebody else holds the chat; an append that does not look at the token; a renewal that does not ask which worker holds
the lease; a lease under the token of the one before.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from support.life import ERROR, anything_for
from support.lives import RUNS, STORES, Process, StoredLife, Walk, lives_in
from turnwise import ChatState, StaleLease
from turnwise.states import triggers as t
from turnwise.states.errors import IllegalTransition
from turnwise.states.events import PartDelta, PartEvent
from turnwise.states.triggers import TRIGGERS, Held

pytestmark = pytest.mark.hypothesis
S = ChatState
LEASED = (S.streaming, S.executing_tools, S.compacting)
OF_HOLDERS = [kind for kind in TRIGGERS.values() if issubclass(kind, Held) and kind is not t.LeaseExpired]


@pytest.mark.parametrize("place", STORES)
def test_a_dead_token_writes_nothing(place: str, request: pytest.FixtureRequest) -> None:
    met = lives_in(place, request).each(live, sqlite=13, postgres=3, tools=("local", "once", "client"), max_steps=None)
    least = {"sqlite": 50, "postgres": 10}[place]
    assert met["lease lost"] >= least
    assert met["held by another"] >= least // 2
    assert met["held in the same state"] >= least // 10
    assert met["two claimed at once"] >= least // 5


def live(walk: Walk) -> None:
    life = walk.life
    assert isinstance(life, StoredLife)
    for _ in range(5):
        life.by = walk.random.randrange(2)
        if not walk.reach(*LEASED) or life.facts.lease is None:
            return
        for _ in range(walk.random.randrange(4)):
            if life.facts.lease is not None:
                walk.go_on()
        if life.facts.lease is not None:
            lose_lease(walk, life)
        claim_at_once(walk, life)


def lose_lease(walk: Walk, life: StoredLife) -> None:
    """End the lease of a process in one of the possible ways; perhaps another process claims the chat."""
    assert life.facts.lease is not None
    holder, token, state = life.holder, life.facts.lease.token, life.facts.state
    assert life.do(holder.store.renew(holder.name, 30)) == {life.chat_id: token}
    expire(life) if walk.chance(0.7) else life.held(t.Released)
    life.by = 1 - life.database.processes.index(holder)
    if walk.chance(0.8) and life.facts.state is S.pending:
        life.claim()
    walk.met["lease lost"] += 1
    if life.facts.lease is not None:
        assert life.facts.lease.token > token
        walk.met["held by another"] += 1
        walk.met["held in the same state"] += life.facts.state is state
    try_everything(life, holder, token)


def expire(life: StoredLife) -> None:
    """Expire the lease, and sweep."""
    life.wait(31)
    overdue = life.do(life.database.processes[1].store.overdue(limit=10))
    ((chat_id, token),) = overdue.leases
    assert chat_id == life.chat_id
    life.fire(t.LeaseExpired, token=token)
    assert life.do(life.store.overdue(limit=10)).leases == ()


def try_everything(life: StoredLife, zombie: Process, token: int) -> None:
    """Call every holder's command from a process without the lease."""
    before, step = (life.rows(), life.do(life.store.lease_expiry(life.chat_id))), life.facts.step
    words = PartDelta(type="text", delta="late")
    part = PartEvent(chat_id=life.chat_id, step=step.number, attempt=step.attempt, index=0, part=words)
    works = [zombie.store.append_events(life.chat_id, token, state, [part]) for state in LEASED]
    works.append(zombie.store.append_events(life.chat_id, token, life.facts.state, []))
    arguments = {"token": token, "error": ERROR, "delay": 1.0, "retry_at": life.now + timedelta(seconds=1)}
    for trigger in OF_HOLDERS:
        known = trigger.__dataclass_fields__
        own = {name: value for name, value in anything_for(trigger, **arguments).items() if name in known}
        works.append(zombie.writer.change(life.chat_id, trigger(**own), actor=zombie.actor))
    outcomes = life.database.at_once(*works)
    assert {type(outcome) for outcome in outcomes[:4]} == {StaleLease}
    assert {type(outcome) for outcome in outcomes[4:]} <= {StaleLease, IllegalTransition}
    assert life.do(zombie.store.renew(zombie.name, 600)) == {}
    assert (life.rows(), life.do(life.store.lease_expiry(life.chat_id))) == before


def claim_at_once(walk: Walk, life: StoredLife) -> None:
    """Two processes claim the same chat at once: exactly one gets it."""
    if not walk.reach(S.pending):
        return
    claims = [
        process.writer.claim(t.Claimed(worker=process.name), actor=process.actor, runs=RUNS, limit=5)
        for process in life.database.processes
    ]
    claimed = life.database.at_once(*claims)
    assert sum(map(len, claimed)) == 1 or life.do(life.store.facts(life.chat_id)).lease is None
    walk.met["two claimed at once"] += 1
    life.by = 0 if claimed[0] else 1
    life.read()
