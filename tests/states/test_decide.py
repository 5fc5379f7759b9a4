"""Deciding is pure; a decision holds the actor, the reason, and the events in order."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.states.table_cases import cases, standing, stray, with_queue

from support.life import (
    BLANK,
    ERROR,
    NOW,
    PROFILE,
    Life,
    anything_for,
    asking,
    client,
    pending,
    queued,
    streaming,
    text_parts,
    waiting,
)
from turnwise.states import ChatState, Trigger, decide
from turnwise.states import triggers as t
from turnwise.states.arguments import Erasing, StepReply
from turnwise.states.calls import ToolResult
from turnwise.states.decide import job_of, legal_triggers
from turnwise.states.draft import Draft
from turnwise.states.errors import (
    BrokenInvariant,
    ChatArchived,
    ChatBusy,
    DeadlineExpired,
    IllegalTransition,
    InvalidContent,
    MessageNotFound,
    NothingToCompact,
    QueueFull,
    StaleLease,
    ToolResultMismatch,
    TurnwiseError,
    WrongCall,
)
from turnwise.states.facts import Limits
from turnwise.states.names import JOBS, UNKNOWN
from turnwise.states.table import BUSY, triggers_in
from turnwise.states.triggers import TRIGGERS, trigger_of

S = ChatState


def test_decide_is_pure() -> None:
    for case in cases():
        life = case.build()
        case.fire(life)
        facts, trigger, arguments = life.asked[-1]
        known = copy.deepcopy((facts, arguments))

        again = decide(facts, trigger, **arguments)

        assert again == life.decisions[-1]
        assert (facts, arguments) == known


def test_decision_breaking_an_invariant_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A faulty write must never reach the disk."""
    monkeypatch.setattr(Draft, "drop_lease", lambda draft: None)
    life = streaming()
    with pytest.raises(BrokenInvariant, match=r"step_finished .* has_no_lease; nothing was written") as broken:
        life.reply()
    assert broken.value.invariants == ("has_no_lease",)
    assert life.facts.state is S.streaming


def test_decision_holds_actor_and_reason() -> None:
    life = pending()
    assert life.fire(t.Interrupt, actor="ann", reason="enough").actor == "ann"
    assert life.decisions[-1].reason == "enough" == life.facts.interrupt_reason
    assert life.settle().actor == "system"


def test_edit_needs_a_user_message() -> None:
    """Even with a marker: a clear adds one to an empty history, too."""
    life = Life()
    life.create()
    life.fire(t.ClearContext)
    with pytest.raises(IllegalTransition) as refused:
        life.edit("m1")
    assert t.SendMessage.name in refused.value.allowed
    assert t.EditMessage.name not in refused.value.allowed
    life.send()
    assert t.EditMessage.name in legal_triggers(life.facts)
    assert life.edit("m2").target is S.pending


def test_unknown_state_can_only_be_repaired() -> None:
    life = stray()
    assert (life.facts.place, job_of(life.facts)) == (UNKNOWN, None)
    assert legal_triggers(life.facts) == ("repaired",)
    assert life.fire(t.Repaired, error=standing(S.error).facts.last_error).source == "brooding"
    assert life.facts.stored_state is None


@pytest.mark.parametrize("state", list(S))
def test_each_state_has_its_job(state: ChatState) -> None:
    facts = standing(state).facts
    assert job_of(facts) == (None if state is S.interrupted else JOBS.get(state))
    assert set(legal_triggers(facts)) <= {trigger.name for trigger in triggers_in(state)}


def test_status_comes_between_messages_and_turn_finished() -> None:
    kinds = [event.kind for event in streaming().reply().events]
    assert kinds == ["message", "status", "turn_finished"]


def test_turn_finished_precedes_the_next_message() -> None:
    events = queued(streaming()).reply().events
    assert [event.kind for event in events] == ["message", "turn_finished", "message", "queue", "status"]
    assert events[1].turn == 1
    assert events[2].message.turn == 2


# Triggers and their arguments


AROUND: dict[str, Any] = {"now": NOW, "limits": Limits()}


def test_name_and_class_decide_the_same() -> None:
    for case in cases():
        life = case.build()
        case.fire(life)
        facts, trigger, arguments = life.asked[-1]

        assert decide(facts, *trigger_of(trigger, arguments)) == life.decisions[-1]


@pytest.mark.parametrize("trigger", list(TRIGGERS.values()))
def test_missing_argument_is_named(trigger: type[Trigger]) -> None:
    facts = next(facts for facts, fired, _ in every_case() if fired is trigger)
    needed = [one for one in dataclasses.fields(trigger) if is_needed(one)]
    for name in [*(one.name for one in needed), "now", "limits"]:
        arguments = {**anything_for(trigger), **AROUND}
        del arguments[name]
        with pytest.raises(WrongCall, match=f"^{name}: {trigger.name} needs it; nothing was written$") as wrong:
            decide(facts, trigger, **arguments)
        assert wrong.value.argument == name


def every_case() -> list[Any]:
    asked = []
    for case in cases():
        life = case.build()
        case.fire(life)
        asked.append(life.asked[-1])
    return asked


def is_needed(one: dataclasses.Field[Any]) -> bool:
    return one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING


def test_unknown_argument_is_refused() -> None:
    known = "title, usage, final, now, limits, salt, actor, reason, funds"
    problem = f"renamed has no such argument; it has {known}; nothing was written"
    with pytest.raises(WrongCall, match=f"^queued_id: {problem}$"):
        decide(pending().facts, t.Renamed, title="a", queued_id="m1", **AROUND)
    with pytest.raises(WrongCall, match=f"^titel: {problem}$"):
        decide(pending().facts, t.Renamed, titel="a", **AROUND)


