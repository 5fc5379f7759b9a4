"""What a reader sees of a turn, wherever it joins: every part begins before it grows, ends, and comes once."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from support.one_turn import asking, call, calling, finished, given, kept, numbered, said, state, whole, words
from turnwise.service.protocols import pieces as p
from turnwise.service.protocols.piece_reader import PieceReader
from turnwise.states.events import (
    AttemptDiscardedEvent,
    ErrorEvent,
    ErrorInfo,
    Event,
    HistoryResetEvent,
    MessageEvent,
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


def made(told: str = "", *, step: int = 1, **arguments: Any) -> list[p.Piece]:
    return [p.CallBegun(step, "k", "look", None), p.CallMade(call(**arguments), told)]


def test_who_joins_in_mid_reply_sees_the_rest_of_the_part_and_calls_only_whole() -> None:
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


@pytest.mark.parametrize(
    "fragment",
    [calling("{", name=None), calling("{", name=""), calling("{", call_id=None)],
    ids=["none", "empty", "id"],
)
def test_a_call_that_has_no_name_or_id_yet_is_not_announced(fragment: Event) -> None:
    assert read(*numbered(*BEGUN, fragment, calling('{"a": 1}')))[1:] == [
        p.CallBegun(1, "k", "look", None),
        p.CallAdded("k", '{"a": 1}'),
    ]


def test_a_call_is_announced_once() -> None:
    whole_call = whole("tool_call", call_id="k", name="look", arguments={})
    events = numbered(
        *BEGUN, calling(None), calling("{}"), whole_call, whole_call, kept(call()), asking(("k", "asked"))
    )
    pieces = read(*events)
    assert [type(piece).__name__ for piece in pieces] == [
        "StepBegun", "CallBegun", "CallAdded", "CallMade", "StepEnded", "ActionRequired"
    ]  # fmt: skip
    assert pieces[3] == p.CallMade(call(), "{}")


def test_a_step_that_follows_another_without_a_change_of_state_is_seen_from_its_beginning() -> None:
    """As when a provider paused its turn: its calls grow before the reader's eyes, too."""
    first = kept(TextPart(text="One"))
    second = calling('{"a": 1}', step=2)
    pieces = read(*numbered(*BEGUN, words("One"), first, second))
    assert pieces[-3:] == [
        p.StepBegun(2),
        p.CallBegun(2, "k", "look", None),
        p.CallAdded("k", '{"a": 1}'),
    ]


def test_files_and_sources_are_shown_once_whether_their_parts_were_seen_or_not() -> None:
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


def test_what_was_pruned_is_shown_with_the_message_that_keeps_it() -> None:
    reply = kept(TextPart(text="One two"))
    events = numbered(*BEGUN, words("One"), words(" two"), reply)
    expected = [p.StepBegun(1), p.WordsBegun(1, 0, "text"), p.WordsAdded(1, 0, "text", "One")]
    rest = [p.WordsAdded(1, 0, "text", " two"), p.WordsEnded(1, 0, "text"), ended(reply)]
    assert read(*events[:3], events[4]) == [*expected, *rest]
    assert read(*events[:2], events[4]) == [p.StepBegun(1), *text("One two"), ended(reply)]


