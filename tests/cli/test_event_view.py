"""The printed lines of each kind of event."""

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert, to_builtins
from rich.cells import cell_len
from rich.console import Console

from cli.look import lines_of, screen_of
from turnwise.cli.event_view import EventView
from turnwise.cli.screen import Scroll, wrapped
from turnwise.cli.show import show_message
from turnwise.states.calls import ToolCall
from turnwise.states.events import Event
from turnwise.states.messages import Message
from turnwise.states.names import CallStatus, Executor, StopReason

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ERROR = {"kind": "overloaded", "message": "too many at once", "step": 1}
CALL = ToolCall(call_id="c1", name="ask", arguments={"what": "now\x1b[31m"}, executor=Executor.client, index=0, step=1)
WAITING = {"id": "m9", "parts": [{"type": "text", "text": "later"}], "when_busy": "queue", "accepted_at": NOW}


def event(kind: str, seq: int = 1, **fields: Any) -> Event:
    return convert(to_builtins({"kind": kind, "seq": seq, "chat_id": "c", "at": NOW, **fields}), Event)


def message_fields(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"m-{role}", "role": role, "parts": parts, "turn": 1, "step": 1, "created_at": NOW}


def lines_shown(*events: Event, echo: bool = True) -> list[str]:
    seen = io.StringIO()
    scroll = Scroll(Console(file=seen, width=100))
    view = EventView(scroll, echo=echo)
    with scroll:
        for one in events:
            view.show(one)
    assert view.after == events[-1].seq
    return [line.strip() for line in seen.getvalue().splitlines() if line.strip()]


HELLO = {"type": "text", "text": "hello"}
LOOK_CALL = {"type": "tool_call", "call_id": "c1", "name": "look", "arguments": {"at": "it"}, "executor": "local"}
ASK = {"type": "tool_call", "call_id": "c2", "name": "ask", "arguments": {}, "executor": "client"}
RESULT = {"step": 1, "call_id": "c1", "index": 0, "name": "look", "outcome": CallStatus.succeeded}
SLY = {**LOOK_CALL, "arguments": {"to": "ann', amount='1", "\\": "\\'", "n='1', m": 2}}
PAY = {**LOOK_CALL, "arguments": {"n": 1, "s": "1", "f": True, "l": [1, "a"], "o": {"a": None}, "none": None, "": ""}}
COMPACTION = {"step": 1, "percent": 91.5, "context_tokens": 9150, "context_limit": 10_000}


@pytest.mark.parametrize(
    ("shown_event", "lines"),
    [
        (event("tool_progress", step=1, call_id="c1", progress={"done": 3}), ['… c1: {"done":3}']),
        (event("tool_result", **RESULT, output="seen", is_error=False), ["✓ look → seen"]),
        (event("tool_result", **RESULT, output="gone", is_error=True), ["✗ look → gone"]),
        (event("action_required", calls=[CALL]), ["? ask(what='now\\x1b[31m')"]),
        (
            event("retry", step=1, attempt=2, delay=1.5, error=ERROR, retry_at=NOW),
            ["↻ too many at once; next attempt in 1.5 s"],
        ),
        (event("attempt_discarded", step=1, attempt=2, reason="network"), ["↶ attempt 2 is taken back: network"]),
        (
            event("compaction", phase="started", **COMPACTION),
            ["⇣ compaction: the context is 91.5 % full (9,150 of 10,000)"],
        ),
        (event("compaction", phase="started", step=1), ["⇣ compaction: started"]),
        (event("compaction", phase="unproductive", step=1), ["⇣ compaction: unproductive"]),
        (event("compaction", phase="summarised", step=1), []),
        (
            event("compaction", phase="finished", step=1, folded=7, carried=2),
            ["⇣ compaction: 7 messages are folded into a summary, 2 carried on as they are"],
        ),
        (
            event("compaction", phase="failed", step=1, error=ERROR),
            ["⇣ compaction: failed, and nothing changed: too many at once"],
        ),
        (event("queue", change="added", ids=["m9"], message=WAITING), ["≡ m9 waits in the queue"]),
        (event("queue", change="deleted", ids=["m8", "m9"]), ["≡ m8, m9 is deleted from the queue"]),
        (event("queue", change="taken", ids=["m9"]), []),
        (
            event(
                "turn_finished",
                turn=3,
                stop_reason=StopReason.max_steps,
                usage={"input_tokens": 1200, "output_tokens": 7},
            ),
            ["◦ turn 3 ended: max_steps · 1,200 tokens in, 7 out"],
        ),
        (event("error", error=ERROR), ["✗ too many at once"]),
        (event("history_reset", first_removed="m1"), []),
        (event("message", message=message_fields("user", HELLO)), ["» hello"]),
        (
            event(
                "message", message=message_fields("user", {"type": "file", "media_type": "image/png", "data": "aGk="})
            ),
            ["» (a file)"],
        ),
        (event("message", message=message_fields("assistant", HELLO, LOOK_CALL, ASK)), ["▸ look(at='it')"]),
        (
            event("message", message=message_fields("assistant", PAY)),
            ["▸ look(n=1, s='1', f=true, l=[1,\"a\"], o={\"a\":null}, none=null, ''='')"],
        ),
        (
            event("message", message=message_fields("assistant", SLY)),
            [r"▸ look(to='ann\', amount=\'1', '\\'='\\\'', 'n=\'1\', m'=2)"],
        ),
    ],
    ids=lambda value: value.kind if not isinstance(value, list) else "",
)
def test_each_event_prints_its_line(shown_event: Event, lines: list[str]) -> None:
    assert lines_shown(shown_event) == lines


