from __future__ import annotations

import gc
from datetime import UTC, datetime

from msgspec.structs import replace

from turnwise.providers.per_message import PerMessage
from turnwise.states.messages import Message, TextPart

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def said(text: str) -> Message:
    return Message(id="m1", role="user", parts=(TextPart(text=text),), turn=1, step=1, created_at=EPOCH, position=1)


def test_work_is_done_once_for_each_message() -> None:
    worked: list[str] = []

    def work(message: Message) -> str:
        worked.append(message.text)
        return message.text.upper()

    known = PerMessage(work)
    one, two = said("one"), said("two")
    assert [known(one), known(two), known(one), known(two)] == ["ONE", "TWO", "ONE", "TWO"]
    assert worked == ["one", "two"]


def test_an_edited_message_is_another_message_though_it_keeps_its_id() -> None:
    known = PerMessage(lambda message: message.text)
    before = said("before")
    assert known(before) == "before"
    assert known(replace(before, parts=(TextPart(text="after"),))) == "after"
    assert known(before) == "before"


def test_what_was_worked_out_goes_with_its_message() -> None:
    """Thousands come and go at the addresses of those before them: none takes over what was said of another."""
    known = PerMessage(lambda message: message.text)
    kept = said("kept")
    known(kept)
    for number in range(3000):
        assert known(said(str(number))) == str(number)
    gc.collect()
    assert len(known) == 1
    assert known(kept) == "kept"
