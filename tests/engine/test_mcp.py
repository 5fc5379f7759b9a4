"""Tools of MCP servers, as real processes serve them: over stdio and over streamable HTTP."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from support import mcp_server
from support.events import events_of, seen
from turnwise import SettingsError
from turnwise.engine.mcp import MCPTools, MCPUnreachable
from turnwise.providers.scripted import Call, Reply
from turnwise.states.events import ToolProgressEvent

SERVER = mcp_server.__file__
ADDRESS = re.compile(r"running on (http://[\d.]+:\d+)")


def over_stdio(**options: Any) -> MCPTools:
    return MCPTools.stdio(sys.executable, [SERVER], **options)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Run one server for every test that neither ends it nor asks how it was started, and give its address."""
    with subprocess.Popen([sys.executable, SERVER, "http", "0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            address = next(found for line in process.stderr if (found := ADDRESS.search(line)))
            threading.Thread(target=process.stderr.read, daemon=True).start()  # or what it logs fills the pipe
            yield f"{address[1]}/mcp"
        finally:
            process.kill()


async def result_of(open_engine: Any, strict_model: Any, tools: Any, *calls: Call) -> list[Any]:
    """Have a model make the calls, and return their results."""
    async with open_engine(strict_model([Reply(calls=calls), "done"]), tools=tools) as engine:
        chat = await engine.create_chat()
        answer = await engine.ask(chat.id, "go")
        assert answer.text == "done"
        return [message.result for message in answer.messages if message.result is not None]


async def test_model_uses_tools_over_http(open_engine: Any, strict_model: Any, url: str) -> None:
    async with MCPTools.http(url, headers={"x-key": "secret"}) as mcp:
        calls = [Call("add", {"first": 2, "second": 3}), Call("header", {"name": "x-key"})]
        results = await result_of(open_engine, strict_model, mcp.tools, *calls)
    assert [result.output for result in results] == ["5", "secret"]


async def test_model_uses_tools_over_stdio(
    open_engine: Any, strict_model: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server has the environment and the folder that it is given, and not ours."""
    monkeypatch.setenv("OUR_KEY", "secret")
    async with over_stdio(env={"ITS_KEY": "given"}, cwd=tmp_path) as mcp:
        calls = [Call("environment", {"name": name}) for name in ("ITS_KEY", "OUR_KEY")]
        calls += [Call("folder", {}), Call("add", {"first": 2, "second": "3"})]
        results = await result_of(open_engine, strict_model, mcp.tools, *calls)
    assert [result.output for result in results] == ["given", "unset", str(await anyio.Path(tmp_path).resolve()), "5"]


async def test_progress_reaches_subscribers(open_engine: Any, strict_model: Any, url: str) -> None:
    async with (
        MCPTools.http(url) as mcp,
        open_engine(strict_model([Reply(calls=[Call("count", {})]), "done"]), tools=mcp.tools) as engine,
    ):
        chat = await engine.create_chat()
        await engine.ask(chat.id, "go")
        events = await events_of(engine, chat.id)
    shown = [event.progress for event in events if isinstance(event, ToolProgressEvent)]
    assert shown == [{"progress": 1, "total": 2, "message": "half way"}]


@pytest.mark.deep
async def test_dead_process_is_restarted_for_the_next_call(open_engine: Any, strict_model: Any) -> None:
    calls = [Call("die", {}), Call("add", {"first": 1, "second": 1})]
    async with over_stdio() as mcp:
        died, added = await result_of(open_engine, strict_model, mcp.tools, *calls)
    assert died.is_error
    assert "MCPUnreachable" in died.output
    assert (added.is_error, added.output) == (False, "2")


@pytest.mark.deep
async def test_interrupt_stops_a_call_and_keeps_the_connection(open_engine: Any, strict_model: Any) -> None:
    script = [Reply(calls=[Call("wait_for_ever", {})]), Reply(calls=[Call("add", {"first": 1, "second": 1})]), "done"]
    async with over_stdio() as mcp, open_engine(strict_model(script), tools=mcp.tools) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await seen(engine, chat.id, "tool_progress")
        await engine.interrupt(chat.id)
        await engine.wait(chat.id, until=["interrupted"])
        answer = await engine.ask(chat.id, "again")
    assert [message.result.output for message in answer.messages if message.result] == ["2"]


async def test_server_that_does_not_start_is_named() -> None:
    with pytest.raises(MCPUnreachable, match="no-such-command"):
        async with MCPTools.stdio("no-such-command"):
            raise AssertionError("it started")


def test_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("turnwise.engine.mcp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(SettingsError, match=r"turnwise\[mcp\]"):
        __import__("turnwise.engine.mcp")
