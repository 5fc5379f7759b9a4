"""The context window: a service's own rule decides, a broken one decides nothing, and an unknown window is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from support.leased import Stubborn, leased_chat, streams
from support.life import NOW, said
from turnwise import CompactionInput, CompactionPolicy, Message, Settings
from turnwise.engine.jobs.context_window import with_own_rule
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.arguments import Reply
from turnwise.states.facts import CompactionFacts
from turnwise.states.messages import ToolCallPart
from turnwise.states.names import Executor
from turnwise.testing import ManualClock

HISTORY = [Message(id="m", role="user", parts=said("hi"), turn=1, step=0, created_at=NOW, position=1)]


def ruled(rule: Any, **policy: Any) -> Settings:
    return Settings(compaction=CompactionPolicy(should_compact=rule, **policy))


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(("answer", "due"), [(True, True), (False, False), (1, True), (0, False), (None, False)])
async def test_a_services_own_rule_decides(answer: Any, *, due: bool, is_async: bool) -> None:
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
async def test_a_rule_is_told_what_the_provider_reports_or_what_is_configured(
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


async def test_a_rule_is_handed_copies() -> None:
    """It may mask what it hands on to a service of its own: the model still sees the history as it is."""

    def rule(messages: Sequence[Message], _figures: CompactionInput) -> bool:
        for call in (call for message in messages for call in message.calls):
            call.arguments.clear()
        return False

    asks = ToolCallPart(call_id="a", name="look", arguments={"place": "x"}, executor=Executor.local)
    leased, _ = leased_chat(
        [*HISTORY, replace(HISTORY[0], id="n", role="assistant", parts=(asks,))], settings=ruled(rule)
    )
    await with_own_rule(leased, Reply(parts=()))
    (_, message) = (await leased.current_view()).messages
    assert message.calls[0].arguments == {"place": "x"}


@pytest.mark.parametrize("off", [{"threshold_percent": 100}, {"context_limit": 0}])
async def test_where_compaction_is_off_no_rule_is_asked(off: dict[str, int]) -> None:
    asked: list[CompactionInput] = []

    def rule(_messages: Sequence[Message], figures: CompactionInput) -> bool:
        asked.append(figures)
        return True

    leased, _ = leased_chat(HISTORY, settings=ruled(rule, **off))
    reply = Reply(parts=(), context_tokens=90)
    assert await with_own_rule(leased, reply) == reply
    assert asked == []


@pytest.mark.parametrize("error", [LookupError("no rule"), KeyboardInterrupt()], ids=["an error", "worse"])
async def test_a_rule_that_fails_says_no_and_the_reply_is_kept(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def rule(_messages: Sequence[Message], _figures: CompactionInput) -> bool:
        raise error

    leased, _ = leased_chat(HISTORY, settings=ruled(rule))
    reply = await with_own_rule(leased, Reply(parts=said("hello")))
    assert (reply.parts, reply.should_compact) == (said("hello"), False)
    (line,) = [record for record in caplog.records if "should_compact_failed" in record.getMessage()]
    assert "step=3" in line.getMessage()
    assert line.exc_info


async def test_a_rule_that_takes_too_long_counts_as_one_that_fails(caplog: pytest.LogCaptureFixture) -> None:
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


async def test_a_rule_that_does_not_end_is_named_with_its_chat(caplog: pytest.LogCaptureFixture) -> None:
    rule = Stubborn()
    leased, _ = leased_chat(HISTORY, settings=ruled(rule))
    await rule.left_behind(leased, lambda: with_own_rule(leased, Reply(parts=())))
    (line,) = [record.getMessage() for record in caplog.records if "user_code_left_behind" in record.getMessage()]
    assert "should_compact" in line
    assert "chat_id=c" in line


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
async def test_a_model_whose_window_is_unknown_is_warned_of_if_a_compaction_hangs_on_it(
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


async def test_each_model_is_warned_of_on_its_own(caplog: pytest.LogCaptureFixture) -> None:
    leased, _ = leased_chat(HISTORY)
    for name, provider in (("a", "p"), ("b", "p"), ("a", "q"), ("a", "p")):
        model = ScriptedModel([], name=name, provider=provider)
        leased.configuration = replace(leased.configuration, model=model)
        await with_own_rule(leased, Reply(parts=()))
    assert sum("context_window_unknown" in record.getMessage() for record in caplog.records) == 3
