"""Settings, policies and parameters: defaults, refusals, and decisions of policies."""

import math
import re
from dataclasses import fields
from typing import Any

import pytest

from turnwise import CompactionPolicy, Engine, InvalidArgument, RetryPolicy, Settings, SettingsError
from turnwise.client import ClientSettings
from turnwise.service import ServiceSettings


def test_defaults_are_as_documented() -> None:
    settings = Settings()
    expected: dict[str, Any] = {
        "run_worker": True,
        "max_running": 100,
        "poll_interval": 1,
        "lease": 30,
        "renew_every": 10,
        "shutdown_grace": 5,
        "durability": "full",
        "max_steps": 50,
        "answer_retries": 3,
        "tools_parallel": "safe",
        "parallel_cap": 10,
        "tool_timeout": 120,
        "output_limit_bytes": 65536,
        "startup_timeout": 60,
        "idle_timeout": 90,
        "queue_limit": 20,
        "promote_after_interrupt": False,
        "keep_parts": 24 * 60 * 60,
        "continue_prompt": "Continue.",
        "subagent_depth": 3,
        "subagents_at_once": 10,
    }
    assert {name: getattr(settings, name) for name in expected} == expected
    retry, compaction = settings.retry, settings.compaction
    assert (retry.first_delay, retry.max_delay, retry.attempts, retry.after_output) == (1, 60, 25, "reset")
    assert (retry.openings, retry.reconnects) == (None, None)
    assert (compaction.threshold_percent, compaction.timeout, compaction.max_reentries) == (80, 90, 3)


def test_for_reasoning_has_longer_timeouts() -> None:
    patient = Settings.for_reasoning(max_steps=3)
    assert (patient.startup_timeout, patient.idle_timeout, patient.max_steps) == (600, 600, 3)
    assert Settings.for_reasoning(idle_timeout=None).idle_timeout is None


@pytest.mark.parametrize("name", ["lease", "tool_timeout", "coalesce"])
def test_duration_is_at_most_thirty_years(name: str) -> None:
    longest = 946_684_800.0
    assert getattr(Settings(**{name: longest}), name) == longest
    with pytest.raises(SettingsError, match=rf"{name}: must be at most 946684800; it was"):
        Settings(**{name: math.nextafter(longest, math.inf)})


def test_lease_is_renewed_before_it_expires() -> None:
    assert Settings(lease=10, renew_every=math.nextafter(10, 0)).lease == 10
    with pytest.raises(SettingsError, match="renew_every"):
        Settings(lease=10, renew_every=11)


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({"threshold_percent": 100.5}, "threshold_percent"),
        ({"context_limit": -1}, "context_limit"),
        ({"prompt": " \n"}, "prompt"),
        ({"timeout": 0}, "timeout"),
        ({"max_reentries": -1}, "max_reentries"),
        ({"max_per_turn": -1}, "max_per_turn"),
    ],
)
def test_invalid_compaction_policy_is_refused(policy: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=rf"compaction\.{problem}: must"):
        CompactionPolicy(**policy)


@pytest.mark.parametrize(
    "name", ["first_delay", "max_delay", "attempts", "openings", "reconnects", "alike", "max_retry_after"]
)
def test_invalid_retry_policy_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"retry\.{name}: must be (above 0|at least 1); it was 0"):
        RetryPolicy(**{name: 0})


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        # of (failures in a row, broken once open): those after which there is another attempt
        (RetryPolicy(attempts=3), {(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)}),
        (RetryPolicy(attempts=None, openings=2), {(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3)}),
        (RetryPolicy(attempts=None, reconnects=1), {(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)}),
        (RetryPolicy(attempts=3, openings=1, reconnects=1), {(0, 0), (1, 1)}),
    ],
)
def test_attempts_openings_and_reconnects_have_own_limits(policy: RetryPolicy, allowed: set[tuple[int, int]]) -> None:
    cases = {(failures, broken) for failures in range(4) for broken in range(failures + 1)}
    assert {case for case in cases if policy.allows(*case)} == allowed


def test_delays_double_up_to_the_maximum() -> None:
    policy = RetryPolicy(first_delay=3, max_delay=20)
    assert [policy.delay(failures) for failures in (1, 2, 3, 4, 5, 10_000)] == [3, 6, 12, 20, 20, 20]
    assert [policy.delay(2, retry_after) for retry_after in (0, 5, 7, 100)] == [6, 6, 7, 100]
    assert [RetryPolicy(first_delay=0.25).delay(failures) for failures in (1, 2)] == [0.25, 0.5]
    assert RetryPolicy().delay(1, math.inf) < 366 * 30 * 24 * 60 * 60, "there is a date so far from now"
    assert RetryPolicy(max_delay=946_684_800.0).delay(10_000) == 946_684_800.0
    assert RetryPolicy(first_delay=1e-9, max_delay=946_684_800.0).delay(60) == pytest.approx(1e-9 * 2**59)


