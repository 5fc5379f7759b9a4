"""The reference reader: a log folds to one transcript, however it is cut, and to what was committed."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.json import decode, encode
from msgspec.structs import replace

from support.life import (
    ERROR,
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
from turnwise.states import ChatState
from turnwise.states import triggers as t
from turnwise.states.arguments import Erasing
from turnwise.states.calls import ToolResult
from turnwise.states.events import Event, PartDelta, PartEvent
from turnwise.states.message_order import in_transcript_order
from turnwise.states.names import Audience, StopReason
from turnwise.states.transcript import fold
from turnwise.states.writes import ERASED

S = ChatState


def shown(life: Life, *deltas: str, attempt: int = 1) -> None:
    """Let subscribers see parts of the attempt under way."""
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
    life.attempt()
    life.reply(tokens=90)
    life.compact()
    life.attempt()
    life.reply(tokens=10)
    life.claim()
    life.attempt()
    shown(life, "Well")
    life.interrupt()
    life.settle(life.partial(text="Well"))
    life.edit("m1", "from the start")
    life.claim()
    life.attempt()
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
