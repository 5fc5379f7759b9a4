"""The context window: a service's own rule decides, a broken one decides nothing, and an unknown window is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from support.leased import leased_chat, streams
from support.life import NOW, said
from turnwise import CompactionInput, CompactionPolicy, Message, Settings
from turnwise.engine.jobs.context_window import with_own_rule
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.arguments import Reply
from turnwise.states.facts import CompactionFacts
from turnwise.testing import ManualClock

HISTORY = [Message(id="m", role="user", parts=said("hi"), turn=1, step=0, created_at=NOW, position=1)]


def ruled(rule: Any, **policy: Any) -> Settings:
    return Settings(compaction=CompactionPolicy(should_compact=rule, **policy))


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(("answer", "due"), [(True, True), (False, False), (1, True), (0, False), (None, False)])
async def test_should_compact_decides(answer: Any, *, due: bool, is_async: bool) -> None:
    def rule(_messages: Sequence[Message], _figures: CompactionInput) -> Any:
        return answer

    async def later(messages: Sequence[Message], figures: CompactionInput) -> Any:
        return rule(messages, figures)

    leased, _ = leased_chat(HISTORY, settings=ruled(later if is_async else rule))
    reply = await with_own_rule(leased, Reply(parts=said("hello"), context_tokens=5))
    assert (reply.parts, reply.context_tokens) == (said("hello"), 5)
    assert reply.should_compact is due


@pytest.mark.parametrize(
    ("reported", "configured", "limit"), [(1000, 500, 1000), (0, 500, 0), (None, 500, 500), (None, None, None)]
)
async def test_rule_gets_reported_or_configured_limit(
    reported: int | None, configured: int | None, limit: int | None
) -> None:
    told: list[tuple[Any, CompactionInput]] = []

    def rule(messages: Sequence[Message], figures: CompactionInput) -> bool:
        told.append((messages, figures))
        return False

    facts = streams(compaction=CompactionFacts(count=3, context_tokens=1))
    leased, _ = leased_chat(HISTORY, facts=facts, settings=ruled(rule, context_limit=configured))
    await with_own_rule(leased, Reply(parts=(), context_tokens=90, context_limit=reported))
    assert told == [(tuple(HISTORY), CompactionInput(context_tokens=90, context_limit=limit, compactions=3))]


@pytest.mark.parametrize("off", [{"threshold_percent": 100}, {"context_limit": 0}])
async def test_no_rule_runs_with_compaction_off(off: dict[str, int]) -> None:
    asked: list[CompactionInput] = []

    def rule(_messages: Sequence[Message], figures: CompactionInput) -> bool:
        asked.append(figures)
        return True

    leased, _ = leased_chat(HISTORY, settings=ruled(rule, **off))
    reply = Reply(parts=(), context_tokens=90)
    assert await with_own_rule(leased, reply) == reply
    assert asked == []


@pytest.mark.parametrize("error", [LookupError("no rule"), KeyboardInterrupt()], ids=["an error", "worse"])
async def test_failing_rule_counts_as_no(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    def rule(_messages: Sequence[Message], _figures: CompactionInput) -> bool:
        raise error

    leased, _ = leased_chat(HISTORY, settings=ruled(rule))
    reply = await with_own_rule(leased, Reply(parts=said("hello")))
    assert (reply.parts, reply.should_compact) == (said("hello"), False)
    (line,) = [record for record in caplog.records if "should_compact_failed" in record.getMessage()]
    assert "step=3" in line.getMessage()
    assert line.exc_info


async def test_slow_rule_counts_as_no(caplog: pytest.LogCaptureFixture) -> None:
    """Or a service that it asks, and that never answers, would keep a whole reply from being stored."""
    asked = anyio.Event()

    async def rule(_messages: Sequence[Message], _figures: CompactionInput) -> bool:
        asked.set()
        await anyio.sleep_forever()
        return True

    leased, _ = leased_chat(HISTORY, settings=ruled(rule, timeout=7))
    replies: list[Reply] = []
    async with anyio.create_task_group() as tasks:

        async def decide() -> None:
            replies.append(await with_own_rule(leased, Reply(parts=said("hello"))))

        tasks.start_soon(decide)
        await asked.wait()
        clock = leased.runtime.clock
        assert isinstance(clock, ManualClock)
        await clock.advance(7)
    assert [(reply.parts, reply.should_compact) for reply in replies] == [(said("hello"), False)]
    (line,) = [record.getMessage() for record in caplog.records if "should_compact_failed" in record.getMessage()]
    assert "step=3" in line


@pytest.mark.parametrize(
    ("reported", "policy", "warned"),
    [
        (None, {}, True),
        (1000, {}, False),
        (0, {}, False),
        (None, {"context_limit": 1000}, False),
        (None, {"context_limit": 0}, False),
        (None, {"threshold_percent": 100}, False),
    ],
)
async def test_unknown_context_limit_is_logged_once(
    reported: int | None, policy: dict[str, Any], *, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = ScriptedModel([], name="large", provider="acme")
    leased, _ = leased_chat(HISTORY, settings=Settings(compaction=CompactionPolicy(**policy)), model=model)
    reply = Reply(parts=said("hello"), context_limit=reported)
    for _ in range(2):
        assert await with_own_rule(leased, reply) is reply
    lines = [record.getMessage() for record in caplog.records if "context_window_unknown" in record.getMessage()]
    assert len(lines) == warned
    for line in lines:
        assert [word for word in ("model=large", "provider=acme", "set CompactionPolicy") if word not in line] == []
