"""Chats that could not be handled: logged once for each problem, and tried again less and less often."""

from __future__ import annotations

import logging

import pytest

from turnwise.persistence.passed_over import PassedOver
from turnwise.states.errors import ChatUnreadable


class _Clock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at


def _unreadable(problem: str = "bad") -> ChatUnreadable:
    return ChatUnreadable("messages.body", problem, chat_id="chat")


def _pause(passed_over: PassedOver, clock: _Clock) -> float:
    """Let time go on until the chat may be tried again; return how long that took."""
    began = clock.at
    while passed_over.skips("chat", 3):
        clock.at += 0.5
    return clock.at - began


def test_retry_pause_doubles_up_to_a_minute() -> None:
    clock = _Clock()
    passed_over = PassedOver(clock.now)
    assert not passed_over.skips("chat", 3)
    pauses = []
    for _ in range(9):
        passed_over.note("claim_refused", "chat", _unreadable(), version=3)
        assert not passed_over.skips("another", 3)
        pauses.append(_pause(passed_over, clock))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    passed_over.forget("chat")
    passed_over.forget("never noted")
    passed_over.note("claim_refused", "chat", _unreadable(), version=3)
    assert _pause(passed_over, clock) == 1


def test_commit_ends_the_penalty() -> None:
    clock = _Clock()
    passed_over = PassedOver(clock.now)
    for _ in range(4):
        passed_over.note("claim_refused", "chat", _unreadable(), version=3)
    assert passed_over.skips("chat", 3)
    assert not passed_over.skips("chat", 4)
    passed_over.note("claim_refused", "chat", _unreadable(), version=4)
    assert not passed_over.skips("chat", 5)
    clock.at += 1
    assert not passed_over.skips("chat", 4)


def test_each_problem_is_logged_once_per_chat(caplog: pytest.LogCaptureFixture) -> None:
    passed_over = PassedOver(_Clock().now)

    def logged(error: Exception, chat_id: str = "chat") -> list[str]:
        caplog.clear()
        passed_over.note("claim_refused", chat_id, error)
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
    passed_over.forget("chat")
    assert len(logged(OSError("full"))) == 1
