"""Logs go to whoever asked for them, and to nobody else."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import structlog

from turnwise import Engine
from turnwise.providers.scripted import ScriptedModel


async def test_every_transition_is_logged_with_chat_version_and_state() -> None:
    structlog.reset_defaults()
    with structlog.testing.capture_logs() as logs:
        async with Engine("sqlite://", model=ScriptedModel(["hello"])) as engine:
            chat = await engine.create_chat()
            await engine.ask(chat.id, "hi")
    structlog.reset_defaults()
    told = [
        (log["event"], log["version"], log["state"])
        for log in logs
        if log.get("chat_id") == chat.id and "version" in log
    ]
    assert told[:2] == [("create", 1, "waiting"), ("send_message", 2, "pending")]
    assert told[-1] == ("step_finished", 5, "waiting")


async def test_without_structlog_configured_the_standard_library_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    structlog.reset_defaults()
    with caplog.at_level(logging.INFO, logger="turnwise"):
        async with Engine("sqlite://", model=ScriptedModel([])) as engine:
            await engine.create_chat()
    assert any(record.getMessage().startswith("create ") for record in caplog.records)


def test_importing_turnwise_prints_nothing_and_leaves_the_heavy_libraries_out() -> None:
    heavy = [
        "structlog",
        "rich",
        "typer",
        "jsonschema",
        "json_repair",
        "asyncpg",
        "pydantic_ai",
        "mcp",
        "opentelemetry",
    ]
    code = f"import sys, turnwise; print([name for name in {heavy!r} if name in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (told.stdout.strip(), told.stderr) == ("[]", "")
