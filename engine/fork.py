"""A fork: a new chat that begins with what its parent held at a version."""

from __future__ import annotations

from msgspec.structs import replace

from turnwise.engine.apply import Chain, Change
from turnwise.engine.inheritance import inheritance_of
from turnwise.persistence.protocol import ChatStore
from turnwise.states.errors import SettingsError
from turnwise.states.facts import Profile
from turnwise.states.names import Tail
from turnwise.states.triggers import Create


async def fork_of(store: ChatStore, chat_id: str, at_version: int) -> tuple[Change, tuple[str, int]]:
    """Return the change that begins a fork of a chat, and the parent at the version that was read.

    Raises:
        SettingsError: the chat has had no such version.
    """
    facts = await store.facts(chat_id)
    records = await store.audit(chat_id)
    if not 1 <= at_version <= len(records):
        raise SettingsError("at_version", f"must be from 1 to {len(records)}; it was {at_version}")
    history = await store.history(chat_id, at_version=at_version)
    forked_from = f"{at_version}:{records[at_version - 1].hash}"

    def begin(chain: Chain) -> None:
        profile = replace(
            facts.profile,
            created_at=chain.now,
            parent=chat_id,
            ancestors=ancestors_of(facts.profile),
            forked_from=forked_from,
            helps=None,
            helps_at=None,
            stays=False,
            depth=0,
        )
        inheritance = inheritance_of(facts, history, chain.now)
        if facts.history.tail is Tail.answered and at_version >= facts.history_version:
            inheritance = replace(inheritance, tail=Tail.answered)  # by a call, perhaps, which no message tells
        reason = f"fork of {chat_id} at version {at_version}, {forked_from}"
        chain.fire(Create(profile=profile, inheritance=inheritance), reason=reason)

    return begin, (chat_id, facts.version)


def ancestors_of(parent: Profile) -> tuple[str, ...]:
    """Return the chats above the parent of a fork that its history may come from."""
    above = parent.parent if parent.forked_from is not None else None
    return () if above is None else (above, *parent.ancestors)
