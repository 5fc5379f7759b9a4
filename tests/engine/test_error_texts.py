"""Errors of tools in words: what a service makes of them, what it never lets out, and how much is told."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from turnwise import ToolFailed
from turnwise.engine.error_texts import describe_error, text_for_model

UNKNOWN = "The outcome is unknown: it may or may not have taken effect."


def fails(_error: BaseException) -> str:
    raise LookupError("no words")


def words(text: Any) -> Callable[[BaseException], Any]:
    return lambda _error: text


def test_error_text_is_cut_at_the_limit() -> None:
    assert describe_error(ValueError("bad")) == "ValueError: bad"
    assert describe_error(ValueError()) == "ValueError"
    most = "x" * (2000 - len("ValueError: "))
    assert describe_error(ValueError(most)) == f"ValueError: {most}"
    assert describe_error(ValueError(most + "yz")) == f"ValueError: {most}\n[cut: 2 of 2002 bytes are not shown]"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("a secret"), "no disk"),
        (TimeoutError("a secret"), f"no disk. {UNKNOWN}"),
        (CancelledError("a secret"), f"no disk. {UNKNOWN}"),
        (ToolFailed("not today"), "not today"),
    ],
)
def test_describe_error_text_goes_to_the_model(error: BaseException, text: str) -> None:
    assert text_for_model(error, words("no disk")) == text
    assert text_for_model(error, words("No disk.")) == text.replace("no disk.", "No disk.").replace(
        "no disk", "No disk."
    )
    assert text_for_model(OSError(), words("half \ud800")) == "half \ufffd"


@pytest.mark.parametrize(
    ("describe", "problem"),
    [
        (words(None), "it gave NoneType, where text is wanted"),
        (words(b"bytes"), "it gave bytes, where text is wanted"),
        (words(" \n"), "it gave str, where text is wanted"),
        (fails, None),
    ],
)
def test_failed_describe_error_falls_back_to_type(describe: Any, problem: str | None) -> None:
    with structlog.testing.capture_logs() as logs:
        assert text_for_model(OSError("a secret"), describe) == "OSError"
        assert text_for_model(TimeoutError("a secret"), describe) == f"TimeoutError. {UNKNOWN}"
    structlog.reset_defaults()
    assert [line["event"] for line in logs] == ["describe_error_failed"] * 2
    assert [line.get("problem") for line in logs] == [problem] * 2
    assert [type(line.get("exc_info")) for line in logs] == [type(None) if problem else LookupError] * 2
