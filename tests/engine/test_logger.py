"""Logs go to whoever asked for them, and to nobody else."""

from __future__ import annotations

import logging
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog

from support.latches import Gate
from turnwise import (
    Agent,
    Engine,
    FatalToolError,
    ModelError,
    Settings,
    ToolContext,
    tool,
)
from turnwise.logger import logger
from turnwise.providers.scripted import Call, Reply, ScriptedModel


async def test_every_transition_is_logged() -> None:
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


async def test_every_line_names_chat_state_and_worker() -> None:
    """Also those that are written deep inside a job, where nobody handed the chat down."""

    @tool
    async def add(first: int, second: int) -> int:
        """Add."""
        return first + second

    gate = Gate()
    calls = [Call("add", '{"first": 1, "second": 2'), Call("work", {})]
    structlog.reset_defaults()
    with structlog.testing.capture_logs() as logs:
        async with Engine("sqlite://", model=ScriptedModel([Reply(calls=calls)]), tools=[add, gate.tool]) as engine:
            chat = await engine.create_chat()
            await engine.send_message(chat.id, "go")
            await gate.entered.wait()
            await engine.interrupt(chat.id)
            await engine.wait(chat.id, until=["interrupted"])
    structlog.reset_defaults()
    assert {"arguments_repaired", "tool_run", "step_streamed", "settled"} <= {log["event"] for log in logs}
    assert [(log["step"], log["calls"]) for log in logs if log["event"] == "step_streamed"] == [(1, 2)]
    assert ("add", False) in [(log["tool"], log["timed_out"]) for log in logs if log["event"] == "tool_run"]
    assert [log for log in logs if not _is_found(log, chat.id)] == []


async def test_lines_without_a_lease_name_chat_and_state() -> None:
    """Those about what user code does, and those of a title, which is made when no worker holds the chat any more."""

    def forget(messages: Any) -> Any:
        return [message for message in messages if message.role != "tool"]

    @tool
    async def look(context: ToolContext[None]) -> str:
        """Look."""
        return f"seen {context.deps}"

    @asynccontextmanager
    async def breaks(_chat: Any) -> AsyncIterator[None]:
        yield
        raise LookupError

    title = Reply(error=ModelError("authentication"))
    model = ScriptedModel([Reply(calls=[Call("look", {})]), "seen"], title=title)
    agent = Agent("a", model, tools=[look], prepare_messages=forget, settings=Settings(title="model"))
    structlog.reset_defaults()
    with structlog.testing.capture_logs() as logs:
        async with Engine("sqlite://", agents=[agent], deps=breaks) as engine:
            chat = await engine.create_chat()
            await engine.ask(chat.id, "go")
    structlog.reset_defaults()
    assert {"history_repaired", "title_failed", "deps_not_closed"} <= {log["event"] for log in logs}
    assert [log for log in logs if not _is_found(log, chat.id)] == []


async def test_provider_message_forges_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does what a provider said turn the terminal of whoever reads it around."""
    structlog.reset_defaults()
    error = ModelError("quota", message="no\nfailed chat_id=c1 \u202e\x1b[2J")
    async with Engine("sqlite://", model=ScriptedModel([Reply(error=error)])) as engine:
        await engine.ask((await engine.create_chat()).id, "hi")
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.isprintable()
    assert r"no\nfailed chat_id=c1 \u202e\x1b[2J" in line


FORGED = "no\nfailed chat_id=c1 \u202e\x1b[2J\r\x85failed"


def _raises_a_cause() -> None:
    raise ValueError(FORGED) from KeyError(FORGED)


def _raises_a_group() -> None:
    error = ValueError("x")
    error.add_note(FORGED)
    raise ExceptionGroup(FORGED, [error, KeyError("y")])


@pytest.mark.parametrize("fails", [_raises_a_cause, _raises_a_group])
async def test_tool_error_forges_no_log_line(caplog: pytest.LogCaptureFixture, fails: Any) -> None:
    """A tool that fails at what the model sent quotes it, as a rule."""
    structlog.reset_defaults()
    quotes = tool(name="quotes", description="Quote.")(fails)
    model = ScriptedModel([Reply(calls=[Call("quotes", {})]), "I see."])
    async with Engine("sqlite://", model=model, tools=[quotes]) as engine:
        await engine.ask((await engine.create_chat()).id, "hi")
    (record,) = (record for record in caplog.records if record.exc_info)
    first, *lines = logging.Formatter().format(record).split("\n")
    assert first.startswith("tool_failed ")
    assert len([line for line in lines if "  File " in line]) >= 1, "it is still a traceback"
    assert [line for line in (first, *lines) if not line.isprintable()] == []
    assert [line for line in lines if not line.startswith("  ")] == []
    assert any(r"failed chat_id=c1 \u202e\x1b[2J\r" in line for line in lines)


def _is_found(log: Any, chat_id: str) -> bool:
    holds = log["state"] in ("streaming", "executing_tools")
    return bool(log["chat_id"] == chat_id and log["version"] and (not holds or log["worker"]))


async def test_logging_falls_back_to_the_standard_library(caplog: pytest.LogCaptureFixture) -> None:
    structlog.reset_defaults()
    with caplog.at_level(logging.INFO, logger="turnwise"):
        async with Engine("sqlite://", model=ScriptedModel([])) as engine:
            await engine.create_chat()
    assert any(record.getMessage().startswith("create ") for record in caplog.records)


class Away(logging.Handler):
    """Ships lines to where nobody answers."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ConnectionError(f"nobody takes {record.getMessage()[:4]}")


