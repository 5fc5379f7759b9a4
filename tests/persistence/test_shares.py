"""Fair claims as values: the next chats of a worker's round, and the caps that make a chat wait."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.persistence.shares import AtWork, Candidate, Caps, Counts, Lane, ReachedCap, Shares

LANES = {"a": Lane("one", "m"), "b": Lane("two", "m"), "c": Lane("two", ""), "d": Lane("", "n")}


def waiting(*chats: str) -> list[Candidate]:
    """Return chats, each given as key (`-`: none), number, and lane unless it is `a`; they wait in that order."""
    return [
        Candidate(chat[0].strip("-"), int(chat[1]), int(chat[1]), chat, 1, LANES[chat[2:] or "a"])
        for chat in reversed(chats)
    ]


@pytest.mark.parametrize(
    ("caps", "chats", "more", "picks"),
    [
        ({}, "k1 k2 k3 k4 k5 k6 k7 l1 l2 m1 m2 m3", "", ["k1 k2 k3 k4", "k5 k6 l1 m1 m2 k7 l2 m3"]),
        ({}, "m1 m2 m3", "m4 m5 n1", ["m1 m2 m3", "m4 n1 m5"]),
        ({}, "-1 -2 -3 l1", "", ["-1 -2 l1 -3"]),
        ({"per_key": 2}, "k1 k2 l1 m1 m2 m3", "", ["k1 l1 m1 m2"]),
        ({"per_agent": 2}, "k1 k2b k3 l1 l2c m1", "", ["k1 k2b l2c"]),
        ({"per_model": 3}, "k1 k2c k3b l1 l2d m1", "", ["k1 k2c k3b l2d"]),
        ({"per_model": 1}, "k1c k2c l1", "", ["k1c k2c"]),
    ],
)
def test_keys_take_turns_by_their_weights(caps: dict[str, int], chats: str, more: str, picks: list[str]) -> None:
    """The oldest chat of a key with an open lane comes first; a turn continues in the next claim."""
    shares = Shares({"k": 3, "l": 0.5}, Caps(**caps))
    left = waiting(*chats.split())
    counts = Counts(shares.caps, [AtWork("k", "one", "m", 1)])
    for limit, wanted in zip((4, 9), picks, strict=False):
        picked = shares.pick(left, counts, limit)
        assert [one.id for one in picked] == wanted.split()
        assert shares.key == picked[-1].fair_key
        left = [one for one in (*left, *waiting(*more.split())) if one not in picked]
        more = ""
    assert shares.pick(left, counts, 9) == []
    assert [Shares({"k": 3}, Caps()).turn_of(key) for key in "kl"] == [3, 1]


def test_equal_and_garbled_times_harm_no_other_chat() -> None:
    times: list[Any] = [b"\xff", "soon", 10, 10, 9]
    chats = [Candidate("k", since, number, str(number), 1, LANES["a"]) for number, since in enumerate(times)]
    picked = Shares({}, Caps()).pick(chats, Counts(Caps(), []), 9)
    assert [one.since for one in picked] == [9, 10, 10, b"\xff", "soon"]
    assert [one.number for one in picked[1:3]] == [2, 3]


@pytest.mark.parametrize(
    ("caps", "key", "lane", "reached"),
    [
        (Caps(), "k", "a", None),
        (Caps(per_key=3), "k", "a", None),
        (Caps(per_key=2), "k", "a", ReachedCap("owner", "k", 2, 2)),
        (Caps(per_key=1), "", "a", ReachedCap("owner", "", 1, 1)),
        (Caps(per_agent=2), "l", "a", ReachedCap("agent", "one", 2, 2)),
        (Caps(per_agent=3, per_model=2), "l", "b", ReachedCap("model", "m", 2, 2)),
        (Caps(per_model=1), "l", "c", None),
        (Caps(per_agent=1), "l", "d", None),
    ],
)
def test_reached_cap_is_named(caps: Caps, key: str, lane: str, reached: ReachedCap | None) -> None:
    """A chat without an owner counts as one owner's; no cap holds for an unknown agent or model."""
    at_work = [AtWork("k", "one", "m", 2), AtWork("", "two", "", 1), AtWork("m", "", "", 1)]
    assert caps.reached(key, LANES[lane], at_work) == reached
    assert bool(caps) is (caps != Caps())
    assert sorted(Counts(Caps(per_key=2), at_work).full_keys) == ["k"]
    assert Counts(caps, at_work).key_is_open(key) is (reached is None or reached.kind != "owner")
