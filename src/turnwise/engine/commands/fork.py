"""A fork: a new chat with its parent's history at a version."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from turnwise.engine.prompt.imported_history import inheritance_of
from turnwise.engine.transactions.chat_writer import Change, UnitOfWork
from turnwise.persistence.protocol import ChatStore
from turnwise.states.errors import SettingsError
from turnwise.states.facts import Facts, Profile
from turnwise.states.messages import Message
from turnwise.states.names import Audience, Tail
from turnwise.states.triggers import Create
from turnwise.states.turn_limits import answer_accepted


async def fork_of(store: ChatStore, chat_id: str, at_version: int) -> tuple[Change, tuple[str, int]]:
    """Return the change that begins a fork of a chat, and the parent's id and version that was read."""
    facts = await store.facts(chat_id)
    records = await store.audit(chat_id)
    if not 1 <= at_version <= len(records):
        raise SettingsError("at_version", f"must be from 1 to {len(records)}; it was {at_version}")
    history = await store.history(chat_id, at_version=at_version)
    answered = await _is_answered_by_a_call(store, chat_id, history)
    fork = Fork(facts, history, at_version, records[at_version - 1].hash, answered_by_call=answered)
    return fork, (chat_id, facts.version)


class Fork(msgspec.Struct, frozen=True):
    """Creates a chat with the history of its parent at a version."""

    parent: Facts
    history: Sequence[Message]
    at_version: int
    hash: str
    """Of the parent's record of that version."""
    answered_by_call: bool
    """Whether the history ends with an answer that was given by a call."""

    def __call__(self, unit: UnitOfWork) -> None:
        parent, forked_from = self.parent, f"{self.at_version}:{self.hash}"
        profile = replace(
            parent.profile,
            created_at=unit.now,
            parent=parent.chat_id,
            ancestors=ancestors_of(parent.profile),
            forked_from=forked_from,
            parent_call=None,
            parent_version=None,
            detached=False,
            depth=0,
        )
        inheritance = inheritance_of(parent, self.history, unit.now)
        is_whole = len(inheritance.messages) == len(self.history)  # no call was open
        if is_whole and self.at_version >= parent.history_version:
            inheritance = replace(inheritance, tail=parent.history.tail)  # messages do not always show it
        elif is_whole and self.answered_by_call and inheritance.tail is Tail.awaits_answer:
            inheritance = replace(inheritance, tail=Tail.answered)
        reason = f"fork of {parent.chat_id} at version {self.at_version}, {forked_from}"
        unit.fire(Create(profile=profile, inheritance=inheritance), reason=reason)


async def _is_answered_by_a_call(store: ChatStore, chat_id: str, history: Sequence[Message]) -> bool:
    """Return whether a history ends with the results of a step that gave the turn's answer by a call."""
    last = next((message for message in reversed(history) if message.audience is Audience.everyone), None)
    if last is None or last.result is None:
        return False
    results = [message.result for message in history if message.step == last.step and message.result is not None]
    calls = await store.calls(chat_id, [result.call_id for result in results])
    return answer_accepted(calls.values())


def ancestors_of(parent: Profile) -> tuple[str, ...]:
    """Return the chats above the parent of a fork that its history may come from."""
    above = parent.parent if parent.forked_from is not None else None
    return () if above is None else (above, *parent.ancestors)