def test_a_gap_in_what_was_shown_is_taken_back_where_that_can_be_done() -> None:
    reply = kept(TextPart(text="One two three"))
    events = numbered(*BEGUN, words("One"), words(" two"), words(" three"), reply)
    gap = [*events[:3], *events[4:]]
    shown = [
        p.StepBegun(1), p.WordsBegun(1, 0, "text"), p.WordsAdded(1, 0, "text", "One"),
        p.WordsAdded(1, 0, "text", " three"),
    ]  # fmt: skip
    open_words = (p.WordsEnded(1, 0, "text"),)
    back = p.TakenBack(1, 1, "what was shown of it has a gap", open_words, (), ())
    assert read(*gap) == [*shown, back, p.StepBegun(1), *text("One two three"), ended(reply)]
    assert read(*gap, takes_back=False) == [*shown, *open_words, ended(reply)]
    more = numbered(kept(TextPart(text="One two three"), TextPart(text="more"), FILE), first=7)
    late = [p.WordsEnded(1, 0, "text"), ended(more[0])]
    assert read(*gap[:-1], *more, takes_back=False) == [*shown, *late], "nothing is shown late, out of order"
    assert not any(isinstance(piece, p.TakenBack) for piece in read(*events))


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
def test_a_gap_is_filled_where_what_was_shown_is_the_beginning(
    shown: list[Event],
    reply: list[Any],
    is_taken_back: bool,  # noqa: FBT001
) -> None:
    pieces = read(*numbered(*BEGUN, *shown), *numbered(kept(*reply), first=9))
    assert any(isinstance(piece, p.TakenBack) for piece in pieces) is is_taken_back
    told = "".join(piece.text for piece in pieces if isinstance(piece, p.WordsAdded) and piece.kind == "text")
    assert is_taken_back or told == "One"


def test_an_attempt_that_is_discarded_gives_back_its_calls_and_results() -> None:
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


def test_a_call_that_stays_with_the_client_has_no_result_of_a_later_attempt() -> None:
    """The client has the first call, with the arguments that it had then."""
    first = whole("tool_call", call_id="k", name="look", arguments={"a": 1})
    second = whole("tool_call", call_id="k", name="look", arguments={})
    result = whole("tool_result", index=1, call_id="k", name="look", output="1")
    events = numbered(*BEGUN, first, AttemptDiscardedEvent(step=1, attempt=1, reason="lost"), second, result)
    assert any(isinstance(piece, p.ResultGiven) for piece in read(*events))
    pieces = read(*events, calls_stay=True)
    assert [piece.call for piece in pieces if isinstance(piece, p.CallMade)] == [call(a=1)]
    assert not any(isinstance(piece, p.ResultGiven) for piece in pieces)


def test_the_calls_of_an_attempt_grow_before_the_reader_only_if_its_beginning_was_seen() -> None:
    discarded = AttemptDiscardedEvent(step=1, attempt=1, reason="lost")
    second = calling("{", attempt=2)
    grows = [p.StepBegun(1), p.CallBegun(1, "k", "look", None), p.CallAdded("k", "{")]
    assert read(*numbered(*BEGUN, words("On"), discarded, second))[-3:] == grows
    assert read(*numbered(discarded, second, first=7)) == grows
    assert read(*numbered(*BEGUN, words("On"), second))[-1] == p.StepBegun(1), "what is between them was missed"


def test_a_gap_is_over_with_the_reply_that_it_was_in() -> None:
    before = numbered(*BEGUN, words("On"))
    after = numbered(kept(TextPart(text="One")), words("Two", step=2), kept(TextPart(text="2"), step=2), first=9)
    assert not any(isinstance(piece, p.TakenBack) for piece in read(*before, *after))


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (words("Two", attempt=2), "another attempt has begun"),
        (kept(TextPart(text="Two"), step=2), "another step has begun"),
        (HistoryResetEvent(first_removed="m1"), "the history was cut"),
    ],
)
def test_a_reply_that_is_not_kept_is_taken_back(event: Event, reason: str) -> None:
    pieces = read(*numbered(*BEGUN, words("One"), event))
    assert pieces[3] == p.TakenBack(1, 1, reason, (p.WordsEnded(1, 0, "text"),), (), ())


def test_a_reply_is_kept_once_unless_the_history_was_cut() -> None:
    reply = kept(TextPart(text="One"))
    assert len(read(*numbered(*BEGUN, reply, reply))) == 5
    assert len(read(*numbered(*BEGUN, reply, HistoryResetEvent(first_removed="m1"), reply))) == 10


def test_only_what_the_model_said_and_nobody_has_erased_is_a_reply() -> None:
    reply, question = kept(TextPart(text="One")), said()
    assert isinstance(reply, MessageEvent)
    assert isinstance(question, MessageEvent)
    assert read(replace(reply, message=replace(reply.message, erased=True))) == []
    assert read(replace(question, message=replace(question.message, step=1))) == []


