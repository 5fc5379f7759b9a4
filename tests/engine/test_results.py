"""What callers get of a chat: where it stands, field by field, and what could be read of one that is damaged."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from support.life import ERROR, NOW, asking, queued, waiting
from turnwise.engine.results import chat_of
from turnwise.persistence.stored_chat import Flaw, Salvaged
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState


def facts(**fields: Any) -> Facts:
    known = waiting().facts
    profile = replace(known.profile, owner="ann", title="A title", metadata={"a": 1}, parent="p", system="secret")
    return replace(known, profile=profile, **fields)


def test_open_calls_have_no_salt() -> None:
    life = queued(asking(), "one", "two")
    salted = tuple(replace(call, salt="secret") for call in life.facts.calls)
    chat = chat_of(replace(life.facts, calls=salted))
    assert [call.call_id for call in chat.open_calls] == [call.call_id for call in salted] != []
    assert [call.salt for call in chat.open_calls] == [""] * len(salted)
    assert chat.queued == 2


@pytest.mark.parametrize("has_error", [True, False])
def test_damaged_chat_is_unreadable_without_open_calls(has_error: bool) -> None:  # noqa: FBT001
    known = replace(asking().facts, last_error=ERROR if has_error else None)
    chat = chat_of(Salvaged(known, (Flaw("chats.turn", "is no JSON"),)))
    assert "chats.turn" in (chat.unreadable or "")
    assert chat.open_calls == []
    assert chat.last_error is not None
    assert (chat.last_error == ERROR) == has_error
    assert has_error or chat.last_error.kind == "unreadable"
    assert (chat.id, chat.state) == ("c", ChatState.requires_action)


def test_unknown_state_is_a_flaw() -> None:
    chat = chat_of(facts(stored_state="odd" * 50))
    assert "chats.state" in (chat.unreadable or "")
    assert "odd" * 30 not in (chat.unreadable or "")
    assert chat_of(facts(updated_at=None)).updated_at == NOW
    assert chat_of(facts()).unreadable is None
