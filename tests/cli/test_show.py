"""A transcript on the screen: each message as its lines, and where the chat stands in the last one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import convert, to_builtins

from support.look import lines_of, screen_of
from turnwise.cli.scroll import Scroll
from turnwise.cli.show import show_message
from turnwise.states.messages import Message

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def said(role: str, *parts: dict[str, Any], **fields: Any) -> Message:
    told = {"id": "m1", "role": role, "parts": parts, "turn": 1, "step": 1, "created_at": NOW, **fields}
    return convert(to_builtins(told), Message)


def shown(*messages: Message) -> list[str]:
    screen = screen_of()
    for message in messages:
        show_message(Scroll(screen), message)
    return lines_of(screen)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def result(*, is_error: bool = False) -> dict[str, Any]:
    return {"type": "tool_result", "call_id": "c1", "name": "look\x1b", "output": "o" * 301, "is_error": is_error}


FILE = {"type": "file", "media_type": "image/png"}
LOOK = {"type": "tool_call", "call_id": "c1", "name": "look", "arguments": {"at": "it"}}
MARK = {"type": "marker", "reason": "clear", "text": "anew\x1b"}


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        (said("user", text("hello\nyou")), ["[bold green]» [/][bold]hello[/]", "  [bold]you[/]"]),
        (said("user", FILE | {"data": "aGk="}), ["[bold green]» [/][bold](a file)[/]"]),
        (said("assistant", text("one"), text("two")), ["  one", "  two"]),
        (
            said("assistant", {"type": "reasoning", "text": "hm"}, {"type": "reasoning", "signature": "s"}, text("so")),
            ["  [dim italic]hm[/]", "  so"],
        ),
        (said("assistant", LOOK), ["  [cyan]▸ look[/](at='it')"]),
        (said("assistant", MARK), [r"  [magenta]── anew\x1b[/]"]),
        (said("assistant", {"type": "source", "url": "https://a.b/\x1b"}), [r"  [dim]• https://a.b/\x1b[/]"]),
        (said("assistant", FILE | {"url": "https://a.b/c"}), ["  [dim]• https://a.b/c[/]"]),
        (said("assistant", FILE | {"data": "aGk="}), ["  [dim]• a file[/]"]),
        (said("assistant", text("so f"), partial=True), ["  so f", "  [yellow]■ stopped here[/]"]),
    ],
)
def test_show_prints_message_parts(message: Message, lines: list[str]) -> None:
    assert shown(message) == lines


@pytest.mark.parametrize(
    ("message", "style", "mark"),
    [
        (said("tool", result()), "green", "✓"),
        (said("tool", result(is_error=True)), "red", "✗"),
        (said("tool", result(is_error=True), synthetic=True), "dim", "✗"),
        (said("tool", result(), partial=True), "green", "✓"),
    ],
)
def test_show_prints_a_result_in_one_line(message: Message, style: str, mark: str) -> None:
    (line,) = shown(message)
    assert line.startswith(rf"  [{style}]{mark} look\x1b → {'o' * 50}")
    assert line.endswith("o…[/]")
