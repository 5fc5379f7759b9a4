"""Asides: what stands beside a record reads back as it was written, and nothing else is one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from support.life import Life
from turnwise.persistence.audit.asides import Aside, aside_of, salt_of_events
from turnwise.states.names import Trigger
from turnwise.states.writes import NoteReason

WHOLE = {"events": "0f", "reason": "because", "salt": "f0"}


@pytest.mark.parametrize("aside", [Aside(), Aside("0f", "because", "f0"), Aside("0f"), Aside(reason="grüße\n")])
def test_an_aside_reads_back_as_it_was_written(aside: Aside) -> None:
    assert Aside.load(aside.dump()) == aside


def test_an_old_record_has_an_empty_aside() -> None:
    assert Aside.load(None) == Aside("", None, "")


@pytest.mark.parametrize(
    "stored",
    [
        *("poison", "[]", "5", "null", '"text"', "{}"),
        *(json.dumps({name: WHOLE[name] for name in WHOLE if name != left}) for left in WHOLE),
        json.dumps({**WHOLE, "more": ""}),
        *(json.dumps({**WHOLE, name: 5}) for name in WHOLE),
        *(json.dumps({**WHOLE, name: None}) for name in ("events", "salt")),
        *(5, b"{}", json.dumps(WHOLE).encode()),
    ],
)
def test_what_is_no_aside_is_refused(stored: Any) -> None:
    with pytest.raises(ValueError, match=r"belong|Expecting"):
        Aside.load(stored)


def test_the_aside_of_a_decision_holds_the_reason_and_its_salt() -> None:
    life = Life()
    created, said = life.create(), life.send()
    stopped = life.fire(Trigger.interrupt, reason="enough")
    (noted,) = [write for write in stopped.writes if isinstance(write, NoteReason)]
    assert aside_of(stopped, tells=False) == Aside("", "enough", noted.salt)
    for decision in (created, said):
        assert aside_of(decision, tells=False).dump() is None


def test_the_salt_of_events_is_another_for_each_decision_and_each_salt_of_a_commit() -> None:
    life = Life()
    life.create()
    said = life.send()
    salted = [replace(decision, salt="0f") for decision in life.decisions]
    assert aside_of(salted[-1], tells=True) == Aside(salt_of_events(salted[-1]))
    salts = {salt_of_events(decision) for decision in (*salted, replace(said, salt="f0"))}
    assert len(salts) == len(salted) + 1
