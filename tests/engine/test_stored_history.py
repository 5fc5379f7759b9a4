"""The history outside of the model's view is read where needed, once."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
from msgspec.structs import replace

from support.life import BLANK, NOW
from turnwise.engine.prompt.context import StoredHistory, View
from turnwise.persistence.protocol import ChatStore
from turnwise.states.messages import Message, TextPart, ToolCallPart
from turnwise.states.names import Executor


class Asked:
    """A store that counts reads of its one chat's history."""

    def __init__(
        self, history: Sequence[Message], calls: Sequence[str] = (), *, began_with: Sequence[Message] = ()
    ) -> None:
        self._histories = {None: history, 1: began_with}
        self._calls = {*calls}
        self.read: list[int] = []

    async def history(
        self, chat_id: str, *, at_version: int | None = None, after: int = 0, size: int | None = None
    ) -> list[Message]:
        assert (chat_id, size) == ("c", None)
        self.read.append(after)
        return [message for message in self._histories[at_version] if message.position > after]

    async def calls(self, chat_id: str, call_ids: Sequence[str]) -> dict[str, Any]:
        assert chat_id == "c"
        return dict.fromkeys(self._calls & {*call_ids})


def stored(store: Asked) -> StoredHistory:
    return StoredHistory(cast("ChatStore", store), "c")


def message(position: int, turn: int, **more: Any) -> Message:
    fields: dict[str, Any] = {"role": "user", "parts": (TextPart(text=f"at {position}"),), **more}
    return Message(id=f"m{position}", turn=turn, step=1, created_at=NOW, position=position, **fields)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("began_with", ["nothing", "a fork's", "an import"])
@pytest.mark.parametrize("call_id", ["seen", "stored", "inherited", "new"])
async def test_call_is_found_in_view_row_or_inherited_history(call_id: str, began_with: str, *, hidden: bool) -> None:
    """Nothing is read where the model sees everything. Messages that an edit removed are cached, too."""
    forked_from = "1:x" if began_with == "a fork's" else None
    facts = replace(
        BLANK,
        profile=replace(BLANK.profile, forked_from=forked_from, imported=began_with == "an import"),
        history=replace(BLANK.history, length=3, foldable=2 if hidden else 3),
    )
    history_sent = [
        message(1, 1, parts=(ToolCallPart(call_id=name, name="look", arguments={}, executor=Executor.local),))
        for name in ("inherited", "seen")
    ]
    store = Asked(history_sent[1:], ["stored"], began_with=history_sent)
    history, view = stored(store), View(history_sent[1:], facts.history_version)
    inherits = hidden and began_with != "nothing"
    has = {"seen"} | ({"stored"} if hidden else set()) | ({"inherited"} if inherits else set())
    for _ in range(2):
        assert await history.has_call(facts, view, call_id) is (call_id in has)
    assert store.read == [0] * (inherits and call_id != "seen")
