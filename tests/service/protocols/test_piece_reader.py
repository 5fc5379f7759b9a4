"""What a reader sees of a turn, wherever it joins: every part begins before it grows, ends, and comes once."""

from __future__ import annotations

from typing import Any

import pytest

from support.one_turn import call, calling, finished, kept, numbered, said, state, whole, words
from turnwise.service.protocols import pieces as p
from turnwise.service.protocols.piece_reader import PieceReader
from turnwise.states.events import (
    AttemptDiscardedEvent,
    ErrorEvent,
    ErrorInfo,
    Event,
)
from turnwise.states.messages import FilePart, ReasoningPart, SourcePart, TextPart, ToolResultPart
from turnwise.states.names import ChatState, Executor, StopReason

BEGUN = (said(), state(ChatState.streaming))
FILE = FilePart(media_type="a/b", url="http://f")
SOURCE = SourcePart(url="http://s")


def read(*events: Event, reader: PieceReader | None = None, **options: Any) -> list[p.Piece]:
    reader = reader or PieceReader(**options)
    return [piece for event in events for piece in reader.read(event)]


def text(told: str, index: int = 0, step: int = 1) -> list[p.Piece]:
    return [
        p.WordsBegun(step, index, "text"),
        p.WordsAdded(step, index, "text", told),
        p.WordsEnded(step, index, "text"),
    ]


def file() -> Event:
    return whole("file", index=1, media_type="a/b", url="http://f")


def ended(message: Event, step: int = 1) -> p.Piece:
    return p.StepEnded(step, getattr(message, "message", None))


def test_late_reader_gets_part_rest_and_whole_calls() -> None:
    """The fragments of a call whose beginning was missed are no JSON."""
    reply = kept(TextPart(text="One two"), call(a=1), TextPart(text="Three"))
    events = numbered(
        words("two"), calling(": 1}"), words("Th", index=2), words("ree", index=2), reply, finished(), first=7
    )
    assert read(*events) == [
        p.StepBegun(1),
        *text("two"),
        p.WordsBegun(1, 2, "text"),
        p.WordsAdded(1, 2, "text", "Th"),
        p.WordsAdded(1, 2, "text", "ree"),
        p.WordsEnded(1, 2, "text"),
        p.CallBegun(1, "k", "look", call().executor),
        p.CallMade(call(a=1), ""),
        ended(events[-2]),
    ]


def test_files_and_sources_are_shown_once() -> None:
    reply = kept(TextPart(text="One"), FILE, SOURCE)
    shown = whole("source", index=2, url="http://s")
    both = [p.WholeShown(1, 1, FILE), p.WholeShown(1, 2, SOURCE)]
    expected = [p.StepBegun(1), *text("One"), *both, ended(reply)]
    assert read(*numbered(*BEGUN, words("One"), file(), shown, reply)) == expected
    assert read(*numbered(*BEGUN, words("One"), file(), reply)) == expected
    assert read(*numbered(*BEGUN, words("One"), reply)) == expected
    assert read(*numbered(*BEGUN, reply)) == expected
    missed = read(*numbered(words("ne"), reply, first=7))
    assert missed == [p.StepBegun(1), *text("ne"), ended(reply)], "what was missed is not shown late, out of order"
    assert read(*numbered(file(), reply, first=7)) == [p.StepBegun(1), p.WholeShown(1, 1, FILE), ended(reply)]
    whole_call = whole("tool_call", call_id="k", name="look", arguments={})
    assert read(*numbered(whole_call, kept(call(), TextPart(text="One"), FILE), first=7))[1:-1] == [
        p.CallBegun(1, "k", "look", Executor.local), p.CallMade(call(), "")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("shown", "reply", "is_taken_back"),
    [
        (
            [words("Hm", kind="reasoning"), words("On", index=1)],
            [ReasoningPart(text="Hm"), TextPart(text="One")],
            False,
        ),
        (
            [words("On"), words("Hm", kind="reasoning", index=1)],
            [TextPart(text="One"), ReasoningPart(text="Hm")],
            False,
        ),
        ([words("On")], [TextPart(text=""), TextPart(text="One"), FILE], False),
        ([words("On")], [FILE, TextPart(text="One")], False),
        ([words("Hm", kind="reasoning")], [TextPart(text="Hm"), ReasoningPart(text="Oh"), TextPart(text="One")], True),
        ([words("On")], [], True),
    ],
)
def test_gap_is_filled_after_a_prefix(
    shown: list[Event],
    reply: list[Any],
    is_taken_back: bool,  # noqa: FBT001
) -> None:
    pieces = read(*numbered(*BEGUN, *shown), *numbered(kept(*reply), first=9))
    assert any(isinstance(piece, p.TakenBack) for piece in pieces) is is_taken_back
    told = "".join(piece.text for piece in pieces if isinstance(piece, p.WordsAdded) and piece.kind == "text")
    assert is_taken_back or told == "One"


