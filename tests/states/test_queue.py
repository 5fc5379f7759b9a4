"""The queue: accepted messages wait in order, and none is lost or doubled on its way into the history."""

from __future__ import annotations

import pytest

from support.life import Life, asking, interrupted, queued, said, streaming, unsettled
from support.table_cases import with_queue
from turnwise.states import ChatState, Trigger
from turnwise.states.arguments import Erasing
from turnwise.states.table import BUSY
from turnwise.states.writes import DropQueued, EraseMessage, EraseText, PutQueued, RecordReceipt

S, T = ChatState, Trigger


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
            if isinstance(write, DropQueued):
                del kept[write.id]
    return [text for _, text in sorted(kept.values())]


def test_messages_to_a_busy_chat_wait_in_the_order_they_came() -> None:
    life = queued(streaming(), "one", "two", "three")

    assert texts(life) == ranks(life) == ["one", "two", "three"]


def test_a_message_that_comes_after_others_were_taken_is_still_the_last() -> None:
    """Its place is not counted by how many wait: those that were taken have had places, too."""
    life = queued(streaming(), "one", "two", "three")
    for _ in range(2):
        life.reply()
        life.claim()
        life.attempt()
    life.send("four")

    assert texts(life) == ranks(life) == ["three", "four"]


def test_an_edited_message_was_accepted_when_it_first_came() -> None:
    life = queued(streaming(), "one", "two")
    before = life.facts.queue
    life.wait(60)
    life.fire(T.edit_queued, queued_id=before[0].id, parts=said("uno"))

    assert texts(life) == ["uno", "two"]
    assert [message.accepted_at for message in life.facts.queue] == [message.accepted_at for message in before]


def test_a_message_that_interrupts_goes_ahead_of_the_queue() -> None:
    life = queued(streaming(), "one", "two")
    life.send("now", when_busy="interrupt")
    life.send("three")

    assert texts(life) == ranks(life) == ["now", "one", "two", "three"]


def test_messages_that_interrupt_go_ahead_of_the_queue_in_the_order_they_came() -> None:
    """Nobody means "No, use Rust instead." to be answered before "Use Python."."""
    life = queued(streaming(), "one")
    for text in ("Use Python.", "No, use Rust instead.", "Or Zig."):
        life.send(text, when_busy="interrupt")
    assert texts(life) == ranks(life) == ["Use Python.", "No, use Rust instead.", "Or Zig.", "one"]

    life.settle()
    life.send("No, not Zig.", when_busy="interrupt")
    assert texts(life) == ranks(life) == ["No, use Rust instead.", "Or Zig.", "No, not Zig.", "one"]
    life.fire(T.delete_queued, queued_id=life.facts.queue[0].id)
    life.send("That is all.", when_busy="interrupt")
    assert texts(life) == ranks(life) == ["Or Zig.", "No, not Zig.", "That is all.", "one"]


def test_a_message_that_interrupts_goes_behind_the_one_that_is_answered_next() -> None:
    life = unsettled()
    life.send("a new question")
    life.send("in short", when_busy="interrupt")
    assert texts(life) == ranks(life) == ["a new question", "in short"]

    life = queued(unsettled(), "one", "two", "three")
    life.fire(T.promote_queued, queued_id=life.facts.queue[2].id)
    life.send("now", when_busy="interrupt")
    assert (texts(life)[0], texts(life)[-1]) == ("three", "two")


def test_a_message_that_interrupts_becomes_the_next_turn_once_settled() -> None:
    life = asking()
    life.send("now", when_busy="interrupt")
    life.settle()

    assert (life.facts.state, life.messages[-1].text, life.facts.promote) == (S.pending, "now", False)
    assert [message.role for message in life.messages] == ["user", "assistant", "tool", "user"]


def test_a_promoted_message_moves_to_the_head_and_keeps_its_content() -> None:
    life = queued(unsettled(), "one", "two", "three")
    life.fire(T.promote_queued, queued_id=life.facts.queue[2].id)

    assert texts(life) == ranks(life) == ["three", "one", "two"]
    assert life.facts.promote


def test_promoting_the_head_moves_nothing() -> None:
    life = queued(unsettled(), "one", "two")
    decision = life.fire(T.promote_queued, queued_id=life.facts.queue[0].id)

    assert (decision.writes, decision.events) == ((), ())


