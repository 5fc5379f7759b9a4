"""Refusals: typed, with their facts and with what would have been right; nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.life import ERROR, Life, asking, client, queued, said, streaming, unsettled
from support.table_cases import standing, with_queue
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
from turnwise.states.refusals import REFUSALS
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
def test_a_message_that_must_not_wait_is_refused_by_a_busy_chat(state: ChatState) -> None:
    error = refused(standing(state), ChatBusy, lambda life: life.send(when_busy="reject"))

    assert error.state == state


@pytest.mark.parametrize("state", [S.waiting, S.interrupted, S.error])
def test_a_resting_chat_refuses_no_message(state: ChatState) -> None:
    life = standing(state)
    life.send(when_busy="reject")

    assert life.facts.state is S.pending


def test_a_full_queue_takes_no_more_but_never_keeps_the_user_from_stopping() -> None:
    life = queued(streaming(queue_limit=1))
    error = refused(life, QueueFull, lambda life: life.send("too many"))
    assert error.limit == 1
    life.send("now", when_busy="interrupt")

    assert [message.text for message in life.facts.queue] == ["now", "later"]


def test_an_unsettled_chat_is_busy() -> None:
    refused(unsettled(), ChatBusy, lambda life: life.send(when_busy="reject"))


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
def test_a_submission_names_exactly_the_open_client_calls(
    given: tuple[str, ...], missing: tuple[str, ...], extra: tuple[str, ...], duplicate: tuple[str, ...]
) -> None:
    results = tuple(ToolResult(name, 1) for name in given)
    life = asking(client("a"), client("b", 1))
    error = refused(life, ToolResultMismatch, lambda life: life.fire(T.submit_tool_results, results=results))

    assert (error.missing, error.extra, error.duplicate) == (missing, extra, duplicate)
    assert all(name in str(error) for name in (*missing, *extra, *duplicate))


def test_a_result_after_its_deadline_is_refused_whoever_has_noticed() -> None:
    life = asking(client("a", within=5), client("b", 1))
    life.wait(5)
    results = (ToolResult("a", 1), ToolResult("b", 1))
    error = refused(life, DeadlineExpired, lambda life: life.submit(*results))

    assert error.call_ids == ("a",)


@pytest.mark.parametrize("token", [None, 0, 2])
def test_whoever_lost_the_lease_can_write_nothing(token: int | None) -> None:
    error = refused(
        streaming(), StaleLease, lambda life: life.fire(T.step_finished, token=token, reply=Reply(parts=()))
    )

    assert (error.token, error.current) == (token, 1)


def test_where_nobody_holds_the_chat_no_token_counts() -> None:
    error = refused(standing(S.pending), StaleLease, lambda life: life.fire(T.failed, token=1, error=ERROR))

    assert "nobody holds the chat" in str(error)


@pytest.mark.parametrize(
    "touch", [(T.edit_queued, {"parts": said("x")}), (T.delete_queued, {}), (T.promote_queued, {})]
)
def test_only_what_waits_in_the_queue_can_be_touched_there(touch: tuple[Trigger, dict[str, Any]]) -> None:
    trigger, more = touch
    error = refused(with_queue(S.streaming), MessageNotFound, lambda life: life.fire(trigger, queued_id="m99", **more))

    assert (error.message_id, error.expected) == ("m99", "queued message")


def test_nothing_cannot_be_compacted() -> None:
    life = Life()
    life.create()

    refused(life, NothingToCompact, lambda life: life.fire(T.request_compaction))


def test_a_queue_that_waits_comes_before_a_compaction_or_a_clearing() -> None:
    for trigger in (T.request_compaction, T.clear_context):
        refused(with_queue(S.error), IllegalTransition, lambda life, trigger=trigger: life.fire(trigger))


@pytest.mark.parametrize("state", [S.waiting, S.requires_action, S.error, S.interrupted])
def test_an_archived_chat_accepts_nothing_but_unarchived_and_an_erasure(state: ChatState) -> None:
    life = standing(state)
    refused(life, IllegalTransition, lambda life: life.fire(T.unarchived))
    life.fire(T.archived)

    for trigger in (T.edit_message, T.renamed, T.archived):
        refused(life, ChatArchived, lambda life, trigger=trigger: life.fire(trigger))
    life.fire(T.message_erased, erasing=Erasing(errors=True))
    assert life.facts.archived
    life.fire(T.unarchived)
    assert not life.facts.archived


def test_every_trigger_says_what_it_refuses() -> None:
    assert set(REFUSALS) == set(Trigger)
