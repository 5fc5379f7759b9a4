"""Messages: accepted content of users, and the fields that clients see."""

import functools
import operator
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.json import decode, encode
from msgspec.structs import replace

from support.life import (
    ERROR,
    NOW,
    Life,
    asking,
    client,
    compacting,
    executing,
    failed,
    interrupted,
    local,
    queued,
    streaming,
    waiting,
)
from turnwise import FilePart, Message, QueuedMessage, TextPart
from turnwise.states import ChatState
from turnwise.states import triggers as t
from turnwise.states.arguments import Erasing, StepReply
from turnwise.states.calls import ToolResult
from turnwise.states.errors import InvalidContent
from turnwise.states.events import Event, PartDelta, PartEvent
from turnwise.states.message_order import in_call_order, in_prompt_order, in_transcript_order
from turnwise.states.messages import Part, ReasoningPart, ToolCallPart, ToolResultPart, parts_of, without_secrets
from turnwise.states.names import Audience, StopReason
from turnwise.states.transcript import fold
from turnwise.states.usage import NO_USAGE, Usage, reported
from turnwise.states.writes import ERASED


def message(role: Any, *parts: Part, step: int = 1, call_index: int | None = None) -> Message:
    return Message(id="m", role=role, parts=parts, turn=1, step=step, created_at=NOW, call_index=call_index)


def test_empty_content_is_refused() -> None:
    file = FilePart(media_type="image/png", url="https://example.org/a.png")
    assert parts_of("hello") == (TextPart(text="hello"),)
    assert parts_of([TextPart(text=" "), file]) == (file,)
    for nothing in ("", "  \n", [], [TextPart(text="")]):
        with pytest.raises(InvalidContent, match="must hold text or a file; it was empty"):
            parts_of(nothing)


def test_message_has_text_calls_and_result() -> None:
    call = ToolCallPart(call_id="a", name="t", arguments={})
    stored = message("assistant", TextPart(text="a"), ReasoningPart(text="hm"), call, TextPart(text="b"))
    assert (stored.text, stored.calls, stored.result) == ("ab", (call,), None)
    result = ToolResultPart(call_id="a", name="t", output=None)
    assert message("tool", result).result == result
    assert message("tool").result is None
    assert QueuedMessage(id="m", parts=stored.parts, accepted_at=NOW).text == "ab"


def test_client_never_sees_provider_metadata() -> None:
    secret = message("assistant", TextPart(text="a", metadata={"k": 1}), TextPart(text="b"))
    assert [part.metadata for part in without_secrets(secret).parts] == [None, None]
    assert secret.parts[0].metadata == {"k": 1}
    assert without_secrets(without_secrets(secret)) is not secret


def test_commit_keeps_metadata_that_events_leave_out() -> None:
    life = streaming()
    part = TextPart(text="hi", metadata={"k": 1})
    decided = life.held(t.StepFinished, reply=StepReply(parts=(part,)))
    assert life.messages[-1].parts == (part,)
    assert decided.events[0].message == without_secrets(life.messages[-1]) != life.messages[-1]


def test_only_text_and_files_are_content() -> None:
    with pytest.raises(InvalidContent, match="must be text, or a sequence of TextPart and FilePart"):
        parts_of([ReasoningPart(text="x")])  # type: ignore[list-item]


def result(index: int, step: int = 1) -> Message:
    part = ToolResultPart(call_id=f"{step}.{index}", name="t", output=None)
    return message("tool", part, step=step, call_index=index)


@given(st.permutations(range(5)), st.permutations(range(5, 8)))
def test_results_stand_in_call_order(first: list[int], second: list[int]) -> None:
    asked = message("assistant", TextPart(text="x"))
    history = [asked, *map(result, first), asked, *(result(index, step=2) for index in second)]
    ordered = in_call_order(history)
    assert [entry.call_index for entry in ordered] == [None, *range(5), None, *range(5, 8)]
    assert in_call_order(ordered) == ordered == in_transcript_order(history)


@given(st.permutations(range(5)), st.integers(0, 5))
def test_marker_among_results_keeps_its_place(indexes: list[int], place: int) -> None:
    marker, results = message("system"), [*map(result, indexes)]
    ordered = in_transcript_order([*results[:place], marker, *results[place:]])
    assert [entry.call_index for entry in ordered if entry is not marker] == [*range(5)]
    assert (ordered[place], in_transcript_order(ordered)) == (marker, ordered)


