"""Refusals: typed, with their facts and with what would have been right; nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.states.table_cases import standing, with_queue

from support.life import ERROR, Life, asking, client, queued, said, streaming
from turnwise.states import ChatState, IllegalTransition, Trigger
from turnwise.states.arguments import Erasing, Reply
from turnwise.states.calls import ToolResult
from turnwise.states.errors import (
    ChatArchived,
    ChatBusy,
    DeadlineExpired,
    MessageNotFound,
    NothingToCompact,
    QueueFull,
    StaleLease,
    ToolResultMismatch,
    TurnwiseError,
)
from turnwise.states.table import BUSY

S, T = ChatState, Trigger


def refused(life: Life, error: type[TurnwiseError], act: Callable[[Life], Any]) -> Any:
    before = life.facts
    with pytest.raises(error) as raised:
        act(life)
    assert life.facts is before
    assert str(raised.value).endswith("nothing was written")
    return raised.value


@pytest.mark.parametrize("state", BUSY)
def test_busy_chat_rejects_with_when_busy_reject(state: ChatState) -> None:
    error = refused(standing(state), ChatBusy, lambda life: life.send(when_busy="reject"))
    assert error.state == state


def test_full_queue_still_accepts_an_interrupting_message() -> None:
    life = queued(streaming(queue_limit=1))
    error = refused(life, QueueFull, lambda life: life.send("too many"))
    assert error.limit == 1
    life.send("now", when_busy="interrupt")
    assert [message.text for message in life.facts.queue] == ["now", "later"]


@pytest.mark.parametrize(
    ("given", "missing", "extra", "duplicate"),
    [
        (("a",), ("b",), (), ()),
        (("a", "b", "x"), (), ("x",), ()),
        (("a", "b", "b"), (), (), ("b",)),
        ((), ("a", "b"), (), ()),
        (("x", "x"), ("a", "b"), ("x",), ("x",)),
    ],
)
def test_submission_must_name_exactly_the_open_calls(
    given: tuple[str, ...], missing: tuple[str, ...], extra: tuple[str, ...], duplicate: tuple[str, ...]
) -> None:
    results = tuple(ToolResult(name, 1) for name in given)
    life = asking(client("a"), client("b", 1))
    error = refused(life, ToolResultMismatch, lambda life: life.fire(T.submit_tool_results, results=results))
    assert (error.missing, error.extra, error.duplicate) == (missing, extra, duplicate)
    assert all(name in str(error) for name in (*missing, *extra, *duplicate))


def test_result_after_its_deadline_is_refused() -> None:
    life = asking(client("a", within=5), client("b", 1))
    life.wait(5)
    results = (ToolResult("a", 1), ToolResult("b", 1))
    error = refused(life, DeadlineExpired, lambda life: life.submit(*results))
    assert error.call_ids == ("a",)


@pytest.mark.parametrize("token", [None, 0, 2])
def test_stale_token_is_refused(token: int | None) -> None:
    error = refused(
        streaming(), StaleLease, lambda life: life.fire(T.step_finished, token=token, reply=Reply(parts=()))
    )
    assert (error.token, error.current) == (token, 1)


def test_token_without_a_lease_is_refused() -> None:
    error = refused(standing(S.pending), StaleLease, lambda life: life.fire(T.failed, token=1, error=ERROR))
    assert "nobody holds the chat" in str(error)


@pytest.mark.parametrize(
    "touch", [(T.edit_queued, {"parts": said("x")}), (T.delete_queued, {}), (T.promote_queued, {})]
)
def test_only_queued_messages_can_be_changed(touch: tuple[Trigger, dict[str, Any]]) -> None:
    trigger, more = touch
    error = refused(with_queue(S.streaming), MessageNotFound, lambda life: life.fire(trigger, queued_id="m99", **more))
    assert (error.message_id, error.expected) == ("m99", "queued message")


def test_empty_history_cannot_be_compacted() -> None:
    life = Life()
    life.create()
    refused(life, NothingToCompact, lambda life: life.fire(T.request_compaction))


def test_waiting_queue_precedes_compaction_and_clearing() -> None:
    for trigger in (T.request_compaction, T.clear_context):
        refused(with_queue(S.error), IllegalTransition, lambda life, trigger=trigger: life.fire(trigger))


@pytest.mark.parametrize("state", [S.waiting, S.requires_action, S.error, S.interrupted])
def test_archived_chat_accepts_unarchive_and_erasure(state: ChatState) -> None:
    life = standing(state)
    refused(life, IllegalTransition, lambda life: life.fire(T.unarchived))
    life.fire(T.archived)
    for trigger in (T.edit_message, T.renamed, T.archived):
        refused(life, ChatArchived, lambda life, trigger=trigger: life.fire(trigger))
    life.fire(T.message_erased, erasing=Erasing(errors=True))
    assert life.facts.archived
    life.fire(T.unarchived)
    assert not life.facts.archived
