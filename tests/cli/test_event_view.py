"""What a person sees of each kind of event, line by line."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import convert, to_builtins
from msgspec.structs import replace
from rich.console import Console

from support.look import lines_of, screen_of
from turnwise import Engine
from turnwise.cli.event_view import EventView, show_question, show_until_rest
from turnwise.cli.scroll import Scroll
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.states.calls import ToolCall
from turnwise.states.errors import ChatNotFound
from turnwise.states.events import Event
from turnwise.states.names import CallStatus, ChatState, Executor, StopReason

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ERROR = {"kind": "overloaded", "message": "too many at once", "step": 1}
CALL = ToolCall(call_id="c1", name="ask", arguments={"what": "now\x1b[31m"}, executor=Executor.client, index=0, step=1)
WAITING = {"id": "m9", "parts": [{"type": "text", "text": "later"}], "when_busy": "queue", "accepted_at": NOW}


def event(kind: str, seq: int = 1, **fields: Any) -> Event:
    return convert(to_builtins({"kind": kind, "seq": seq, "chat_id": "c", "at": NOW, **fields}), Event)


def message(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"m-{role}", "role": role, "parts": parts, "turn": 1, "step": 1, "created_at": NOW}


def shown(*events: Event, echo: bool = True) -> list[str]:
    """Return the lines that somebody sees who watches without a terminal."""
    seen = io.StringIO()
    scroll = Scroll(Console(file=seen, width=100))
    view = EventView(scroll, echo=echo)
    with scroll:
        for one in events:
            view.show(one)
    assert view.after == events[-1].seq
    return [line.strip() for line in seen.getvalue().splitlines() if line.strip()]


TEXT = {"type": "text", "text": "hello"}
LOOK = {"type": "tool_call", "call_id": "c1", "name": "look", "arguments": {"at": "it"}, "executor": "local"}
ASK = {"type": "tool_call", "call_id": "c2", "name": "ask", "arguments": {}, "executor": "client"}
RESULT = {"step": 1, "call_id": "c1", "index": 0, "name": "look", "outcome": CallStatus.succeeded}
SLY = {**LOOK, "arguments": {"to": "ann', amount='1", "\\": "\\'", "n='1', m": 2}}
PAY = {**LOOK, "arguments": {"n": 1, "s": "1", "f": True, "l": [1, "a"], "o": {"a": None}, "none": None, "": ""}}
COMPACTION = {"step": 1, "percent": 91.5, "context_tokens": 9150, "context_limit": 10_000}


def test_a_message_that_is_told_again_as_it_was_erased_breaks_no_answer_off() -> None:
    seen = io.StringIO()
    scroll = Scroll(Console(file=seen, width=100))
    view = EventView(scroll)
    erased = message("assistant", {**LOOK, "arguments": {}}) | {"erased": True}
    more = [event("part", step=2, attempt=1, index=0, part={"type": "text", "delta": word}) for word in ("We", "ll")]
    with scroll:
        for one in (
            event("message", message=message("assistant", LOOK)),
            more[0],
            event("message", message=erased),
            more[1],
        ):
            view.show(one)
    assert "Well" in seen.getvalue()
    assert view.live_text == "Well"
    assert seen.getvalue().count("look") == 1


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        (event("tool_progress", step=1, call_id="c1", progress={"done": 3}), ['… c1: {"done":3}']),
        (event("tool_result", **RESULT, output="seen", is_error=False), ["✓ look → seen"]),
        (event("tool_result", **RESULT, output="gone", is_error=True), ["✗ look → gone"]),
        (event("action_required", calls=[CALL]), ["? ask(what='now\\x1b[31m')"]),
        (
            event("retry", step=1, attempt=2, delay=1.5, error=ERROR, retry_at=NOW),
            ["↻ too many at once; next attempt in 1.5 s"],
        ),
        (
            event("attempt_discarded", step=1, attempt=2, reason="network"),
            ["↶ attempt 2 is taken back: network"],
        ),
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
        (event("queue", queue=[WAITING, WAITING]), ["≡ 2 in the queue"]),
        (event("queue", queue=[]), []),
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
        (event("message", message=message("user", TEXT)), ["» hello"]),
        (
            event("message", message=message("user", {"type": "file", "media_type": "image/png", "data": "aGk="})),
            ["» (a file)"],
        ),
        (event("message", message=message("assistant", TEXT, LOOK, ASK)), ["▸ look(at='it')"]),
        (
            event("message", message=message("assistant", PAY)),
            ["▸ look(n=1, s='1', f=true, l=[1,\"a\"], o={\"a\":null}, none=null, ''='')"],
        ),
        (
            event("message", message=message("assistant", SLY)),
            [r"▸ look(to='ann\', amount=\'1', '\\'='\\\'', 'n=\'1\', m'=2)"],
        ),
    ],
    ids=lambda value: value.kind if not isinstance(value, list) else "",
)
def test_an_event_is_a_line(told: Event, lines: list[str]) -> None:
    assert shown(told) == lines


@pytest.mark.parametrize("width", [1, 20, 40, 80, 100])
def test_of_a_call_that_somebody_may_allow_everything_is_shown(width: int) -> None:
    """Else the model, which decides how long arguments are and in which order they come, decides what is seen."""
    name, rent = "transfer_to_an_account_elsewhere", "Rent for November, " + "x" * 150
    call = {"note": rent, "cents": 900_000, "to": "DE00 ATTACKER", "n" * 130: {"urgent": True}}
    screen = screen_of(width)
    show_question(Scroll(screen), replace(CALL, name=name, arguments=call))
    seen = "".join(re.sub(r"\[[a-z/]*\]", "", line) for line in lines_of(screen)).replace(" ", "").replace("~", "")
    told = f"? {name} note='{rent}' cents=900000 to='DE00 ATTACKER' {'n' * 130}={{\"urgent\":true}}"
    assert seen == told.replace(" ", "")


def test_an_argument_of_several_lines_looks_like_no_other_argument() -> None:
    screen = screen_of(40)
    sly = "a\n    to='ann'\r\t\x1b[2J" + "y" * 30
    show_question(Scroll(screen), replace(CALL, arguments={"note": sly, "list": [1, "a\nb"]}))
    assert lines_of(screen) == [
        "  [yellow]? ask[/]",
        r"      note='a\n~~~",
        rf"          to=\'ann\'\r\t\x1b[2J{'y' * 8}",
        f"          {'y' * 22}'",
        r'      list=[1,"a\nb"]',
    ]


def test_text_and_thoughts_are_shown_as_they_come_and_a_discarded_reply_is_forgotten() -> None:
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


def test_whoever_typed_a_message_does_not_see_it_again() -> None:
    assert shown(event("message", message=message("user", TEXT)), echo=False) == []


def test_states_are_told_once_and_the_last_leads_on_to_the_next() -> None:
    seen = io.StringIO()
    view = EventView(Scroll(Console(file=seen, width=100)))
    view.show(event("status", 1, state=ChatState.pending, previous=ChatState.waiting))
    view.show(event("status", 2, state=ChatState.streaming, previous=ChatState.pending))
    view.tell_states()
    view.show(event("status", 3, state=ChatState.waiting, previous=ChatState.streaming))
    view.tell_states()
    lines = [line.strip() for line in seen.getvalue().splitlines() if line.strip()]
    assert lines == ["waiting → pending → streaming", "streaming → waiting"]


async def test_what_happens_is_shown_while_it_happens() -> None:
    """Not only once the chat rests."""
    seen = io.StringIO()
    heard: list[str] = []

    async def sleep(_seconds: float) -> None:
        while "One. " not in (view.live_text, *heard):
            await engine.get_chat(chat.id)

    async with Engine(
        "sqlite://", model=ScriptedModel([Reply("One. Two.", chunks=["One. ", "Two."], delay=1)], sleep=sleep)
    ) as engine:
        chat = await engine.create_chat()
        view = EventView(Scroll(Console(file=seen, width=100)))
        await engine.send_message(chat.id, "count")
        rested = await show_until_rest(engine, chat.id, view)
    assert rested.state == "waiting"
    assert view.after == rested.last_seq
    assert "One. Two." in seen.getvalue()


def test_whole_lines_keep_the_style_of_what_they_are() -> None:
    """Reasoning is dim wherever a line ends."""
    seen = io.StringIO()
    scroll = Scroll(Console(file=seen, width=40, force_terminal=True, color_system="standard", _environ={}))
    scroll.write("a thought that is longer than a line of this screen can be " * 2, style="dim italic")
    scroll.write("an answer")
    scroll.end_line()
    *thought, answer = [line for line in seen.getvalue().splitlines() if line.strip()]
    assert len(thought) > 2
    assert all("\x1b[2;3m" in line for line in thought)
    assert "\x1b[" not in answer


def test_every_line_has_the_colour_of_what_it_is() -> None:
    screen = screen_of()
    view = EventView(Scroll(screen))
    for one in (
        event("message", message=message("user", TEXT)),
        event("tool_progress", step=1, call_id="c1", progress=1),
        event("tool_result", **RESULT, output="seen", is_error=False),
        event("tool_result", **RESULT, output="gone", is_error=True),
        event("action_required", calls=[CALL]),
        event("message", message=message("assistant", LOOK)),
        event("error", error=ERROR),
        event("queue", queue=[WAITING]),
    ):
        view.show(one)
    assert lines_of(screen) == [
        "[bold green]» [/][bold]hello[/]",
        "  [dim]… c1: 1[/]",
        "  [green]✓ look → seen[/]",
        "  [red]✗ look → gone[/]",
        r"  [yellow]? ask[/](what='now\x1b[31m')",
        "  [cyan]▸ look[/](at='it')",
        "  [red]✗ too many at once[/]",
        "  [dim]≡ 1 in the queue[/]",
    ]


def test_a_part_without_words_shows_nothing() -> None:
    view = EventView(Scroll(screen_of()))
    for kind in ("text", "reasoning", "tool_call"):
        delta = {"delta": "{"} if kind == "tool_call" else {}
        view.show(event("part", 1, step=1, attempt=1, index=0, part={"type": kind, **delta}))
    assert (view.live_text, view.scroll.tail) == ("", "")


def test_a_message_that_is_complete_ends_its_line() -> None:
    screen = screen_of()
    view = EventView(Scroll(screen))
    for text in ("so ", "it is"):
        view.show(event("part", step=1, attempt=1, index=0, part={"type": "text", "delta": text}))
    view.show(event("message", message=message("assistant", TEXT)))
    assert lines_of(screen) == ["  so it is"]


async def test_what_was_shown_is_not_shown_again_and_a_stop_is_told() -> None:
    screen = screen_of()
    view = EventView(Scroll(screen))
    async with Engine("sqlite://", model=ScriptedModel(["One.", Reply("never", first_delay=600)])) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "count")
        assert (await show_until_rest(engine, chat.id, view)).state is ChatState.waiting
        first = lines_of(screen)
        assert first.count("  One.") == 1
        assert "stopped" not in "".join(first)
        await engine.send_message(chat.id, "go on")
        await engine.interrupt(chat.id)
        await show_until_rest(engine, chat.id, view)
    seen = lines_of(screen)
    assert seen.count("  One.") == 1
    assert seen[-1] == "  [yellow]■ stopped; what was said is kept[/]"


async def test_a_chat_that_is_not_there_is_told_as_it_is() -> None:
    async with Engine("sqlite://", model="demo") as engine:
        with pytest.raises(ChatNotFound):
            await show_until_rest(engine, "cffff", EventView(Scroll(screen_of())))