def test_deltas_are_shown_and_discarded_replies_removed() -> None:
    seen = io.StringIO()
    view = EventView(Scroll(Console(file=seen, width=100)))
    assert view.after == 0
    for number, (kind, delta) in enumerate([("reasoning", "hm, "), ("text", "so "), ("text", "it is")], start=1):
        view.show(event("part", number, step=1, attempt=1, index=number, part={"type": kind, "delta": delta}))
    assert view.live_text == "so it is"
    view.show(event("attempt_discarded", 4, step=1, attempt=1, reason="network"))
    assert view.live_text == ""
    view.scroll.end_line()
    assert [line.strip() for line in seen.getvalue().splitlines()][:2] == ["hm,", "so it is"]


def message_of(role: str, *parts: dict[str, Any], **fields: Any) -> Message:
    fields = {"id": "m1", "role": role, "parts": parts, "turn": 1, "step": 1, "created_at": NOW, **fields}
    return convert(to_builtins(fields), Message)


def lines_of_messages(*messages: Message) -> list[str]:
    screen = screen_of()
    for message in messages:
        show_message(Scroll(screen), message)
    return lines_of(screen)


def text_part(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def result_part(*, is_error: bool = False) -> dict[str, Any]:
    return {"type": "tool_result", "call_id": "c1", "name": "look\x1b", "output": "o" * 301, "is_error": is_error}


FILE = {"type": "file", "media_type": "image/png"}
LOOK = {"type": "tool_call", "call_id": "c1", "name": "look", "arguments": {"at": "it"}}
MARK = {"type": "marker", "reason": "clear", "text": "anew\x1b"}


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        (message_of("user", text_part("hello\nyou")), ["[bold green]» [/][bold]hello[/]", "  [bold]you[/]"]),
        (message_of("user", FILE | {"data": "aGk="}), ["[bold green]» [/][bold](a file)[/]"]),
        (message_of("assistant", text_part("one"), text_part("two")), ["  one", "  two"]),
        (
            message_of(
                "assistant",
                {"type": "reasoning", "text": "hm"},
                {"type": "reasoning", "signature": "s"},
                text_part("so"),
            ),
            ["  [dim italic]hm[/]", "  so"],
        ),
        (message_of("assistant", LOOK), ["  [cyan]▸ look[/](at='it')"]),
        (message_of("assistant", MARK), [r"  [magenta]── anew\x1b[/]"]),
        (message_of("assistant", {"type": "source", "url": "https://a.b/\x1b"}), [r"  [dim]• https://a.b/\x1b[/]"]),
        (message_of("assistant", FILE | {"url": "https://a.b/c"}), ["  [dim]• https://a.b/c[/]"]),
        (message_of("assistant", FILE | {"data": "aGk="}), ["  [dim]• a file[/]"]),
        (message_of("assistant", text_part("so f"), partial=True), ["  so f", "  [yellow]■ stopped here[/]"]),
    ],
)
def test_show_prints_message_parts(message: Message, lines: list[str]) -> None:
    assert lines_of_messages(message) == lines


@pytest.mark.parametrize(
    ("message", "style", "mark"),
    [
        (message_of("tool", result_part()), "green", "✓"),
        (message_of("tool", result_part(is_error=True)), "red", "✗"),
        (message_of("tool", result_part(is_error=True), synthetic=True), "dim", "✗"),
        (message_of("tool", result_part(), partial=True), "green", "✓"),
    ],
)
def test_show_prints_a_result_in_one_line(message: Message, style: str, mark: str) -> None:
    (line,) = lines_of_messages(message)
    assert line.startswith(rf"  [{style}]{mark} look\x1b → {'o' * 50}")
    assert line.endswith("o…[/]")


DRAWN_TEXT = st.text(st.sampled_from("ab 界é\u0301\n"), max_size=200)


@given(DRAWN_TEXT, st.integers(2, 30))
def test_wrapping_loses_no_character(text: str, width: int) -> None:
    lines, rest = wrapped(text, width)
    assert all(cell_len(line) <= width for line in [*lines, rest])
    assert "".join([*lines, rest]).replace(" ", "") == text.replace(" ", "").replace("\n", "")
