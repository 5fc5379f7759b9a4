"""What a fork takes over is what its parent has, counted alike."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from support.life import BLANK, NOW, Life, executing, local, waiting
from turnwise.engine.inheritance import inheritance_of
from turnwise.states.messages import Message, ToolCallPart
from turnwise.states.names import Audience, Executor, Tail, Trigger


def _compacted(*carried: int) -> Life:
    life = waiting()
    life.fire(Trigger.request_compaction)
    life.claim()
    life.attempt()
    life.compact(*carried)
    return life


def _and_then(life: Life, *, answered: bool = True) -> Life:
    life.send("more")
    life.claim()
    life.attempt()
    if answered:
        life.reply()
    return life


def test_cut_after_a_compaction_is_the_last_boundary() -> None:
    life = _and_then(_compacted())
    life.fire(Trigger.clear_context)
    taken = inheritance_of(life.facts, life.messages, NOW)
    assert (taken.compactions, taken.boundary) == (1, life.facts.history.boundary)
    assert (taken.foldable, taken.tail) == (0, Tail.empty)


@pytest.mark.parametrize("answered", [[], ["a"], ["c"], ["a", "c"]])
def test_fork_answers_every_open_call(answered: list[str]) -> None:
    life = executing(local("a"), local("b", 1), local("c", 2))
    for call_id in answered:
        life.start(call_id)
        life.finish(call_id)
    later = NOW + timedelta(seconds=60)
    taken = inheritance_of(life.facts, life.messages, later)
    added = taken.messages[len(life.messages) :]
    open_calls = [call_id for call_id in "abc" if call_id not in answered]
    last, asking = life.messages[-1], next(message for message in life.messages if message.calls)
    assert taken.messages[: len(life.messages)] == tuple(life.messages)
    assert [message.result.call_id for message in added if message.result] == open_calls
    assert [message.position - last.position for message in added] == [*range(1, len(added) + 1)]
    assert [message.call_index for message in added] == ["abc".index(call_id) for call_id in open_calls]
    assert len({message.id for message in taken.messages}) == len(taken.messages)
    for message in added:
        assert (message.role, message.synthetic, message.created_at) == ("tool", True, later)
        assert (message.turn, message.step) == (asking.turn, asking.step)
        assert message.result is not None
        assert (message.result.name, message.result.outcome) == ("search", "cancelled")
        assert "forked" in str(message.result.output)
    assert taken.serial == life.facts.serial + len(added)
    assert taken.foldable == life.facts.history.foldable + len(added)
    assert taken.tail is Tail.awaits_answer


def test_call_with_a_copy_for_the_model_gets_one_result() -> None:
    """A strategy of compaction has changed the message that asks: the copy is for the model alone."""
    life = executing(local("a"), local("b", 1))
    asking = life.messages[-1]
    copy = replace(asking, id="copy", position=asking.position + 2, audience=Audience.model, synthetic=True)
    added = inheritance_of(life.facts, [*life.messages, copy], NOW).messages[len(life.messages) + 1 :]
    assert [(message.id, message.position - copy.position) for message in added] == [("a-forked", 1), ("b-forked", 2)]


def test_fork_does_not_answer_provider_calls() -> None:
    asked = [
        ToolCallPart(call_id=call_id, name="search", arguments={}, executor=executor)
        for call_id, executor in (("p", Executor.provider), ("a", Executor.local), ("q", Executor.provider))
    ]
    said = Message(id="m1", role="assistant", parts=tuple(asked), turn=1, step=1, created_at=NOW, position=4)
    (result,) = inheritance_of(BLANK, [said], NOW).messages[1:]
    assert (result.result and result.result.call_id, result.call_index, result.position) == ("a", 0, 5)
