"""Checks the invariants of the states on a log alone: those about leases, calls and the queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from turnwise.persistence.audit.check_writes import WriteChecker
from turnwise.states import invariants as p
from turnwise.states.names import ChatState


class Replayed(NamedTuple):
    """Where a chat stands after one of its records, as far as the log shows."""

    state: ChatState
    settled: bool
    step: int
    writes: WriteChecker


_Answer = Callable[[Replayed], str | None]
"""Returns how a chat breaks an invariant, as a sentence; `None` if it does not."""


def broken_invariant(chat: Replayed) -> str | None:
    for answer in _ASKED[chat.state]:
        problem = answer(chat)
        if problem is not None:
            return problem
    return None


def local_call_open(chat: Replayed) -> str | None:
    for call_id, call in chat.writes.open_calls.items():
        if not call.is_outside:
            return f"the local call {call_id!a:.40} has no result, but {chat.state} demands one"
    return None


def call_open(chat: Replayed) -> str | None:
    """Return that a call has no result, a local one if there is one."""
    problem = local_call_open(chat)
    if problem is None and chat.writes.open_calls:
        call_id, call = next(iter(chat.writes.open_calls.items()))
        return f"the {call.runner} call {call_id!a:.40} has no result, but {chat.state} demands one"
    return problem


def _lease_missing(chat: Replayed) -> str | None:
    return f"no worker holds the chat, but {chat.state} demands a live lease" if chat.writes.token is None else None


def _lease_held(chat: Replayed) -> str | None:
    token = chat.writes.token
    return None if token is None else f"token {token} still holds the chat, but {chat.state} allows no lease"


def _message_waits(chat: Replayed) -> str | None:
    queue = chat.writes.queue
    return f"the queue holds {queue[0]!a:.40}, but {chat.state} promises an empty queue" if queue else None


def _compacted_before(chat: Replayed) -> str | None:
    compacted = chat.step in chat.writes.compacted
    return f"step {chat.step} had its compaction, and a step has at most one" if compacted else None


def _local_call_missing(chat: Replayed) -> str | None:
    acts = chat.writes.acting_step == chat.step
    return None if acts else f"step {chat.step} planned no local call, but {chat.state} demands one"


def _outside_call_missing(chat: Replayed) -> str | None:
    waits = any(call.is_outside for call in chat.writes.open_calls.values())
    return None if waits else f"no call of the client or of a subagent is open, but {chat.state} demands one"


def _settled_too_early(chat: Replayed) -> str | None:
    return (_lease_held(chat) or call_open(chat)) if chat.settled else None


ANSWERED: Final[Mapping[p.Invariant, _Answer]] = {
    p.has_a_lease: _lease_missing,
    p.has_no_lease: _lease_held,
    p.queue_is_empty: _message_waits,
    p.step_is_not_compacted: _compacted_before,
    p.has_local_calls: _local_call_missing,
    p.has_an_open_outside_call: _outside_call_missing,
    p.has_no_open_local_call: local_call_open,
    p.has_no_open_call: call_open,
    p.rests_without_lease_or_calls: _settled_too_early,
}
"""The checks on a log, by invariant."""

UNANSWERED: Final = frozenset({p.work_is_left, p.model_owes_an_answer, p.error_is_named})
"""The invariants about facts that no write shows."""

_ALL: Final = {invariant for invariants in p.INVARIANTS.values() for invariant in invariants}
assert {*ANSWERED, *UNANSWERED} == _ALL, "each invariant is checked on a log, or cannot be"  # noqa: S101 - checked at import

_ASKED: Final = {
    state: tuple(answer for invariant, answer in ANSWERED.items() if invariant in invariants)
    for state, invariants in p.INVARIANTS.items()
}
