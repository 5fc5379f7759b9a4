"""Calls that helpers answer: who may answer what, when the chat goes on, and what is noted of a helper."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from support.life import USAGE, Life, asking, client, delegated, executing, local
from turnwise.states import ChatState
from turnwise.states.arguments import HelperAnswer
from turnwise.states.calls import ToolResult
from turnwise.states.errors import IllegalTransition, ToolResultMismatch
from turnwise.states.facts import Facts
from turnwise.states.names import CallStatus, Trigger

TWO = (delegated("a"), delegated("b", 1))


def test_last_subagent_answer_lets_the_chat_continue() -> None:
    life = asking(*TWO)
    assert (life.facts.state, life.facts.awaits, life.facts.resting) == (ChatState.requires_action, "helpers", False)
    assert "action_required" not in [event.kind for event in life.events]
    first = life.help("b")
    assert (first.target, life.facts.awaits) == (ChatState.requires_action, "helpers")
    noted = first.writes[0]
    assert (noted.kind, noted.id, noted.digest) == ("helper", "helper-b:7", "7" * 64)
    second = life.help("a")
    assert (second.target, life.facts.awaits) == (ChatState.pending, None)
    assert (life.facts.turn.helpers_usage, life.facts.helpers_usage) == (USAGE + USAGE, USAGE + USAGE)
    assert [call.status for call in life.facts.calls] == [CallStatus.succeeded] * 2


@pytest.mark.parametrize(
    ("call_id", "results"),
    [
        ("mine", (ToolResult("mine", 1),)),
        ("ghost", (ToolResult("ghost", 1),)),
        ("a", (ToolResult("a", 1), ToolResult("a", 1))),
        ("a", ()),
        ("a", (ToolResult("a", 1), ToolResult("mine", 1))),
    ],
)
def test_subagent_answers_only_its_own_call(call_id: str, results: tuple[ToolResult, ...]) -> None:
    life = asking(client("mine"), delegated("a", 1))
    with pytest.raises(ToolResultMismatch):
        life.help(call_id, results=results)


def test_client_answers_no_call_of_a_subagent() -> None:
    life = asking(client("mine"), delegated("a", 1))
    for wrong in ((ToolResult("a", 1),), (ToolResult("mine", 1), ToolResult("a", 1))):
        with pytest.raises(ToolResultMismatch):
            life.submit(*wrong)
    only_helpers = asking(delegated("a"))
    with pytest.raises(ToolResultMismatch, match="none is open, and none was given"):
        only_helpers.fire(Trigger.submit_tool_results, results=())


def test_subagent_answers_once_while_the_chat_waits() -> None:
    life = asking(*TWO)
    life.help("a")
    with pytest.raises(ToolResultMismatch):
        life.help("a")
    early = executing(local("x"), delegated("a", 1))
    with pytest.raises(IllegalTransition):
        early.help("a")
    early.run_tools()
    assert (early.facts.state, early.facts.awaits) == (ChatState.requires_action, "helpers")


def test_approved_call_runs_while_a_subagent_works() -> None:
    life = asking(client("pay", approval="asked"), delegated("a", 1))
    assert life.submit(ToolResult("pay", output=True)).target is ChatState.pending
    life.claim()
    assert life.facts.state is ChatState.executing_tools
    life.run_tools()
    assert (life.facts.state, life.facts.awaits) == (ChatState.requires_action, "helpers")
    assert life.help("a").target is ChatState.pending


def test_denied_call_does_not_wake_the_chat() -> None:
    life = asking(client("pay", approval="asked"), delegated("a", 1))
    assert life.submit(ToolResult("pay", output=False)).target is ChatState.requires_action
    assert life.facts.awaits == "helpers"


def test_deadline_applies_to_client_calls_only() -> None:
    life = asking(client("mine"), delegated("a", 1), action_deadline=5)
    assert [call.deadline is not None for call in life.facts.calls] == [True, False]
    life.wait(6)
    assert life.fire(Trigger.deadline_passed).target is ChatState.requires_action
    assert life.facts.awaits == "helpers"


@pytest.mark.parametrize(
    ("calls", "awaits"),
    [((client("a"),), "client"), ((delegated("a"),), "helpers"), ((client("a"), delegated("b", 1)), "both")],
)
def test_awaits_names_client_and_subagents(calls: tuple[object, ...], awaits: str) -> None:
    facts: Facts = asking(*calls).facts  # type: ignore[arg-type]
    assert facts.awaits == awaits
    assert facts.resting is (awaits != "helpers")
    assert replace(facts, state=ChatState.pending).awaits is None


def test_subagent_usage_counts_in_the_budget() -> None:
    life = asking(delegated("a"), turn_tokens=2 * (10 + 5))
    life.help("a")
    assert life.claim().target is ChatState.waiting
    assert life.facts.stop_reason == "token_budget"
    plain: Life = asking(client("a"), turn_tokens=2 * (10 + 5))
    plain.submit()
    assert plain.claim().target is ChatState.streaming


def test_chat_awaiting_subagents_cannot_be_archived() -> None:
    """Else its helpers could not answer, and nobody would know."""
    both = asking(client("mine"), delegated("a", 1))
    assert both.fire(Trigger.archived).target is ChatState.requires_action
    with pytest.raises(IllegalTransition):
        asking(delegated("a")).fire(Trigger.archived)


def test_background_lists_unfinished_subagents() -> None:
    life = asking(*(delegated(name, place, helper_action="start") for place, name in enumerate("abcd")))
    for name, owes in (("a", True), ("b", True), ("c", False)):
        life.help(name, helpers=(HelperAnswer(chat_id=name, owes=owes),))
    assert life.facts.background == ("a", "b")
    heard = [HelperAnswer(chat_id=name, version=7, head="7" * 64, usage=USAGE, owes=name == "b") for name in "bac"]
    told = life.help("d", helpers=heard)
    assert [write.id for write in told.writes if write.kind == "helper"] == ["b:7", "a:7", "c:7"]
    assert life.facts.background == ("b",)
    assert life.facts.helpers_usage == USAGE + USAGE + USAGE


def test_edit_clears_background_and_interrupt_keeps_it() -> None:
    def started() -> Life:
        life = asking(delegated("a", helper_action="start"), client("mine", 1))
        life.help("a", helpers=(HelperAnswer(chat_id="a", owes=True),))
        return life

    edited, interrupted = started(), started()
    edited.edit("m1")
    assert edited.facts.background == ()
    interrupted.fire(Trigger.interrupt)
    assert interrupted.facts.background == ("a",)