@pytest.mark.parametrize(
    ("trigger", "said_of_it"),
    [
        (t.Create, {"profile": replace(PROFILE, title="\ud800")}),
        (t.Renamed, {"title": "\ud800"}),
        (t.MetadataChanged, {"metadata": {"k": object()}}),
        (t.Configured, {"agent": "a", "parameters": {"k": object()}}),
        (t.Configured, {"agent": "a", "system": "\ud800"}),
    ],
)
def test_value_without_json_is_refused(trigger: type[Trigger], said_of_it: dict[str, Any]) -> None:
    with pytest.raises(InvalidContent):
        decide(BLANK if trigger is t.Create else waiting().facts, trigger, **said_of_it, **AROUND)


def test_client_id_needs_a_content_digest() -> None:
    for life, trigger in ((waiting(), t.SendMessage), (streaming(), t.SendMessage)):
        with pytest.raises(WrongCall, match=f"^content_digest: {trigger.name} needs it with a client_id; nothing"):
            life.fire(trigger, parts=text_parts("hi"), client_id="k")
        assert life.fire(trigger, parts=text_parts("hi")).writes[0].kind != "receipt"


# Refusals: typed, with their facts; nothing is written


def refused(life: Life, error: type[TurnwiseError], act: Callable[[Life], Any]) -> Any:
    before = life.facts
    with pytest.raises(error) as raised:
        act(life)
    assert life.facts is before
    assert str(raised.value).endswith("nothing was written")
    return raised.value


@pytest.mark.parametrize("state", BUSY)
def test_busy_chat_rejects_with_when_busy_reject(state: ChatState) -> None:
    error = refused(standing(state), ChatBusy, lambda life: life.send(when_busy="reject"))
    assert error.state == state


def test_full_queue_still_accepts_an_interrupting_message() -> None:
    life = queued(streaming(queue_limit=1))
    error = refused(life, QueueFull, lambda life: life.send("too many"))
    assert error.limit == 1
    life.send("now", when_busy="interrupt")
    assert [message.text for message in life.facts.queue] == ["now", "later"]


@pytest.mark.parametrize(
    ("names", "missing", "extra", "duplicate"),
    [
        (("a",), ("b",), (), ()),
        (("a", "b", "x"), (), ("x",), ()),
        (("a", "b", "b"), (), (), ("b",)),
        ((), ("a", "b"), (), ()),
        (("x", "x"), ("a", "b"), ("x",), ("x",)),
    ],
)
def test_submission_must_name_exactly_the_open_calls(
    names: tuple[str, ...], missing: tuple[str, ...], extra: tuple[str, ...], duplicate: tuple[str, ...]
) -> None:
    results = tuple(ToolResult(name, 1) for name in names)
    life = asking(client("a"), client("b", 1))
    error = refused(life, ToolResultMismatch, lambda life: life.fire(t.SubmitToolResults, results=results))
    assert (error.missing, error.extra, error.duplicate) == (missing, extra, duplicate)
    assert all(name in str(error) for name in (*missing, *extra, *duplicate))


def test_result_after_its_deadline_is_refused() -> None:
    life = asking(client("a", within=5), client("b", 1))
    life.wait(5)
    results = (ToolResult("a", 1), ToolResult("b", 1))
    error = refused(life, DeadlineExpired, lambda life: life.submit(*results))
    assert error.call_ids == ("a",)


@pytest.mark.parametrize(("token", "actor"), [(None, "worker:w"), (0, "worker:w"), (2, "worker:w"), (1, "worker:late")])
def test_stale_lease_is_refused(token: int | None, actor: str) -> None:
    """The worker is compared, too: a restored database grants a token twice."""
    more = {"token": token, "reply": StepReply(parts=()), "actor": actor}
    error = refused(streaming(), StaleLease, lambda life: life.fire(t.StepFinished, **more))
    assert (error.token, error.current) == (token, 1)


def test_token_without_a_lease_is_refused() -> None:
    error = refused(standing(S.pending), StaleLease, lambda life: life.fire(t.Failed, token=1, error=ERROR))
    assert "no worker holds the chat" in str(error)


@pytest.mark.parametrize(
    "touch", [(t.EditQueued, {"parts": text_parts("x")}), (t.DeleteQueued, {}), (t.PromoteQueued, {})]
)
def test_only_queued_messages_can_be_changed(touch: tuple[type[Trigger], dict[str, Any]]) -> None:
    trigger, more = touch
    error = refused(with_queue(S.streaming), MessageNotFound, lambda life: life.fire(trigger, queued_id="m99", **more))
    assert (error.message_id, error.expected) == ("m99", "queued message")


def test_empty_history_cannot_be_compacted() -> None:
    life = Life()
    life.create()
    refused(life, NothingToCompact, lambda life: life.fire(t.RequestCompaction))


def test_waiting_queue_precedes_compaction_and_clearing() -> None:
    for trigger in (t.RequestCompaction, t.ClearContext):
        refused(with_queue(S.error), IllegalTransition, lambda life, trigger=trigger: life.fire(trigger))


@pytest.mark.parametrize("state", [S.waiting, S.requires_action, S.error, S.interrupted])
def test_archived_chat_accepts_unarchive_and_erasure(state: ChatState) -> None:
    life = standing(state)
    refused(life, IllegalTransition, lambda life: life.fire(t.Unarchived))
    life.fire(t.Archived)
    for trigger in (t.EditMessage, t.Renamed, t.Archived):
        refused(life, ChatArchived, lambda life, trigger=trigger: life.fire(trigger))
    life.fire(t.MessageErased, erasing=Erasing(errors=True))
    assert life.facts.archived
    life.fire(t.Unarchived)
    assert not life.facts.archived
