"""What families use, reckoned from what their logs say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import pytest

from support.family_logs import helper, log_of
from support.life import NOW
from turnwise import ChatDeleted, ChatUnreadable
from turnwise.engine.family_usage import unheard_usage
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.protocol import ChatStore
from turnwise.states.facts import Facts
from turnwise.states.usage import Usage
from turnwise.states.writes import RecordUsage


class Logs:
    """A store that tells logs, and what each turn has used."""

    def __init__(
        self,
        logs: Mapping[str, list[AuditRecord]],
        used: Mapping[str, Sequence[int]],
        broken: Mapping[str, Exception] | None = None,
    ) -> None:
        self._logs, self._used, self._broken = logs, used, broken or {}

    async def audit(self, chat_id: str) -> list[AuditRecord]:
        if chat_id in self._broken:
            raise self._broken[chat_id]
        if chat_id not in self._logs:
            raise ChatDeleted(chat_id, NOW)
        return self._logs[chat_id]

    async def facts(self, chat_id: str) -> Facts:
        return helper(chat_id, "first")

    async def ledger(self, chat_id: str) -> list[RecordUsage]:
        return [
            RecordUsage(purpose="step", turn=turn, step=1, attempt=1, usage=Usage(input_tokens=tokens))
            for turn, tokens in enumerate(self._used[chat_id])
        ]


HELPER = log_of([0, 1, 1, 2, 2, 2, 3, 3], {1: ("nobody:0", "nobody:new"), 2: ("its own:1",), 4: ("its own:3",)})
ITS_OWN = log_of([0, 1, 2], {})
USED = {"helper": (1, 2, 4, 8), "its own": (16, 32, 64), "parent": (128, 256, 512), "first": ()}
"""Tokens by turn: each sum of them tells what was counted, and how often."""


@pytest.mark.parametrize(
    ("answers", "unheard"),
    [
        ({}, {1, 2, 4, 8, 16, 32, 64}),
        ({2: ("helper:3",)}, {4, 8, 32, 64}),
        ({2: ("helper:3",), 4: ("helper:6",)}, {8}),
    ],
)
async def test_usage_since_the_last_answer_counts_with_the_next(
    answers: Mapping[int, Sequence[str]], unheard: set[int]
) -> None:
    logs = {"parent": log_of([0, 1, 1, 2], answers), "helper": HELPER, "its own": ITS_OWN}
    store = cast("ChatStore", Logs(logs, USED))
    assert (await unheard_usage(store, "parent", helper("helper", "parent"))).input_tokens == sum(unheard)


@pytest.mark.parametrize(
    ("its_own", "unheard"),
    [([], {1, 2, 4, 8}), ([0], {1, 2, 4, 8, 16}), ([0, 1], {1, 2, 4, 8, 16, 32})],
    ids=["deleted", "restored from before both", "restored from before the last"],
)
async def test_answer_missing_from_a_log_makes_usage_partial(its_own: Sequence[int], unheard: set[int]) -> None:
    """A chat could never be answered whose helper's helper was deleted, or came back from an older backup."""
    logs = {"parent": log_of([0, 1], {}), "helper": HELPER, "its own": log_of(its_own, {})}
    used = {**USED, "its own": USED["its own"][: len(its_own)]}
    usage = await unheard_usage(cast("ChatStore", Logs(logs, used)), "parent", helper("helper", "parent"))
    assert (usage.input_tokens, usage.partial) == (sum(unheard), True)


@pytest.mark.parametrize("error", [ChatDeleted("x", NOW), ChatUnreadable("audit.body", "not JSON", chat_id="x")])
@pytest.mark.parametrize(("gone", "unheard"), [("its own", {1, 2, 4, 8}), ("helper", {}), ("parent", {})])
async def test_unreadable_or_deleted_chat_makes_usage_partial(error: Exception, gone: str, unheard: set[int]) -> None:
    logs = {"parent": log_of([0, 1], {}), "helper": HELPER, "its own": ITS_OWN}
    store = cast("ChatStore", Logs(logs, USED, broken={gone: error}))
    usage = await unheard_usage(store, "parent", helper("helper", "parent"))
    assert ((usage.input_tokens or 0), usage.partial) == (sum(unheard), True)


async def test_usage_of_a_resumed_turn_counts_with_the_next_answer() -> None:
    """A helper that ended in error goes on in the same turn."""
    first = log_of([0, 1, 1], {})
    resumed = [replace(one, version=one.version + 3, turn=1) for one in log_of([1, 1], {})]
    logs = {"parent": log_of([0, 1, 1], {2: ("helper:3",)}), "helper": first + resumed}
    for entries, used in (((1, 2, 4), (4, False)), ((1, 2, 4, 8), (4, False)), ((1, 2), (None, True))):
        store = cast("ChatStore", Logs(logs, {"helper": entries}))
        usage = await unheard_usage(store, "parent", helper("helper", "parent"))
        assert (usage.input_tokens, usage.partial) == used


async def test_every_turn_of_a_family_counts_once() -> None:
    """Also of those whose answers came in several turns; what a helper has used since its last one was not heard of."""
    parent = log_of([0, 1, 1, 2], {2: ("helper:3",), 4: ("helper:6",)})
    logs = {"first": log_of([0, 1], {}), "parent": parent, "helper": HELPER, "its own": ITS_OWN}
    used = await unheard_usage(cast("ChatStore", Logs(logs, USED)), "first", helper("parent", "first"))
    assert used.input_tokens == sum({128, 256, 512, 1, 2, 4, 16, 32, 64})


@pytest.mark.parametrize("directly", [1, 3], ids=["before the parent", "between the answers of the parent"])
async def test_usage_reported_twice_counts_once(
    directly: int,
) -> None:
    """Nor the other way about: whoever tells first, every turn is counted once."""
    parent = log_of([0, 1, 1, 2], {2: ("helper:3",), 4: ("helper:6",)})
    family = {"parent": parent, "helper": HELPER, "its own": ITS_OWN}
    heard: list[int] = []
    answers: dict[int, Sequence[str]] = {}
    for version in range(1, 5):
        name, above, told = ("helper", "parent", "helper:8") if version == directly else ("parent", "first", "parent:2")
        logs = {"first": log_of([0] * (version - 1), answers), **family}
        logs["parent"] = parent[:2] if version < 4 else parent
        store = cast("ChatStore", Logs(logs, USED))
        heard.append((await unheard_usage(store, "first", helper(name, above))).input_tokens or 0)
        answers[version] = (told,)
    assert sum(heard) == sum({128, 256, 512, 1, 2, 4, 8, 16, 32, 64})