def test_results_apart_stay_apart_in_a_prompt() -> None:
    history = [result(1), message("user"), result(0)]
    assert in_call_order(history) == history
    assert in_transcript_order(history) == history[::-1]


def test_prompt_starts_with_what_the_boundary_lists() -> None:
    def at(position: int, audience: Audience = Audience.everyone) -> Message:
        return replace(message("user"), id=f"m{position}", position=position, audience=audience)

    seen = [at(2), at(6, Audience.model), at(7)]
    assert [message.position for message in in_prompt_order(seen, (6, 2))] == [6, 2, 7]
    assert [message.position for message in in_prompt_order(seen, (2, 6))] == [2, 6, 7]


# Usage


counts = st.none() | st.integers(min_value=0, max_value=10**9)
costs = st.none() | st.decimals(min_value=0, max_value=10**6, places=12)
plain = st.builds(
    Usage,
    input_tokens=counts,
    output_tokens=counts,
    reasoning_tokens=counts,
    cache_read_tokens=counts,
    cache_write_tokens=counts,
    partial=st.booleans(),
    cost=costs,
    cost_partial=st.booleans(),
)
usages = plain | plain.map(Usage.as_compaction)


@given(usages, usages, usages)
def test_sums_are_commutative_and_associative(one: Usage, two: Usage, three: Usage) -> None:
    assert one + two == two + one
    assert (one + two) + three == one + (two + three)


@given(st.lists(usages))
def test_figure_is_unknown_only_if_unreported(spent: list[Usage]) -> None:
    total = functools.reduce(operator.add, spent, NO_USAGE)
    known = [usage.output_tokens for usage in spent if usage.output_tokens is not None]
    assert total.output_tokens == (sum(known) if known else None)
    assert total.partial == any(usage.partial for usage in spent)


@given(usages)
def test_compaction_share_holds_all_of_its_usage(usage: Usage) -> None:
    share = usage.as_compaction().compaction
    assert share.compaction is None
    assert share.input_tokens == usage.input_tokens
    assert usage.as_compaction().input_tokens == usage.input_tokens


@given(usages)
def test_call_without_usage_is_partial(usage: Usage) -> None:
    assert reported(usage) == (usage if usage.known else Usage(partial=True))
    assert reported(None) == Usage(partial=True)
    assert Usage().known is False
    assert Usage(cache_read_tokens=0).known is True


calls = st.tuples(counts, counts, costs, st.booleans()).map(
    lambda given: Usage(input_tokens=given[0], output_tokens=given[1], cost=given[2], partial=given[3])
)
"""Usage reports of single model calls."""


@given(st.lists(calls))
def test_incomplete_cost_is_partial(spent: list[Usage]) -> None:
    """An unknown price is not free."""
    total = functools.reduce(operator.add, map(reported, spent), NO_USAGE)
    known = [usage.cost for usage in spent if usage.cost is not None]
    assert total.cost == (sum(known) if known else None)
    assert total.cost_partial == (bool(known) and len(known) < len(spent))


def test_cost_sums_are_exact() -> None:
    one, other = Usage(cost=Decimal("123456789.000000000001")), Usage(cost=Decimal("0.1"))
    with localcontext() as context:
        context.prec = 3
        assert (one + other).cost == Decimal("123456789.100000000001")


@given(usages)
def test_cost_round_trips_as_text(usage: Usage) -> None:
    spelled = msgspec.json.encode(usage)
    assert msgspec.json.decode(spelled, type=Usage) == usage
    assert Usage(**usage.model_dump()) == usage
    assert msgspec.json.decode(spelled).get("cost") == (None if usage.cost is None else str(usage.cost))


@pytest.mark.parametrize(("given_cost", "cost"), [(1, "1"), (0.25, "0.25"), ("0.1", "0.1"), (0.1, "0.1"), (0, "0")])
def test_numbers_become_costs(given_cost: Any, cost: str) -> None:
    assert Usage(cost=given_cost).cost == Decimal(cost)


@pytest.mark.parametrize(
    "wrong", [-1, Decimal("NaN"), Decimal("sNaN"), float("inf"), Decimal("-0.01"), "dear", True, []]
)
def test_invalid_cost_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidContent, match=r"^Usage"):
        Usage(cost=wrong)


# The transcript


S = ChatState


def shown(life: Life, *deltas: str, attempt: int = 1) -> None:
    """Make parts of the running attempt visible."""
    for delta in deltas:
        part = PartDelta(type="text", delta=delta)
        event = PartEvent(seq=len(life.events) + 1, step=life.facts.step.number, attempt=attempt, index=0, part=part)
        life.events.append(event)


