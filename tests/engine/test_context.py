"""The view of a chat, built message by message, equals the view of the whole history."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from support.life import PROFILE
from turnwise import TextPart
from turnwise.engine.prompt.context import View
from turnwise.engine.prompt.history import sendable
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.repair_history import HistoryRepair
from turnwise.states.messages import Message, ReasoningPart, SourcePart, ToolCallPart, ToolResultPart, length_of
from turnwise.states.names import Executor
from turnwise.states.writes import CutHistory, EraseEdits, EraseMessage, InsertBoundary, InsertMessage, PutProfile

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def message(role: Any, *parts: Any, step: int = 1, position: int = 0, **fields: Any) -> Message:
    return Message(
        id=f"m{position}", role=role, parts=parts, turn=1, step=step, created_at=NOW, position=position, **fields
    )


def result(call_id: str, place: int, *, step: int, position: int) -> Message:
    part = ToolResultPart(call_id=call_id, name="look", output={"seen": [call_id]})
    return message("tool", part, step=step, position=position, call_index=place)


def call(call_id: str, executor: Executor = Executor.local) -> ToolCallPart:
    return ToolCallPart(call_id=call_id, name="look", arguments={"at": [call_id]}, executor=executor)


@st.composite
def sound_histories(draw: st.DrawFn) -> list[Message]:
    """Draw steps of a chat as an engine stores them: each call answered once, with tools ending in any order."""
    history: list[Message] = []
    for step in range(1, draw(st.integers(1, 4)) + 1):
        if draw(st.booleans()):
            history.append(message("user", TextPart(text="hi"), step=step, position=len(history) + 1))
        calls = [call(f"c{step}-{n}") for n in range(draw(st.integers(0, 4)))]
        searched = [call(f"s{step}", Executor.provider)] if draw(st.booleans()) else []
        shown: list[Any] = [TextPart(text="let me see"), SourcePart(url="https://example.org")]
        stored = draw(st.lists(st.sampled_from(shown), max_size=2))
        found = [ToolResultPart(call_id=f"s{step}", name="look", output=1) for _ in searched if draw(st.booleans())]
        thought = [ReasoningPart(text="hm", signature=draw(st.sampled_from([None, "s"])))]
        parts = [*thought, *stored, *searched, *found, *calls]
        partial = not calls and draw(st.booleans())
        history.append(message("assistant", *parts, step=step, position=len(history) + 1, partial=partial))
        for place in draw(st.permutations(range(len(calls)))):
            history.append(result(calls[place].call_id, place, step=step, position=len(history) + 1))
    return history


broken_histories = sound_histories().flatmap(
    lambda history: st.one_of(st.permutations(history), st.lists(st.sampled_from(history), max_size=len(history) + 2))
)


def mended(messages: Sequence[Message]) -> list[Message]:
    return HistoryRepair().pair_results(ModelRequest(purpose="step", chat_id="c", messages=list(messages)))


@given(sound_histories())
def test_grown_view_equals_whole_history(history: list[Message]) -> None:
    grown: View | None = View(history[:1], 1)
    for version, entry in enumerate(history[1:], start=2):
        assert grown is not None
        grown = grown.after(InsertMessage(entry), version)
    assert grown.to_send() == sendable(history) == View(history, 1).to_send()
    assert grown.messages == history
    assert grown.history_version == len(history)
    assert grown.characters == sum(length_of(part) for entry in history for part in entry.parts)
    call_ids = {part.call_id for entry in history for part in entry.calls}
    assert all(grown.has_call(call_id) for call_id in call_ids)
    assert not grown.has_call("another")


@given(sound_histories())
def test_stored_history_needs_no_repair(history: list[Message]) -> None:
    view = View(history, 1)
    assert view.is_paired
    assert mended(view.to_send()) == view.to_send()


TWICE = message("assistant", call("a"), call("a"), position=1)
ASKED = message("assistant", call("a"), position=1)
ANSWER = result("a", 0, step=1, position=2)


@given(broken_histories)
@example([TWICE, ANSWER])
@example([ANSWER, ASKED])
@example([ASKED, message("user", TextPart(text="?"), position=3), ANSWER])
@example([ASKED, ANSWER, ANSWER])
@example([ASKED])
@example([ASKED, ANSWER, ASKED, ANSWER])
def test_paired_view_needs_no_repair(history: list[Message]) -> None:
    view = View(history, 1)
    if mended(view.to_send()) != view.to_send():
        assert not view.is_paired


def test_cut_or_erased_view_is_read_again() -> None:
    history = [ASKED, ANSWER]
    for write in (InsertBoundary("compaction", 1, 3, ()), CutHistory(2, "m2"), EraseMessage(ASKED), EraseEdits(ANSWER)):
        assert View(history, 1).after(write, 2) is None
    view = View(history, 1)
    assert view.after(PutProfile(PROFILE), 2) is view
    assert (view.messages, view.history_version) == (history, 1)


def test_results_follow_the_order_of_their_calls() -> None:
    history = [
        message("assistant", call("a"), call("b"), position=1),
        result("b", 1, step=1, position=2),
        result("a", 0, step=1, position=3),
        message("user", TextPart(text="go on"), position=4, synthetic=True),
    ]
    assert [sent.position for sent in View(history, 4).to_send()] == [1, 3, 2, 4]
