from __future__ import annotations

import gc
from datetime import UTC, datetime

from turnwise.providers.per_message import PerMessage
from turnwise.states.messages import Message, TextPart

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def said(text: str) -> Message:
    return Message(id="m1", role="user", parts=(TextPart(text=text),), turn=1, step=1, created_at=EPOCH, position=1)


def test_cache_entry_is_dropped_with_its_message() -> None:
    """Thousands come and go at the addresses of those before them: none takes over what was said of another."""
    known = PerMessage(lambda message: message.text)
    kept = said("kept")
    known(kept)
    for number in range(3000):
        assert known(said(str(number))) == str(number)
    gc.collect()
    assert len(known) == 1
    assert known(kept) == "kept"
