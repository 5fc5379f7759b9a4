"""The log: what each line holds, and what can neither forge a line nor stop a chat."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from support.latches import Gate
from turnwise import Engine, ModelError, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel


async def test_every_transition_is_logged() -> None:
    with structlog.testing.capture_logs() as logs:
        async with Engine("sqlite://", model=ScriptedModel(["hello"])) as engine:
            chat = await engine.create_chat()
            await engine.ask(chat.id, "hi")
    lines = [
        (log["event"], log["version"], log["state"])
        for log in logs
        if log.get("chat_id") == chat.id and "version" in log
    ]
    assert lines[:2] == [("create", 1, "waiting"), ("send_message", 2, "pending")]
    assert lines[-1] == ("step_finished", 5, "waiting")


async def test_every_line_names_chat_state_and_worker() -> None:
    """Also those that are written deep inside a job, where the chat is no argument."""

    @tool
    async def add(first: int, second: int) -> int:
        """Add."""
        return first + second

    gate = Gate()
    calls = [Call("add", '{"first": 1, "second": 2 '), Call("work", {})]
    with structlog.testing.capture_logs() as logs:
        async with Engine("sqlite://", model=ScriptedModel([Reply(calls=calls)]), tools=[add, gate.tool]) as engine:
            chat = await engine.create_chat()
            await engine.send_message(chat.id, "go")
            await gate.entered.wait()
            await engine.interrupt(chat.id)
            await engine.wait(chat.id, until=["interrupted"])
    assert {"arguments_repaired", "tool_run", "step_streamed", "settled"} <= {log["event"] for log in logs}
    assert [(log["step"], log["calls"]) for log in logs if log["event"] == "step_streamed"] == [(1, 2)]
    assert ("add", False) in [(log["tool"], log["timed_out"]) for log in logs if log["event"] == "tool_run"]
    assert [log for log in logs if not _is_found(log, chat.id)] == []


async def test_provider_message_forges_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does it send control characters to a terminal."""
    error = ModelError("quota", message="no\nfailed chat_id=c1 \u202e\x1b[2J")
    async with Engine("sqlite://", model=ScriptedModel([Reply(error=error)])) as engine:
        await engine.ask((await engine.create_chat()).id, "hi")
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.isprintable()
    assert r"no\nfailed chat_id=c1 \u202e\x1b[2J" in line


FORGED = "no\nfailed chat_id=c1 \u202e\x1b[2J\r\x85failed"


async def test_tool_error_forges_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """A tool that fails at what the model sent quotes it, as a rule."""

    @tool
    async def quotes() -> None:
        """Quote."""
        error = ValueError("x")
        error.add_note(FORGED)
        raise ExceptionGroup(FORGED, [error, KeyError("y")]) from KeyError(FORGED)

    model = ScriptedModel([Reply(calls=[Call("quotes", {})]), "I see."])
    async with Engine("sqlite://", model=model, tools=[quotes]) as engine:
        await engine.ask((await engine.create_chat()).id, "hi")
    (record,) = (record for record in caplog.records if record.exc_info)
    first, *lines = logging.Formatter().format(record).split("\n")
    assert first.startswith("tool_failed ")
    assert [line for line in lines if "  File " in line], "it is still a traceback"
    assert [line for line in (first, *lines) if not line.isprintable()] == []
    assert [line for line in lines if not line.startswith("  ")] == []
    assert any(r"failed chat_id=c1 \u202e\x1b[2J\r" in line for line in lines)


def _is_found(log: Any, chat_id: str) -> bool:
    holds = log["state"] in ("streaming", "executing_tools")
    return bool(log["chat_id"] == chat_id and log["version"] and (not holds or log["worker"]))


class Away(logging.Handler):
    """Ships lines to a server that is down."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ConnectionError(f"no server for {record.getMessage()[:4]}")


@pytest.fixture
def failing_log() -> Iterator[None]:
    """Let whatever is logged raise in the application's own handler."""
    log, handler = logging.getLogger("turnwise"), Away()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield
    log.removeHandler(handler)
    log.setLevel(level)


@pytest.mark.usefixtures("failing_log")
async def test_failing_log_handler_stops_no_chat(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does it keep those who follow from what was committed."""

    @tool
    async def fail() -> None:
        """Fail."""
        raise ValueError("planted")

    model = ScriptedModel([Reply(calls=[Call("fail", {})]), "done"])
    async with Engine("sqlite://", model=model, tools=[fail]) as engine:
        chat = await engine.create_chat()
        kinds = [event.kind async for event in engine.stream(chat.id, "go")]
        assert kinds[-1] == "turn_finished"
        assert (await engine.get_chat(chat.id)).state == "waiting"
    assert "ConnectionError: no server for" in capsys.readouterr().err


def test_import_leaves_heavy_libraries_out() -> None:
    heavy = ["typer", "jsonschema", "json_repair", "asyncpg", "pydantic_ai", "mcp"]
    heavy += ["opentelemetry", "prometheus_client"]
    code = f"import sys, turnwise; print([name for name in {heavy!r} if name in sys.modules])"
    lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (lines.stdout.strip(), lines.stderr) == ("[]", "")


def test_logging_imports_nothing() -> None:
    """The first line may come from any thread, while another one imports: it must not meet a half-made module."""
    code = """
import sys, turnwise
from turnwise.logger import logger
before = set(sys.modules)
logger.warning("first")
assert set(sys.modules) == before, set(sys.modules) - before
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr == "first\n"