def test_discarded_attempt_takes_back_calls() -> None:
    call_and_result = (
        whole("tool_call", call_id="k", name="look", arguments={}),
        whole("tool_result", index=1, call_id="k", name="look", output="1"),
    )
    discarded = AttemptDiscardedEvent(step=1, attempt=1, reason="lost")
    pieces = read(*numbered(*BEGUN, *call_and_result, calling("{", call_id="j"), words("On", index=2), discarded))
    shown = p.ResultGiven("c1-k", ToolResultPart(call_id="k", name="look", output="1"), by_provider=True)
    assert shown in pieces
    assert pieces[-1] == p.TakenBack(1, 1, "lost", (p.WordsEnded(1, 2, "text"),), (p.CallDropped("j", "look"),), ("k",))
    again = read(*numbered(*BEGUN, *call_and_result, discarded, *call_and_result))
    assert again.count(shown) == 2
    assert again.count(p.CallMade(call(), "")) == 2
    other = AttemptDiscardedEvent(step=1, attempt=2, reason="lost")
    assert not any(isinstance(piece, p.TakenBack) for piece in read(*numbered(*BEGUN, words("On"), other)))
    assert read(discarded) == []


def test_call_fragments_need_a_seen_beginning() -> None:
    discarded = AttemptDiscardedEvent(step=1, attempt=1, reason="lost")
    second = calling("{", attempt=2)
    grows = [p.StepBegun(1), p.CallBegun(1, "k", "look", None), p.CallAdded("k", "{")]
    assert read(*numbered(*BEGUN, words("On"), discarded, second))[-3:] == grows
    assert read(*numbered(discarded, second, first=7)) == grows
    assert read(*numbered(*BEGUN, words("On"), second))[-1] == p.StepBegun(1), "what is between them was missed"


@pytest.mark.parametrize("at_work", [ChatState.streaming, ChatState.executing_tools])
def test_resumed_turn_is_read_to_its_last_end(at_work: ChatState) -> None:
    """And how it ends at last counts, not how it ended before."""
    wrong = [ErrorEvent(error=ErrorInfo(kind=kind, message=kind)) for kind in ("auth", "network")]
    failed = [state(ChatState.error), finished(StopReason.error)]
    resumed = [state(ChatState.pending), state(at_work), words("One"), kept(TextPart(text="One"))]
    reader = PieceReader()
    lived = read(*numbered(*BEGUN, wrong[0], *failed, *resumed, finished()), reader=reader)
    assert [type(piece).__name__ for piece in lived] == [
        "StepBegun",
        "WordsBegun",
        "WordsAdded",
        "WordsEnded",
        "StepEnded",
    ]
    assert (reader.error, reader.state) == (None, at_work)
    assert reader.finished is not None
    assert reader.finished.stop_reason == "end_turn"
    again = PieceReader()
    assert read(*numbered(*BEGUN, wrong[0], *failed, state(ChatState.pending), wrong[1], *failed), reader=again) == []
    assert again.error is not None
    assert again.error.kind == "network", "it failed before any work"
