"""Chats that could not be handled: logged once for each problem, and tried again less and less often."""

from __future__ import annotations

import logging

import pytest

from turnwise.persistence import passed_over
from turnwise.persistence.passed_over import Refusals
from turnwise.states.errors import ChatUnreadable


class _Clock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at


def _unreadable(problem: str = "bad") -> ChatUnreadable:
    return ChatUnreadable("messages.body", problem, chat_id="chat")


def _pause(refusals: Refusals, clock: _Clock) -> float:
    """Let time go on until the chat may be tried again; return how long that took."""
    began = clock.at
    while refusals.rests("chat"):
        clock.at += 0.5
    return clock.at - began


def test_an_unreadable_chat_is_tried_again_after_pauses_that_double_up_to_a_minute() -> None:
    clock = _Clock()
    refusals = Refusals(clock.now)
    assert not refusals.rests("chat")
    pauses = []
    for _ in range(9):
        refusals.note("claim_refused", "chat", _unreadable())
        assert not refusals.rests("another")
        pauses.append(_pause(refusals, clock))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    refusals.forget("chat")
    refusals.forget("never noted")
    refusals.note("claim_refused", "chat", _unreadable())
    assert _pause(refusals, clock) == 1


def test_any_other_trouble_may_be_over_at_once() -> None:
    clock = _Clock()
    refusals = Refusals(clock.now)
    refusals.note("claim_refused", "chat", _unreadable())
    refusals.note("claim_refused", "chat", OSError("full"))
    assert not refusals.rests("chat")
    refusals.note("claim_refused", "chat", _unreadable())
    assert _pause(refusals, clock) == 1


def test_a_chat_that_was_handled_is_tried_at_once() -> None:
    refusals = Refusals(_Clock().now)
    refusals.note("claim_refused", "chat", _unreadable())
    refusals.forget("chat")
    assert not refusals.rests("chat")


def test_each_problem_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(_Clock().now)

    def logged(error: Exception, chat_id: str = "chat") -> list[str]:
        caplog.clear()
        refusals.note("claim_refused", chat_id, error)
        assert all(record.levelno == logging.ERROR for record in caplog.records)
        assert all(chat_id in record.getMessage() for record in caplog.records)
        assert all("claim_refused" in record.getMessage() for record in caplog.records)
        assert all(str(error) in record.getMessage().replace("\\'", "'") for record in caplog.records)
        return [record.getMessage() for record in caplog.records]

    assert len(logged(_unreadable())) == 1
    assert logged(_unreadable()) == []
    assert len(logged(_unreadable("worse"))) == 1
    assert len(logged(OSError("full"))) == 1
    assert logged(OSError("full")) == []
    assert len(logged(_unreadable(), "another")) == 1
    refusals.forget("chat")
    assert len(logged(OSError("full"))) == 1


def test_only_trouble_that_nobody_expects_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(_Clock().now)
    refusals.note("claim_refused", "chat", _unreadable())
    assert not caplog.records[-1].exc_info
    error = OSError("full")
    refusals.note("claim_refused", "chat", error)
    assert caplog.records[-1].exc_info
    assert caplog.records[-1].exc_info[1] is error


def test_those_noted_longest_ago_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passed_over, "_REMEMBERED", 3)
    refusals = Refusals(_Clock().now)
    for chat_id in ("a", "b", "c", "a"):
        refusals.note("claim_refused", chat_id, _unreadable())
    assert [chat_id for chat_id in "abc" if refusals.rests(chat_id)] == ["a", "b", "c"]
    refusals.note("claim_refused", "d", _unreadable())
    assert [chat_id for chat_id in "abcd" if refusals.rests(chat_id)] == ["a", "c", "d"]
