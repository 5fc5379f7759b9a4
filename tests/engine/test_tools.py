"""Tools: how they run beside each other, and that whatever goes wrong is a result the model sees."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from pydantic import BaseModel, SecretStr
from tests.engine.chats import lines_of

from support.engines import OpenChat
from support.events import events_of
from turnwise import CompactionPolicy, FolderFiles, Settings, Tool, ToolContext, ToolFailed, ToolOutput, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import SettingsError


class Crowd:
    """Tools that note who runs beside whom: each waits until `peak` of them are inside, or all were started."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.inside = self.peak = 0
        self.order: list[str] = []
        self._full = anyio.Event()

    def tool(self, name: str, **options: Any) -> Tool:
        @tool(name=name, description="Note who is beside.", **options)
        async def enter() -> str:
            self.order.append(name)
            self.inside += 1
            self.peak = max(self.peak, self.inside)
            if self.inside == self.expected:
                self._full.set()
            await self._full.wait()
            await anyio.lowlevel.checkpoint()
            self.inside -= 1
            return name

        return enter


def result_lines(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line.startswith("tool:")]


async def run(open_engine: Any, model: Any, tools: Sequence[Any], **options: Any) -> Any:
    async with open_engine(model, tools=tools, **options) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "go")
        return result, await events_of(engine, chat.id)


@pytest.mark.parametrize(("safe", "parallel", "peak"), [("abc", "safe", 3), ("ac", "safe", 1), ("", "all", 3)])
async def test_only_safe_calls_run_in_parallel(
    open_engine: Any, strict_model: Any, safe: str, parallel: Any, peak: int
) -> None:
    crowd = Crowd(expected=peak)
    model = strict_model([Reply(calls=[Call(name, {}) for name in "abc"]), "done"])
    tools = [crowd.tool(name, parallel_safe=name in safe) for name in "abc"]
    await run(open_engine, model, tools, settings=Settings(tools_parallel=parallel))
    assert (crowd.peak, crowd.order) == (peak, ["a", "b", "c"])


async def test_parallel_calls_never_exceed_the_cap(open_engine: Any, strict_model: Any) -> None:
    crowd = Crowd(expected=10)
    names = [f"t{number}" for number in range(15)]
    model = strict_model([Reply(calls=[Call(name, {}) for name in names]), "done"])
    result, _ = await run(open_engine, model, [crowd.tool(name, parallel_safe=True) for name in names])
    assert (crowd.peak, sorted(crowd.order)) == (10, sorted(names))
    expected = [f"tool: call_{number + 1}={name}" for number, name in enumerate(names)]
    assert result_lines(lines_of(result.messages)) == expected
    assert result_lines(lines_of(model.requests[1].messages)) == expected


async def test_blocking_tools_do_not_share_threads(open_engine: Any, strict_model: Any, tmp_path: Path) -> None:
    """More of them than the threads that all files share are at work, until all have put theirs."""
    count = 45
    all_began, page = threading.Barrier(count), tmp_path / "page.txt"
    page.write_text("a page")

    @tool(parallel_safe=True)
    def scan(context: ToolContext) -> ToolOutput:
        """Scan."""
        all_began.wait(60)
        put = partial(context.put_file, page if context.call_id.endswith("1") else iter([b"a picture"]))
        return ToolOutput("scanned", (anyio.from_thread.run(partial(put, media_type="image/png")),))

    model = strict_model([Reply(calls=[Call("scan", {})] * count), "done"])
    settings = Settings(parallel_cap=count, tool_timeout=60)
    result, _ = await run(open_engine, model, [scan], settings=settings, files=FolderFiles(tmp_path / "files"))
    assert [message.result.output for message in result.messages[2:-1]] == ["scanned"] * count


def test_tool_without_a_description_is_refused() -> None:
    with pytest.raises(SettingsError, match="needs a docstring or a description"):
        tool(schema={"type": "object"})(lambda: "x")


SECRET = "postgres://user:hunter2@host"  # noqa: S105 - none at all


def failing(error: BaseException, **options: Any) -> Tool:
    @tool(name="fail", **options)
    async def fail() -> str:
        """Fail."""
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "output"),
    [
        (ToolFailed("the file is locked; try later"), "the file is locked; try later"),
        (ValueError("bad"), "ValueError: bad"),
        (ValueError("\ud800"), "ValueError: \ufffd"),
    ],
)
async def test_tool_error_is_a_result_and_its_traceback_is_logged(
    open_engine: Any, strict_model: Any, caplog: pytest.LogCaptureFixture, error: Exception, output: str
) -> None:
    caplog.set_level(logging.INFO, "turnwise")
    result, _ = await run(open_engine, strict_model([Reply(calls=[Call("fail", {}, id="f")]), "ok"]), [failing(error)])
    answered = result.messages[2].result
    assert (answered.output, answered.is_error, answered.outcome) == (output, True, "failed")
    (line,) = [record for record in caplog.records if "tool_failed" in record.getMessage()]
    if isinstance(error, ToolFailed):
        assert (line.levelname, line.exc_info) == ("INFO", None), "its text is complete"
        assert "problem=" in line.getMessage()
    else:
        assert (line.levelname, line.exc_info[1]) == ("ERROR", error)
    assert all(word in line.getMessage() for word in ("tool=fail", "call_id=f", f"chat_id={result.chat.id}"))


