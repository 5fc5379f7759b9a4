"""The order of messages: results stand as their calls do, and nothing else changes its place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from support.life import NOW
from turnwise.states.message_order import in_call_order, in_prompt_order, in_transcript_order
from turnwise.states.messages import Message, Part, TextPart, ToolResultPart
from turnwise.states.names import Audience


def result(index: int, step: int = 1) -> Message:
    part = ToolResultPart(call_id=f"{step}.{index}", name="t", output=None)
    return message("tool", part, step=step, call_index=index)


def message(role: str, *parts: Part, step: int = 1, call_index: int | None = None) -> Message:
    return Message(
        id="m",
        role=role,
        parts=parts,
        turn=1,
        step=step,
        created_at=NOW,
        call_index=call_index,  # type: ignore[arg-type]
    )


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


def test_summary_of_a_result_keeps_its_place() -> None:
    """A strategy may change the role of a message; the result that it was had a place among the calls."""
    summary = replace(result(1), role="user")
    history = [summary, message("assistant", TextPart(text="x")), result(0), result(1)]

    assert in_call_order(history) == in_transcript_order(history) == history


@given(st.lists(st.sampled_from(["user", "assistant", "system"])))
def test_only_results_change_their_place(roles: list[str]) -> None:
    history = [message(role, step=step) for step, role in enumerate(roles)]

    assert in_call_order(history) == in_transcript_order(history) == history


def test_prompt_starts_with_what_the_boundary_lists() -> None:
    def at(position: int, audience: Audience = Audience.everyone) -> Message:
        return Message(
            id=f"m{position}",
            role="user",
            parts=(),
            turn=1,
            step=0,
            created_at=NOW,
            position=position,
            audience=audience,
        )

    seen = [at(2), at(6, Audience.model), at(7)]
    assert [message.position for message in in_prompt_order(seen, (6, 2))] == [6, 2, 7]
    assert [message.position for message in in_prompt_order(seen, (2, 6))] == [2, 6, 7]