def long_life() -> Life:
    """Return a chat that was retried, ran tools, asked its client, was compacted, edited, stopped and failed."""
    life = streaming()
    shown(life, "I ", "th")
    life.discard()
    life.attempt()
    shown(life, "Let me ", "see", attempt=2)
    life.reply(local("a", 2), local("b", 1), client("c", 0))
    life.start("b")
    life.finish("b")
    life.finish("a")
    life.held(t.ToolsFinished)
    life.send("and now?")
    life.submit(ToolResult("c", "yes"))
    life.claim()
    life.reply(tokens=90)
    life.compact()
    life.attempt()
    life.reply(tokens=10)
    life.claim()
    shown(life, "Well")
    life.interrupt()
    life.settle(life.partial(text="Well"))
    life.edit("m1", "from the start")
    life.claim()
    life.fail()
    return life


LIVES: dict[str, Callable[[], Life]] = {
    "long": long_life,
    "waiting": waiting,
    "asking": asking,
    "executing": lambda: executing(local("a"), local("b", 1)),
    "compacting": compacting,
    "interrupted": interrupted,
    "failed": failed,
    "queued": lambda: queued(streaming(), "a", "b"),
}


@pytest.mark.parametrize("name", LIVES)
def test_events_fold_to_the_committed_transcript(name: str) -> None:
    life = LIVES[name]()
    seen = fold(life.events)
    assert seen.messages == in_transcript_order([m for m in life.messages if m.audience is not Audience.model])
    assert (seen.state, seen.queue, seen.error) == (life.facts.state, life.facts.queue, life.facts.last_error)
    assert seen.open_calls == (life.facts.open_calls if life.facts.state is S.requires_action else ())
    assert seen.live == {}


@given(st.data())
def test_log_folds_the_same_in_pieces(data: st.DataObject) -> None:
    events = LONG.events
    cut = data.draw(st.integers(min_value=0, max_value=len(events)))
    again = data.draw(st.integers(min_value=0, max_value=cut))
    half = fold(events[:cut])
    assert fold(events[again:], half) == fold(events)


@given(st.integers(min_value=0))
def test_log_folds_the_same_after_json(cut: int) -> None:
    part = LONG.events[: cut % len(LONG.events)]
    travelled: list[Event] = [decode(encode(event), type=Event) for event in part]
    assert fold(travelled) == fold(part)


LONG = long_life()


def test_live_text_ends_with_the_message() -> None:
    life = streaming()
    shown(life, "Hel", "lo")
    assert fold(life.events).live_text == "Hello"
    life.reply(text="Hello")
    seen = fold(life.events)
    assert (seen.live_text, seen.live_step, seen.messages[-1].text) == ("", None, "Hello")
    assert seen.stop_reason is StopReason.end_turn


def test_discarded_attempt_removes_only_its_parts() -> None:
    life = streaming()
    shown(life, "Hel")
    before = fold(life.events)
    life.discard()
    taken_back = life.events[-2]
    assert fold(life.events).live_text == ""
    other = replace(taken_back, attempt=7, seq=before.last_seq + 1)
    assert fold([other], before).live_text == "Hel"


def test_erased_message_replaces_the_original() -> None:
    life = waiting()
    blank = replace(life.messages[0], parts=(), erased=True)
    life.fire(t.MessageErased, erasing=Erasing(messages=(blank,)))
    seen = fold(life.events)
    assert [message.text for message in seen.messages] == ["", "hi"]
    assert life.messages[0].erased


def test_erased_arguments_are_sent_once() -> None:
    life = asking(replace(client("a"), arguments={"pin": 4711}), client("b", 1))
    asked = life.messages[-1]
    for told_again in (True, False):
        decision = life.fire(t.MessageErased, erasing=Erasing(messages=(replace(asked, erased=True),)))

        assert [event.kind for event in decision.events] == ["message", *["action_required"] * told_again]
        assert fold(life.events).open_calls == life.facts.calls.asked_of_client
        assert not any(call.arguments for call in life.facts.calls)


def test_erased_error_is_sent_once() -> None:
    life = failed()
    for told_again in (True, False):
        decision = life.fire(t.MessageErased, erasing=Erasing(errors=True))

        assert [event.kind for event in decision.events] == ["error"] * told_again
        assert fold(life.events).error == replace(ERROR, message=ERASED)
