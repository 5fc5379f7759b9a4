"""Asides: what stands beside a record reads back as it was written, and nothing else is one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from support.life import Life
from turnwise.persistence.audit.asides import Aside, aside_of
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
    assert (aside_of(stopped).reason, aside_of(stopped).salt) == ("enough", noted.salt)
    for decision in (created, said):
        assert (aside_of(decision).reason, aside_of(decision).salt) == (None, "")
    salts = {aside_of(replace(decision, salt="0f")).events for decision in life.decisions}
    assert len(salts) == len(life.decisions)
    assert aside_of(replace(said, salt="0f")).events != aside_of(replace(said, salt="f0")).events
