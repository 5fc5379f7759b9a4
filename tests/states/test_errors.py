"""Errors: each builds its text from its fields."""

import copy
import pickle
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from turnwise.states import ChatState, IllegalTransition
from turnwise.states.errors import (
    BrokenInvariant,
    ChatArchived,
    ChatBusy,
    ChatDeleted,
    ChatNotFound,
    ConflictingReplay,
    DeadlineExpired,
    NotResting,
    SettingsError,
    StaleLease,
    StoreError,
    TurnwiseError,
)
from turnwise.states.model_errors import RETRYABLE_KINDS, ModelError

S = ChatState


AT = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


ERRORS: Final[list[tuple[TurnwiseError, str]]] = [
    (ChatNotFound("c"), "there is no chat 'c' in this store; nothing was written"),
    (ChatDeleted("c", AT), "chat 'c' was deleted at 2026-01-02T03:04:05+00:00, for good; nothing was written"),
    (
        NotResting("c", "pending"),
        "chat 'c' is at work (pending): interrupt it, and delete it once it rests; nothing was written",
    ),
    (
        IllegalTransition(S.error, "claimed", ["resume", "archived"]),
        (
            "claimed is not possible in state error as the chat stands; "
            "possible are: resume, archived; nothing was written"
        ),
    ),
    (ConflictingReplay(call_id="a"), "call 'a' was answered before with another result; "),
    (ConflictingReplay(call_id="a", outcome="interrupted"), "closed before any result came: interrupted; "),
    (ConflictingReplay(client_id="k"), "client_id 'k' was used before for a message with other content; "),
    (DeadlineExpired(["a", "b"]), "the deadline of a, b has passed; nothing was written"),
    (ChatBusy(S.streaming), "send with when_busy='queue', 'steer' or 'interrupt', or wait; nothing was written"),
    (ChatArchived("c"), "unarchive it first; nothing was written"),
    (BrokenInvariant("c", "settled", ["has_no_lease"]), "breaking has_no_lease; nothing was written"),
    (SettingsError("max_steps", "0 is not positive"), "max_steps: 0 is not positive; nothing was stored"),
    (StoreError("the disk is full"), "the disk is full"),
    (ModelError("quota"), "the model call failed (quota): quota"),
    (ModelError("stall", message="silence"), "the model call failed (stall): silence"),
    (StaleLease("c", 1, 2), "token 1 is lost: token 2 holds the chat; nothing was written"),
]


@pytest.mark.parametrize(("error", "text"), ERRORS, ids=[type(error).__name__ for error, _ in ERRORS])
def test_error_text_is_made_of_its_facts(error: TurnwiseError, text: str) -> None:
    assert text in str(error)


@pytest.mark.parametrize("kind", [*sorted(RETRYABLE_KINDS), "authentication", "context_overflow"])
def test_model_error_is_retryable_by_kind(kind: str) -> None:
    assert ModelError(kind).retryable is (kind in RETRYABLE_KINDS)
    assert ModelError(kind, retryable=False).retryable is False


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (5, 5),
        (0.5, 0.5),
        ("5", 5),
        (b"5", 5),
        (-1, -1),
        (None, None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        (float("nan"), None),
        (10**400, None),
    ],
)
def test_model_error_parses_retry_after_and_status(value: Any, number: float | None) -> None:
    error = ModelError("network", retry_after=value, status=value)
    assert (error.retry_after, error.retryable) == (number, True)
    assert error.status == (number if number != 0.5 else None)
    assert [type(one) for one in (error.retry_after, error.status) if one is not None] in ([float, int], [float], [])


def test_errors_survive_pickle_and_copy() -> None:
    """Pools of processes and task queues pickle errors; an unreadable one would end the pool."""
    for error, _ in ERRORS:
        error.add_note("noted")
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):  # noqa: S301 - our own
            assert type(again) is type(error)
            assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
