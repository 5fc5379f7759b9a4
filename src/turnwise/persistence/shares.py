"""Fair claims: whose chat comes next, and how many of each owner, agent and model may be at work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

COUNTED: Final = ("agent", "fair_key", "capped_model")
"""The columns of `chats` by which fair claims find and count chats."""


class AtWork(NamedTuple):
    """How many chats of one key, agent and model a worker holds, those apart that settle an interrupt."""

    fair_key: str
    agent: str
    model: str
    """Provider and model; empty unless a cap counts them."""
    chats: int


class Lane(NamedTuple):
    """Chats that wait for the same agent and model."""

    agent: str
    model: str


class Candidate(NamedTuple):
    """A chat that waits. Its time is as the store has it: it is only compared."""

    fair_key: str
    since: Any
    number: int
    id: str
    version: Any
    lane: Lane


class Caps(msgspec.Struct, frozen=True):
    """How many chats may be at work at once; `None` sets no cap."""

    per_key: int | None = None
    per_agent: int | None = None
    per_model: int | None = None

    def __bool__(self) -> bool:
        return (self.per_key, self.per_agent, self.per_model) != (None, None, None)

    def reached(self, fair_key: str, lane: Lane, at_work: Iterable[AtWork]) -> ReachedCap | None:
        """Return the first cap that keeps such a chat from being claimed."""
        counts = Counts(self, at_work).of
        for kind, name, cap in (
            ("owner", fair_key, self.per_key),
            ("agent", lane.agent, self.per_agent),
            ("model", lane.model, self.per_model),
        ):
            if cap is not None and counts[kind][name] >= cap and (name or kind == "owner"):
                return ReachedCap(kind, name, counts[kind][name], cap)
        return None


class ReachedCap(NamedTuple):
    """A cap that is reached."""

    kind: str
    """What is capped: the chats of an owner, or what stands for it, an agent or a model."""
    name: str
    at_work: int
    cap: int

    @property
    def sentence(self) -> str:
        whose = f"{self.kind} {self.name!r} has" if self.name else "chats without an owner have"
        return f"There is work to do, but {whose} {self.at_work} of {self.cap} chats at work: it waits for one of them."


class Counts:
    """The chats at work, counted for the caps."""

    def __init__(self, caps: Caps, at_work: Iterable[AtWork]) -> None:
        self._caps = caps
        self.of = {kind: Counter[str]() for kind in ("owner", "agent", "model")}
        for fair_key, agent, model, chats in at_work:
            self.add(fair_key, Lane(agent, model), chats)

    def add(self, fair_key: str, lane: Lane, chats: int = 1) -> None:
        self.of["owner"][fair_key] += chats
        self.of["agent"][lane.agent] += chats
        self.of["model"][lane.model] += chats

    def lane_is_open(self, lane: Lane) -> bool:
        """Whether another chat of the agent and model may work. No cap holds for an unnoted model."""
        per_agent, per_model = self._caps.per_agent, self._caps.per_model
        return (per_agent is None or self.of["agent"][lane.agent] < per_agent) and (
            per_model is None or not lane.model or self.of["model"][lane.model] < per_model
        )

    def key_is_open(self, fair_key: str) -> bool:
        return self._caps.per_key is None or self.of["owner"][fair_key] < self._caps.per_key

    @property
    def full_keys(self) -> list[str]:
        return [key for key in self.of["owner"] if not self.key_is_open(key)]


class Shares:
    """The round of one worker over the keys that have waiting chats, in the order of the keys.

    Each turn of a key claims as many chats as its weight. Every worker goes its own round, and keeps its position in
    memory: after a restart it begins with the first key.

    Args:
        weights: of keys; 1 where none is given.
        caps: what may be at work at once.
    """

    def __init__(self, weights: Mapping[str, float], caps: Caps) -> None:
        self.caps = caps
        self._weights = weights
        self._least = min([1.0, *weights.values()])
        self.key = ""
        """The key whose turn it is."""
        self._taken = 0
        """How many chats its turn has taken."""

    def turn_of(self, key: str) -> int:
        """Return how many chats a key's turn takes: its weight, relative to the smallest."""
        return max(1, round(self._weights.get(key, 1) / self._least))

    def pick(self, waiting: Iterable[Candidate], counts: Counts, limit: int) -> list[Candidate]:
        """Return the chats whose turn it is, and count them as at work."""
        by_key: dict[str, list[Candidate]] = {}
        for one in sorted(waiting, key=lambda one: (_sorting(one.since), one.number), reverse=True):
            by_key.setdefault(one.fair_key, []).append(one)  # the one that waits longest comes last
        picked: list[Candidate] = []
        while by_key and len(picked) < limit:
            key = self._next(by_key)
            chat = self._oldest(by_key[key], counts) if counts.key_is_open(key) else None
            if chat is None:
                del by_key[key]
                continue
            self._taken = self._taken + 1 if key == self.key and self._taken < self.turn_of(key) else 1
            self.key = key
            counts.add(key, chat.lane)
            picked.append(chat)
        return picked

    def _next(self, keys: Iterable[str]) -> str:
        if self.key in keys and self._taken < self.turn_of(self.key):
            return self.key
        return min((key for key in keys if key > self.key), default=None) or min(keys)

    def _oldest(self, chats: list[Candidate], counts: Counts) -> Candidate | None:
        for place in range(len(chats) - 1, -1, -1):
            if counts.lane_is_open(chats[place].lane):
                return chats.pop(place)
        return None


def _sorting(since: Any) -> tuple[bool, Any]:
    """Return a sort key for times, of which garbled ones may be text."""
    return (isinstance(since, str | bytes), str(since) if isinstance(since, str | bytes) else since)