@pytest.mark.parametrize("raises", ["deps", "a strategy", "a model that summarises"])
async def test_describe_error_covers_deps_and_compaction(
    raises: str, caplog: pytest.LogCaptureFixture, open_chat: OpenChat
) -> None:
    def fail(*_given: Any) -> Any:
        raise OSError(SECRET)

    class Summariser(ScriptedModel):
        generate = fail

    @tool
    async def look() -> str:
        """Look."""
        return "nothing"

    settings = Settings(
        describe_error=lambda error: f"something went wrong ({type(error).__name__})",
        compaction=CompactionPolicy(strategy=fail if raises == "a strategy" else None),
    )
    model = Summariser([Reply(calls=[Call("look", {})]), "hi"])
    deps = fail if raises == "deps" else None
    async with open_chat(model, tools=[look], settings=settings, deps=deps) as (engine, chat, _):
        await engine.ask(chat.id, "hello")
        if raises != "deps":
            await engine.request_compaction(chat.id)
        await engine.wait(chat.id, until=["error" if raises == "deps" else "waiting"], timeout=60)
        visible = str([event async for event in engine.events(chat.id, follow=False)])
        visible += f"{await engine.get_chat(chat.id)} {await engine.explain(chat.id)}"
    assert "something went wrong (OSError)" in visible
    assert SECRET not in visible
    assert SECRET in caplog.text, "the log has the traceback"


@pytest.mark.parametrize(("returned", "size"), [(["x" * 200], 204), ("é" * 100, 200)], ids=["list", "text"])
async def test_output_over_the_limit_is_cut(open_engine: Any, strict_model: Any, returned: Any, size: int) -> None:
    talk = tool(name="talk", description="Talk.")(lambda: returned)
    model = strict_model([Reply(calls=[Call("talk", {})]), "done"])
    result, _ = await run(open_engine, model, [talk], settings=Settings(output_limit_bytes=99))
    kept, note = result.messages[2].result.output.rsplit("\n", 1)
    assert len(kept.encode()) <= 99
    assert note == f"[cut: {size - len(kept.encode())} of {size} bytes are not shown]"


async def test_progress_is_limited_and_must_be_json(open_engine: Any, strict_model: Any) -> None:
    @tool
    async def build(context: ToolContext) -> str:
        """Build."""
        context.report(["x" * 500])
        context.report({"a": object()})
        return "built"

    model = strict_model([Reply(calls=[Call("build", {})]), "sorry"])
    result, events = await run(open_engine, model, [build], settings=Settings(output_limit_bytes=100, coalesce=0))
    (progress,) = [event.progress for event in events if event.kind == "tool_progress"]
    kept, note = progress.split("\n")
    assert (len(kept), note) == (100, "[cut: 404 of 504 bytes are not shown]")
    assert (result.text, result.messages[2].result.is_error) == ("sorry", True)


class Inner(BaseModel):
    count: int
    when: date
    secret: SecretStr | None = None


async def test_tool_history_and_events_agree_on_arguments(open_engine: Any, strict_model: Any) -> None:
    got: list[Any] = []

    @tool
    async def take(inner: Inner, more: list[int], at: datetime) -> None:
        """Take."""
        got.append((inner, more, at.isoformat()))

    given = {"inner": '{"count": "3", "when": "2026-01-02", "secret": "s"}', "more": ["4", 5.0], "at": 0}
    model = strict_model([Reply(calls=[Call("take", given)]), "done"])
    result, events = await run(open_engine, model, [take])
    kept = result.messages[1].calls[0].arguments
    inner = {"count": 3, "when": "2026-01-02", "secret": "s"}
    assert kept == {"inner": inner, "more": [4, 5], "at": "1970-01-01T00:00:00Z"}
    shown = [event.part.complete for event in events if event.kind == "part" and event.part.complete is not None]
    assert [part["arguments"] for part in shown if part["type"] == "tool_call"] == [kept]
    assert got == [(Inner(**inner), [4, 5], "1970-01-01T00:00:00+00:00")]