def test_parts_without_words_are_not_shown_and_those_after_them_are() -> None:
    reply = kept(TextPart(text=""), ReasoningPart(text=""), TextPart(text="One"))
    assert read(*BEGUN, reply) == [p.StepBegun(1), *text("One"), ended(reply)]


def test_a_chat_is_known_by_its_events() -> None:
    reader = PieceReader()
    read(*numbered(said()), finished(), reader=reader)
    assert reader.chat_id == "c1"


@pytest.mark.parametrize(
    ("event", "turn"),
    [
        (said(), 3),
        (kept(TextPart(text="One")), 3),
        (said(synthetic=True), None),
        (said(imported=True), None),
        (kept(synthetic=True), None),
        (given(ToolResultPart(call_id="k", name="look", output=1)), None),
        (finished(), 3),
    ],
)
def test_a_turn_is_known_by_what_was_said_in_it(event: Event, turn: int | None) -> None:
    reader = PieceReader()
    read(event, reader=reader)
    assert reader.turn == turn


def test_a_result_is_given_once_and_only_of_a_call_that_is_known() -> None:
    result = ToolResultPart(call_id="k", name="look", output=1)
    twice = numbered(given(result), given(result))
    assert read(*twice) == []
    assert read(*twice, known_calls=["k"]) == [p.ResultGiven("r-k", result, by_provider=False)]
    assert read(*twice, known_calls=["k"], answered=["k"]) == []


def test_what_is_asked_stands_while_the_chat_waits_for_it() -> None:
    reader = PieceReader()
    asks = asking(("k", "asked"))
    read(asks, state(ChatState.requires_action), reader=reader)
    assert [one.call_id for one in reader.awaited_calls] == ["k"]
    read(state(ChatState.streaming), reader=reader)
    assert (reader.awaited_calls, reader.state) == ((), ChatState.streaming)


def test_a_call_that_was_shown_whole_and_is_not_kept_is_withdrawn() -> None:
    """It was to give the answer and was cut off, or its provider never gave its result."""
    shown = (*BEGUN, whole("tool_call", index=1, call_id="k", name="look", arguments={}))
    withdrawn = p.CallWithdrawn("k")
    told = kept(TextPart(text="One"))
    assert read(*numbered(*shown, told))[-2:] == [withdrawn, ended(told)]
    assert read(*numbered(*shown, finished()))[-2:] == [withdrawn, p.StepEnded(1, None)]
    assert withdrawn not in read(*numbered(*shown, kept(call())))
    for is_over, last in ((True, [withdrawn, p.StepEnded(1, None)]), (False, [p.StepEnded(1, None)])):
        reader = PieceReader()
        read(*numbered(*shown), reader=reader)
        assert list(reader.close(is_over=is_over)) == last


def test_nothing_is_read_after_the_turn_and_a_reply_under_way_ends_with_it() -> None:
    end = [p.WordsEnded(1, 0, "text"), p.CallDropped("k", "look"), p.StepEnded(1, None)]
    lived = read(
        *numbered(*BEGUN, calling("{"), words("One"), finished(), words("Two"), kept(TextPart(text="x"), step=2))
    )
    assert lived[-3:] == end
    assert read(*numbered(*BEGUN, words("")))[1:] == [], "words that say nothing begin no part"


@pytest.mark.parametrize("at_work", [ChatState.streaming, ChatState.executing_tools])
def test_a_turn_that_is_resumed_is_read_on(at_work: ChatState) -> None:
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


def test_what_comes_behind_the_end_of_a_turn_is_none_of_the_next_one() -> None:
    reader = PieceReader()
    failed = ErrorEvent(error=ErrorInfo(kind="network", message="no summary"))
    compacting = [state(ChatState.pending), state(ChatState.compacting), failed, state(ChatState.error)]
    read(*numbered(*BEGUN, finished(), *compacting), reader=reader)
    assert (reader.error, reader.state) == (None, ChatState.streaming)
    read(*numbered(said(turn=4), first=8), reader=reader)
    assert (reader.error, reader.state, reader.turn) == (None, ChatState.streaming, 4)
