"""Each trigger is a class: it says what it brings along and who may fire it, and comes by name as well."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace
from tests.states.table_cases import cases

from support.life import BLANK, NOW, PROFILE, anything_for, pending, said, streaming, waiting
from turnwise.states import Trigger, decide
from turnwise.states.errors import InvalidContent, WrongCall
from turnwise.states.facts import Limits
from turnwise.states.triggers import OCCURRENCES, occurrence_of

T = Trigger
AROUND: dict[str, Any] = {"now": NOW, "limits": Limits()}


def test_every_trigger_has_a_class_of_its_name() -> None:
    assert list(OCCURRENCES) == list(Trigger)
    for trigger, kind in OCCURRENCES.items():
        assert kind.__name__ == trigger.value.title().replace("_", "")
        assert kind.__doc__


def test_name_and_class_decide_the_same() -> None:
    for case in cases():
        life = case.build()
        case.fire(life)
        facts, trigger, arguments = life.asked[-1]

        assert decide(facts, *occurrence_of(trigger, arguments)) == life.decisions[-1]


@pytest.mark.parametrize("trigger", list(Trigger))
def test_missing_argument_is_named(trigger: Trigger) -> None:
    facts = next(facts for facts, fired, _ in every_case() if fired is trigger)
    needed = [one for one in dataclasses.fields(OCCURRENCES[trigger]) if is_needed(one)]
    for name in [*(one.name for one in needed), "now", "limits"]:
        arguments = {**anything_for(trigger), **AROUND}
        del arguments[name]
        with pytest.raises(WrongCall, match=f"^{name}: {trigger} needs it; nothing was written$") as wrong:
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
    known = "title, usage, final, now, limits, salt, actor, reason"
    problem = f"renamed has no such argument; it has {known}; nothing was written"
    with pytest.raises(WrongCall, match=f"^queued_id: {problem}$"):
        decide(pending().facts, T.renamed, title="a", queued_id="m1", **AROUND)
    with pytest.raises(WrongCall, match=f"^titel: {problem}$"):
        decide(pending().facts, T.renamed, titel="a", **AROUND)


@pytest.mark.parametrize(
    ("trigger", "said_of_it"),
    [
        (T.create, {"profile": replace(PROFILE, title="\ud800")}),
        (T.renamed, {"title": "\ud800"}),
        (T.metadata_changed, {"metadata": {"k": object()}}),
        (T.configured, {"agent": "a", "parameters": {"k": object()}}),
        (T.configured, {"agent": "a", "system": "\ud800"}),
    ],
)
def test_value_without_json_is_refused(trigger: Trigger, said_of_it: dict[str, Any]) -> None:
    with pytest.raises(InvalidContent):
        decide(BLANK if trigger is T.create else waiting().facts, trigger, **said_of_it, **AROUND)


def test_client_id_needs_a_content_digest() -> None:
    for life, trigger in ((waiting(), T.send_message), (streaming(), T.send_message)):
        with pytest.raises(WrongCall, match=f"^content_digest: {trigger} needs it with a client_id; nothing"):
            life.fire(trigger, parts=said("hi"), client_id="k")
        assert life.fire(trigger, parts=said("hi")).writes[0].kind != "receipt"