def test_a_queued_message_can_be_changed_in_place_and_deleted() -> None:
    life = queued(streaming(), "one", "two", "three")
    life.fire(T.edit_queued, queued_id=life.facts.queue[1].id, parts=said("zwei"))
    life.fire(T.delete_queued, queued_id=life.facts.queue[0].id)

    assert texts(life) == ranks(life) == ["zwei", "three"]


def test_an_interrupt_holds_the_queue() -> None:
    life = with_queue(S.interrupted)

    assert (life.facts.state, texts(life)) == (S.interrupted, ["later", "last"])


@pytest.mark.parametrize("promoted", ["steered", "moved up", "sent after a stop"])
def test_a_stop_takes_back_a_promotion_that_is_not_settled_yet(promoted: str) -> None:
    """Stop means stop: whoever says it last has the last word."""
    life = unsettled()
    if promoted == "moved up":
        life.send("wait")
        life.fire(T.promote_queued, queued_id=life.facts.queue[0].id)
    else:
        life.send("wait", when_busy="interrupt" if promoted == "steered" else "queue")
    life.interrupt()
    life.settle()

    assert (life.facts.state, life.facts.settled, texts(life)) == (S.interrupted, True, ["wait"])


def test_settings_may_let_the_queue_go_on_after_any_interrupt() -> None:
    life = queued(streaming(promote_after_interrupt=True))
    life.interrupt()
    life.settle()

    assert (life.facts.state, life.messages[-1].text) == (S.pending, "later")


def test_an_interrupt_with_nothing_to_promote_rests() -> None:
    life = streaming(promote_after_interrupt=True)
    life.interrupt()
    life.settle()

    assert (life.facts.state, life.facts.promote) == (S.interrupted, False)


@pytest.mark.parametrize("state", [S.interrupted, S.error])
def test_a_message_to_a_resting_queue_joins_its_end_and_the_head_goes_first(state: ChatState) -> None:
    life = with_queue(state)
    life.send("new")

    assert (life.messages[-1].text, texts(life)) == ("later", ["last", "new"])


@pytest.mark.parametrize("waiting", [(), ("one", "two")], ids=["empty", "waiting"])
def test_a_message_after_a_stop_does_the_same_before_the_settling_as_after_it(waiting: tuple[str, ...]) -> None:
    """Which of the two it is, milliseconds decide: whoever writes cannot know."""
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
    assert any(event.kind == "queue" and event.queue == () for event in decision.events)


def test_a_receipt_names_the_message_and_whether_it_was_queued() -> None:
    life = interrupted()
    direct = life.send("a", client_id="one")
    waits = life.send("b", client_id="two")

    receipts = [write for made in (direct, waits) for write in made.writes if isinstance(write, RecordReceipt)]
    assert [(receipt.client_id, receipt.queued) for receipt in receipts] == [("one", False), ("two", True)]
    assert receipts[1].message_id == life.facts.queue[0].id


def test_a_receipt_of_the_message_that_is_answered_next_says_that_it_does_not_wait() -> None:
    steered, stopped = queued(streaming()), unsettled()
    made = [
        *(steered.send(text, client_id=text, when_busy="interrupt") for text in ("next", "after it")),
        *(stopped.send(text, client_id=text) for text in ("a new question", "another")),
    ]

    receipts = [write for decision in made for write in decision.writes if isinstance(write, RecordReceipt)]
    assert [receipt.queued for receipt in receipts] == [False, True, False, True]


def test_a_queued_message_keeps_its_id_in_the_history() -> None:
    life = queued(streaming())
    waiting = life.facts.queue[0].id
    life.reply()

    assert life.messages[-1].id == waiting


def test_what_is_erased_leaves_the_queue_and_what_waits_beside_it_stays() -> None:
    life = queued(streaming(), "one", "two", "three")
    doomed = life.facts.queue[1].id
    decision = life.fire(T.message_erased, erasing=Erasing(queued=frozenset({doomed})))
    assert texts(life) == ranks(life) == ["one", "three"]
    assert [write.id for write in decision.writes if isinstance(write, DropQueued)] == [doomed]


def test_an_erasure_that_names_nothing_erases_nothing() -> None:
    life = queued(streaming(), "one")
    decision = life.fire(T.message_erased, erasing=Erasing())
    assert [write for write in decision.writes if isinstance(write, EraseText | EraseMessage | DropQueued)] == []
    assert texts(life) == ["one"]
