"""Errors: each makes its text from its facts."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest

from support.public_surface import MODULES, public_names
from turnwise.states import ChatState, IllegalTransition, Trigger
from turnwise.states.errors import (
    RETRYABLE_KINDS,
    BrokenPromise,
    ChatArchived,
    ChatBusy,
    ChatDeleted,
    ChatNotFound,
    ConflictingReplay,
    DeadlineExpired,
    ModelError,
    NotResting,
    SettingsError,
    StaleLease,
    StoreError,
    TurnwiseError,
)

S, T = ChatState, Trigger


AT = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ChatNotFound("c"), "there is no chat 'c' in this store; nothing was written"),
        (ChatDeleted("c", AT), "chat 'c' was deleted at 2026-01-02T03:04:05+00:00, for good; nothing was written"),
        (
            NotResting("c", "pending"),
            "chat 'c' is at work (pending): interrupt it, and delete it once it rests; nothing was written",
        ),
        (
            IllegalTransition(S.error, T.claimed, [T.resume, T.archived]),
            (
                "claimed is not possible in state error as the chat stands; "
                "possible are: resume, archived; nothing was written"
            ),
        ),
        (ConflictingReplay(call_id="a"), "call 'a' was answered before with another result; "),
        (ConflictingReplay(call_id="a", outcome="interrupted"), "closed before any result came: interrupted; "),
        (ConflictingReplay(client_id="k"), "client_id 'k' was used before for a message with other content; "),
        (DeadlineExpired(["a", "b"]), "the deadline of a, b has passed; nothing was written"),
        (ChatBusy(S.streaming), "send with when_busy='queue' or 'interrupt', or wait; nothing was written"),
        (ChatArchived("c"), "unarchive it first; nothing was written"),
        (BrokenPromise("c", T.settled, ["has_no_lease"]), "breaking has_no_lease; nothing was written"),
        (SettingsError("max_steps", "0 is not positive"), "max_steps: 0 is not positive; nothing was stored"),
        (StoreError("the disk is full"), "the disk is full"),
        (ModelError("quota"), "the model call failed (quota): quota"),
        (ModelError("stall", message="silence"), "the model call failed (stall): silence"),
        (StaleLease("c", 1, 2), "token 1 is lost: token 2 holds the chat; nothing was written"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TurnwiseError) else "",
)
def test_error_text_is_made_of_its_facts(error: TurnwiseError, text: str) -> None:
    assert text in str(error)


@pytest.mark.parametrize("kind", [*sorted(RETRYABLE_KINDS), "authentication", "context_overflow"])
def test_model_error_is_retryable_by_kind(kind: str) -> None:
    assert ModelError(kind).retryable is (kind in RETRYABLE_KINDS)
    assert ModelError(kind, retryable=False).retryable is False


@pytest.mark.parametrize(
    ("given", "number"),
    [
        (5, 5),
        (0.5, 0.5),
        ("5", 5),
        (" 0.5 ", 0.5),
        (b"5", 5),
        (Decimal("0.5"), 0.5),
        (-1, -1),
        (None, None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        (timedelta(seconds=5), None),
        (float("nan"), None),
        (float("inf"), None),
        (Decimal("NaN"), None),
        (10**400, None),
        (object(), None),
    ],
)
def test_model_error_parses_retry_after_and_status(given: Any, number: float | None) -> None:
    error = ModelError("network", retry_after=given, status=given)
    assert (error.retry_after, error.retryable) == (number, True)
    assert error.status == (number if number != 0.5 else None)
    assert [type(one) for one in (error.retry_after, error.status) if one is not None] in ([float, int], [float], [])


# In other processes, and as copies

FACTS: Final[dict[str, Any]] = {
    "int": 3,
    "int | None": 4,
    "float": 0.5,
    "float | None": 0.25,
    "bool": True,
    "bool | None": False,
    "datetime": AT,
    "Path": Path("chats.jsonl"),
    "OSError": OSError(28, "no space left"),
    "BaseException": ValueError("no"),
    "Sequence[str]": ["a", "b"],
    "Sequence[Mapping[str, str]]": [{"field": "title", "problem": "must be text"}],
    "list[dict[str, str]]": [{"field": "title", "problem": "must be text"}],
    "Literal['no', 'unknown']": "unknown",
}
"""Facts for an error to carry, by their type. Those that are text are called as they are."""
ELSEWHERE: Final = ("turnwise.service.problems", "turnwise.engine.mcp")


def kinds_of(kind: type[TurnwiseError]) -> Iterator[type[TurnwiseError]]:
    for below in kind.__subclasses__():
        if below.__module__.startswith("turnwise."):
            yield below
            yield from kinds_of(below)


def made(kind: type[TurnwiseError]) -> TurnwiseError:
    """Return an error of a kind with every fact that it can carry, and a note."""
    own = kind.__init__ is not Exception.__init__
    taken = inspect.signature(kind.__init__).parameters.values() if own else ()
    facts = [one for one in taken if one.name != "self"]
    values = {one.name: FACTS.get(str(one.annotation).replace('"', "'"), one.name) for one in facts}
    by_place = [values.pop(one.name) for one in facts if one.kind is one.POSITIONAL_OR_KEYWORD]
    error = kind(*by_place, **values) if own else kind("its text")
    error.add_note("noted")
    return error


def test_errors_survive_pickle_and_copy() -> None:
    """Pools of processes, task queues and whoever keeps errors for later do so."""
    for module in (*MODULES, *ELSEWHERE):
        importlib.import_module(module)
    errors = [made(kind) for kind in {TurnwiseError, *kinds_of(TurnwiseError)}]
    public = {one for one in public_names().values() if isinstance(one, type) and issubclass(one, TurnwiseError)}
    assert public - {type(error) for error in errors} == set()
    for error in errors:
        pickled = [pickle.loads(pickle.dumps(error, level)) for level in range(pickle.HIGHEST_PROTOCOL + 1)]  # noqa: S301 - our own
        for again in (*pickled, copy.copy(error), copy.deepcopy(error)):
            assert type(again) is type(error)
            assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