def processor_that_fails(*_given: Any) -> Any:
    raise OSError("No space left on device")


@pytest.fixture(params=["handler", "processor"])
def failing_log(request: pytest.FixtureRequest) -> Iterator[str]:
    """Let whatever is logged raise in the application's own code; give what it says."""
    log = logging.getLogger("turnwise")
    level = log.level
    if request.param == "handler":
        handler = Away()
        log.addHandler(handler)
        log.setLevel(logging.DEBUG)
        yield "ConnectionError: nobody takes"
        log.removeHandler(handler)
        log.setLevel(level)
    else:
        structlog.configure(processors=[processor_that_fails])
        yield "OSError: No space left on device"
        structlog.reset_defaults()


async def test_failing_log_handler_stops_no_chat(failing_log: str, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert failing_log in capsys.readouterr().err


def test_import_leaves_heavy_libraries_out() -> None:
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


def _raised(text: str, cause: str | None) -> BaseException:
    def fail(error: Exception) -> None:
        raise error

    try:
        try:
            fail(KeyError(cause))
        except KeyError as inner:
            raise LookupError(text) from (inner if cause else None)
    except LookupError as error:
        return error


def _told(error: BaseException, caplog: pytest.LogCaptureFixture) -> str:
    structlog.reset_defaults()
    logger.exception("tool_failed", error=error, tool="look")
    (record,) = caplog.records
    assert record.getMessage().startswith("tool_failed tool=look")
    return record.getMessage() + ("".join(traceback.format_exception(record.exc_info[1])) if record.exc_info else "")


@pytest.mark.parametrize("cause", ["", "short", "c" * 1_000_000], ids=len)
@pytest.mark.parametrize("text", ["short", "t" * 7000, "t" * 1_000_000], ids=len)
def test_long_traceback_is_cut(caplog: pytest.LogCaptureFixture, text: str, cause: str) -> None:
    """What formats it for people may need minutes for a megabyte, and every chat of the process would wait."""
    told = _told(_raised(text, cause), caplog)
    long = max(len(text), len(cause)) > 10_000
    assert 100 < len(told) < 17_000
    assert ("[cut: " in told, "in _raised" in told) == (long, True)
    assert f"LookupError: {text[:1000]}" in told or len(cause) > 10_000
    assert told.rstrip().endswith(text[-1000:])


def test_structlog_gets_long_tracebacks_cut() -> None:
    for text in ("short", "t" * 100_000):
        error = _raised(text, None)
        with structlog.testing.capture_logs() as logs:
            logger.exception("tool_failed", error=error)
        (log,) = logs
        if text == "short":
            assert log["exc_info"] is error
        else:
            assert "exc_info" not in log
            assert log["exception"].startswith("Traceback (most recent call last):")
            assert len(log["exception"]) < 17_000
    structlog.reset_defaults()


@pytest.mark.parametrize("error", [ValueError("no key"), FatalToolError("no key")], ids=["goes on", "ends the chat"])
async def test_tool_error_is_logged_with_traceback(caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    structlog.reset_defaults()

    @tool
    async def pay() -> None:
        """Pay."""
        raise error

    model = ScriptedModel([Reply(calls=[Call("pay", {}, id="c1")]), "done"])
    async with Engine("sqlite://", model=model, tools=[pay]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "pay")
    (record,) = [record for record in caplog.records if record.getMessage().startswith("tool_failed")]
    assert [word in record.getMessage() for word in ("tool=pay", "call_id=c1", f"chat_id={chat.id}")] == [True] * 3
    assert record.exc_info is not None
    assert record.exc_info[1] is error
