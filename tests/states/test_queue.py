"""The queue: accepted messages wait in order, and none is lost or doubled on its way into the history."""

import pytest
from tests.states.table_cases import with_queue

from support.life import Life, asking, interrupted, queued, streaming, unsettled
from turnwise.states import ChatState
from turnwise.states import triggers as t
from turnwise.states.arguments import Erasing
from turnwise.states.table import BUSY
from turnwise.states.transcript import fold
from turnwise.states.writes import DropQueued, MoveQueued, PutQueued, RecordReceipt

S = ChatState


def texts(life: Life) -> list[str]:
    return [message.text for message in life.facts.queue]


def ranks(life: Life) -> list[str]:
    """Return the queue as a store orders it: by the last rank that was written for each message."""
    kept: dict[str, tuple[int, str]] = {}
    for decision in life.decisions:
        for write in decision.writes:
            if isinstance(write, PutQueued):
                rank = kept[write.id][0] if write.rank is None else write.rank
                kept[write.id] = (rank, write.queued.text)
            if isinstance(write, MoveQueued):
                kept |= {name: (rank, kept[name][1]) for rank, name in enumerate(write.order, 1)}
            if isinstance(write, DropQueued):
                del kept[write.id]
    return [text for _, text in sorted(kept.values())]


def test_later_message_is_the_last() -> None:
    """Its place is not counted by how many wait: those that were taken have had places, too."""
    life = queued(streaming(), "one", "two", "three")
    for _ in range(2):
        life.reply()
        life.claim()
        life.attempt()
    life.send("four")
    assert texts(life) == ranks(life) == ["three", "four"]


def test_interrupting_messages_precede_the_queue_in_order() -> None:
    """Nobody means "No, use Rust instead." to be answered before "Use Python."."""
    life = queued(streaming(), "one")
    for text in ("Use Python.", "No, use Rust instead.", "Or Zig."):
        life.send(text, when_busy="interrupt")
    assert texts(life) == ranks(life) == ["Use Python.", "No, use Rust instead.", "Or Zig.", "one"]
    life.settle()
    life.send("No, not Zig.", when_busy="interrupt")
    assert texts(life) == ranks(life) == ["No, use Rust instead.", "Or Zig.", "No, not Zig.", "one"]
    life.fire(t.DeleteQueued, queued_id=life.facts.queue[0].id)
    life.send("That is all.", when_busy="interrupt")
    assert texts(life) == ranks(life) == ["Or Zig.", "No, not Zig.", "That is all.", "one"]


def test_interrupting_message_follows_the_promoted_one() -> None:
    life = unsettled()
    life.send("a new question")
    life.send("in short", when_busy="interrupt")
    assert texts(life) == ranks(life) == ["a new question", "in short"]
    life = queued(unsettled(), "one", "two", "three")
    life.fire(t.PromoteQueued, queued_id=life.facts.queue[2].id)
    life.send("now", when_busy="interrupt")
    assert (texts(life)[0], texts(life)[-1]) == ("three", "two")


def test_interrupting_message_starts_the_next_turn() -> None:
    life = asking()
    life.send("now", when_busy="interrupt")
    life.settle()
    assert (life.facts.state, life.messages[-1].text, life.facts.promote) == (S.pending, "now", False)
    assert [message.role for message in life.messages] == ["user", "assistant", "tool", "user"]


@pytest.mark.parametrize("promoted", ["steered", "moved up", "sent after a stop"])
def test_interrupt_cancels_an_unsettled_promotion(promoted: str) -> None:
    """Stop means stop: the last command counts."""
    life = unsettled()
    if promoted == "moved up":
        life.send("wait")
        life.fire(t.PromoteQueued, queued_id=life.facts.queue[0].id)
    else:
        life.send("wait", when_busy="interrupt" if promoted == "steered" else "queue")
    life.interrupt()
    life.settle()
    assert (life.facts.state, life.facts.settled, texts(life)) == (S.interrupted, True, ["wait"])


@pytest.mark.parametrize("waiting", [(), ("one", "two")], ids=["empty", "waiting"])
def test_message_before_and_after_settling_does_the_same(waiting: tuple[str, ...]) -> None:
    """Which of the two it is, milliseconds decide: a user cannot know."""
    early, late = (queued(streaming(), *waiting) if waiting else streaming() for _ in range(2))
    early.interrupt()
    early.send("new")
    early.settle()
    late.interrupt()
    late.settle()
    late.send("new")
    assert [message.text for message in early.messages] == [message.text for message in late.messages]
    assert (early.facts.state, texts(early)) == (late.facts.state, texts(late))
    assert early.facts.state is S.pending


@pytest.mark.parametrize("state", BUSY)
def test_an_edit_empties_the_queue(state: ChatState) -> None:
    life = with_queue(state)
    decision = life.edit("m1")
    assert (texts(life), ranks(life)) == ([], [])
    assert [message.text for message in life.messages] == ["rather"]
    assert any(event.kind == "queue" and event.change == "deleted" for event in decision.events)
    assert fold(life.events).queue == ()


def test_receipt_names_message_and_queued() -> None:
    life = interrupted()
    direct = life.send("a", client_id="one")
    waits = life.send("b", client_id="two")
    receipts = [write for made in (direct, waits) for write in made.writes if isinstance(write, RecordReceipt)]
    assert [(receipt.client_id, receipt.queued) for receipt in receipts] == [("one", False), ("two", True)]
    assert receipts[1].message_id == life.facts.queue[0].id


def test_receipt_of_the_next_message_is_not_queued() -> None:
    steered, stopped = queued(streaming()), unsettled()
    made = [
        *(steered.send(text, client_id=text, when_busy="interrupt") for text in ("next", "after it")),
        *(stopped.send(text, client_id=text) for text in ("a new question", "another")),
    ]
    receipts = [write for decision in made for write in decision.writes if isinstance(write, RecordReceipt)]
    assert [receipt.queued for receipt in receipts] == [False, True, False, True]


def test_erasure_removes_only_named_queued_messages() -> None:
    life = queued(streaming(), "one", "two", "three")
    doomed = life.facts.queue[1].id
    decision = life.fire(t.MessageErased, erasing=Erasing(queued=frozenset({doomed})))
    assert texts(life) == ranks(life) == ["one", "three"]
    assert [write.id for write in decision.writes if isinstance(write, DropQueued)] == [doomed]