def test_named_retry_policies() -> None:
    persistent, interactive = RetryPolicy.persistent(), RetryPolicy.interactive()
    assert (persistent.attempts, persistent.delay(100), persistent.allows(10_000, 9)) == (None, 60, True)
    assert (interactive.attempts, interactive.delay(100), interactive.after_output) == (None, 16, "never")
    assert [interactive.allows(failures, 0) for failures in (3, 4)] == [True, False]
    assert [interactive.allows(broken, broken) for broken in (5, 6)] == [True, False]


def test_limits_come_from_the_settings() -> None:
    own: dict[str, Any] = {
        "max_steps": 3,
        "turn_tokens": 4,
        "turn_seconds": 5,
        "turn_cost": 0.5,
        "queue_limit": 6,
        "promote_after_interrupt": True,
        "action_deadline": 7,
        "lease": 31,
        "queue_limit_bytes": 32,
        "fair_by": "metadata.team",
    }
    policy: dict[str, Any] = {"threshold_percent": 9, "after_final_step": "rest", "max_reentries": 2}
    limits = Settings(**own, output_limit_bytes=8, compaction=CompactionPolicy(**policy, max_per_turn=3)).limits(1000)
    own_fields = {
        "context_limit": 1000,
        "max_per_turn": 3,
        "fallbacks": 0,
        "schedule_limit": 20,
        "capped_model": "",
        "asked_model": "",
    }
    expected = own | policy | own_fields
    assert {name: getattr(limits, name) for name in limits.__slots__} == expected


@pytest.mark.parametrize(("configured", "limit"), [(None, 1000), (500, 500), (2000, 2000), (0, 0)])
def test_context_limit_overrides_the_models(configured: int | None, limit: int) -> None:
    assert Settings(compaction=CompactionPolicy(context_limit=configured)).limits(1000).context_limit == limit


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("title", "first"), ("tools_parallel", "some"), ("continue_prompt", " "), ("turn_cost", 0), ("coalesce", -1)),
        *(("keep_parts", 0), ("archive_after", 0), ("delete_after", -1), ("tool_timeout", math.inf)),
        *(("file_types", ["png"]), ("file_types", ["image/"]), ("file_types", "image/png")),
    ],
)
def test_invalid_setting_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: must"):
        Settings(**{name: value})


@pytest.mark.parametrize("kind", [Settings, ServiceSettings, ClientSettings])
def test_all_settings_raise_the_documented_error(kind: Any) -> None:
    """All settings raise the same error for the same mistake."""
    assert re.findall(r"^ +(\w+): a value is", kind.__doc__, re.MULTILINE) == ["SettingsError"]
    for wrong in ({next(iter(fields(kind))).name: object()}, {"no_such_setting": 1}):
        with pytest.raises(SettingsError, match=f"^{next(iter(wrong))}: "):
            kind(**wrong)


# Parameters


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("temprature", 1, "must be one of 'max_output_tokens', 'temperature'"),
        ("max_output_tokens", -5, "must be at least 1; it was -5"),
        ("max_output_tokens", 1.5, "must be a whole number; it was 1.5"),
        ("temperature", "hot", "must be a number; it was 'hot'"),
        ("temperature", -0.5, "must be at least 0; it was -0.5"),
        ("frequency_penalty", False, "must be a number; it was False"),
        ("tool_choice", ["t"], "must be a string; it was a value of type list"),
        ("parallel_tool_calls", "yes", "must be True or False; it was 'yes'"),
        ("provider_options", 3, "must be a mapping with string keys; it was 3"),
    ],
    ids=str,
)
async def test_invalid_parameter_is_refused(name: str, value: Any, problem: str) -> None:
    parameters = {name: value}
    refused = re.escape(f"parameters[{name!r}]: {problem}")
    with pytest.raises((InvalidArgument, SettingsError), match=refused):
        Settings(parameters=parameters)
    async with Engine("sqlite://", model="demo") as engine:
        with pytest.raises((InvalidArgument, SettingsError), match=refused):
            await engine.create_chat(parameters=parameters)
        chat = await engine.create_chat()
        with pytest.raises((InvalidArgument, SettingsError), match=refused):
            await engine.configure(chat.id, parameters=parameters)
