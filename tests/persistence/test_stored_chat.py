"""Where a chat stands, as it is stored: read whole, or as much of it as can be, and each flaw told at its place."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from tests.persistence.raw_life import CHAT, moments

from turnwise.persistence.repair.raw_chat import stored_in
from turnwise.persistence.stored_chat import UNREADABLE, Salvaged, Stored, facts_of, facts_or_rest, salvage
from turnwise.states.errors import ChatUnreadable
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState

SUNKEN: Final = '{"created_at":"2026-11-27T12:00:00Z","depth":-1}'
"""The profile of a helper with room for more of them below it than there may be."""
OWED: Final = (
    '{"turn":{"steps":-1}}',
    '{"turn":{"reentries":-1}}',
    *(f'{{"step":{{"{count}":-1}}}}' for count in ("failures", "timeouts", "lost")),
    '{"step":{"paid":{"network":-1}}}',
)
"""Facts by which a chat may do more than its limits say."""
GARBLED: Final[dict[str, tuple[str, tuple[Any, ...]]]] = {
    "state": ("chats.state", (None, 5, b"streaming")),
    "settled": ("chats.settled", (2, -1, "1", None)),
    "archived": ("chats.archived", (2, "0", None)),
    "version": ("chats.version", (-1, "1", True, 1.5, None, 2**62)),
    "last_seq": ("chats.event_seq", (-1, "1", None, 2**62)),
    "call_ids": ("chats.calls", ("poison", "{}", "[1]", None)),
    "facts": ("chats.facts", ("poison", "[]", "5", None, b"\xff", *OWED)),
    "profile": ("profiles.body", ("poison", "[]", "5", None, b"\xff", SUNKEN)),
    "worker": ("leases.worker", (5, b"worker")),
    "token": ("leases.token", ("poison", -1, None, True, 2**62)),
}
"""For each value of a stored chat: the place it is told at, and what cannot be read."""


@pytest.fixture
async def lived(tmp_path: Path) -> list[tuple[Stored, Facts]]:
    return [(stored_in(CHAT, rows), facts) for rows, facts in await moments(f"sqlite:///{tmp_path / 'chats.db'}")]


async def test_sound_chat_is_read_whole(lived: list[tuple[Stored, Facts]]) -> None:
    for stored, facts in lived:
        assert facts_of(stored) == facts
        assert facts_or_rest(stored) == facts
        assert salvage(stored) == Salvaged(facts, ())


async def test_garbled_value_is_named_and_the_rest_kept(lived: list[tuple[Stored, Facts]]) -> None:
    stored, facts = lived[-1]
    for field, (column, values) in GARBLED.items():
        for value in values:
            broken = stored._replace(**{field: value})
            with pytest.raises(ChatUnreadable) as caught:
                facts_of(broken)
            assert (caught.value.column, caught.value.chat_id) == (column, CHAT), (field, value)
            rest = facts_or_rest(broken)
            assert rest == salvage(broken)
            assert [flaw.column for flaw in rest.flaws] == [column]
            assert rest.error.column == column
            assert rest.error.chat_id == CHAT
            assert rest.facts.stored_state == UNREADABLE
            kept = {"queue": facts.queue, "turn": facts.turn, "profile": facts.profile, "calls": facts.calls}
            kept |= {"lease": facts.lease, "version": facts.version, "last_seq": facts.last_seq}
            lost = {"facts": {"turn"}, "worker": {"lease"}, "token": {"lease"}}.get(field, {field})
            for name in kept.keys() - lost:
                assert getattr(rest.facts, name) == kept[name], (field, name)
            for name in (kept.keys() & lost) - {"call_ids"}:
                assert getattr(rest.facts, name) != kept[name], (field, name)
            assert "lease" not in lost or rest.facts.lease is None, (field, value)


async def test_lost_values_get_harmless_defaults(lived: list[tuple[Stored, Facts]]) -> None:
    stored, _ = lived[-1]
    rest = salvage(stored._replace(settled=None, archived=None, version=None, last_seq=None, state=None)).facts
    assert (rest.settled, rest.archived, rest.version, rest.last_seq, rest.state) == (
        True,
        False,
        0,
        0,
        ChatState.error,
    )
    assert salvage(stored._replace(settled=0, archived=1, version=None)).facts.settled is False
    assert salvage(stored._replace(settled=0, archived=1, version=None)).facts.archived is True
    assert salvage(stored._replace(version=None)).facts.state is ChatState.executing_tools


async def test_wrong_field_costs_only_itself(lived: list[tuple[Stored, Facts]]) -> None:
    stored, facts = lived[-1]
    body = json.loads(stored.facts)
    broken = stored._replace(facts=json.dumps({**body, "serial": "poison", "turn": [], "more": 1}))
    rest = salvage(broken)
    assert {flaw.column for flaw in rest.flaws} == {"chats.facts"}
    assert (rest.facts.step, rest.facts.history, rest.facts.fence) == (facts.step, facts.history, facts.fence)
    assert (rest.facts.serial, rest.facts.turn.number) == (0, 0)
    profile = json.loads(stored.profile)
    rest = salvage(stored._replace(profile=json.dumps({**profile, "title": 5, "owner": "bob"})))
    assert [flaw.column for flaw in rest.flaws] == ["profiles.body"]
    assert (rest.facts.profile.owner, rest.facts.profile.title) == ("bob", None)
    assert rest.facts.profile.created_at == facts.profile.created_at
    nested = "[" * 200 + "]" * 200
    deep_facts, deep_profile = (f'{{"more":{nested},{body[1:]}' for body in (stored.facts, stored.profile))
    rest = salvage(stored._replace(facts=deep_facts, profile=deep_profile))
    assert [flaw.column for flaw in rest.flaws] == ["chats.facts", "profiles.body"]
    assert (rest.facts.turn, rest.facts.profile) == (facts.turn, facts.profile)
    del profile["created_at"]
    rest = salvage(stored._replace(profile=json.dumps({**profile, "title": 5})))
    assert (rest.facts.profile.owner, rest.facts.profile.created_at) == ("ann", datetime(1970, 1, 1, tzinfo=UTC))


async def test_unreadable_rows_leave_the_others(lived: list[tuple[Stored, Facts]]) -> None:
    stored, facts = lived[-1]
    rest = salvage(stored._replace(calls=["poison", *stored.calls[1:]], queue=["poison", *stored.queue]))
    assert [flaw.column for flaw in rest.flaws] == ["calls.body", "queue.body"]
    assert ([*rest.facts.calls], rest.facts.queue) == ([*facts.calls][1:], facts.queue)
    for known in (stored.calls[1:], [*stored.calls, stored.calls[0]]):
        (flaw,) = salvage(stored._replace(calls=known)).flaws
        assert (flaw.column, flaw.problem) == ("calls.call_id", f"{len(known)} of 2 calls are there")
        with pytest.raises(ChatUnreadable, match=r"calls\.call_id"):
            facts_of(stored._replace(calls=known))


async def test_unknown_state_is_kept(lived: list[tuple[Stored, Facts]]) -> None:
    stored, _ = lived[-1]
    for found in (facts_of(stored._replace(state="lost")), salvage(stored._replace(state="lost")).facts):
        assert (found.state, found.stored_state) == (ChatState.error, "lost")
    assert salvage(stored._replace(state="lost")).flaws == ()


def test_flaw_hides_the_stored_value() -> None:
    stored = Stored("c", b"hunter2", 1, 0, 1, "[]", "{}", '{"created_at": "hunter2"}', (), (), None, None, 0, "f", "l")
    told = str(salvage(stored).flaws)
    assert "hunter2" not in told
    assert "bytes" in told
    assert "nothing" in str(salvage(stored._replace(state=None)).flaws)


async def test_contradictory_facts_are_one_flaw(lived: list[tuple[Stored, Facts]]) -> None:
    stored, facts = lived[-1]
    odd = stored._replace(facts=json.dumps({**json.loads(stored.facts), "lease": 5}))
    assert salvage(odd).flaws == ()
    with pytest.raises(ChatUnreadable, match=r"chats\.facts"):
        facts_of(odd)
    rest = facts_or_rest(odd)
    assert (rest.facts.turn, rest.facts.stored_state) == (facts.turn, UNREADABLE)
