"""Tools of MCP servers: declarations, answers, and servers that die or fall silent."""

import math
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import httpx2
import mcp
import pytest
import structlog
from mcp.server import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    REQUEST_TIMEOUT,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ListToolsResult,
    PaginatedRequestParams,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from tests.engine import mcp_server
from tests.engine.mcp_sessions import OFFERED, Answer, serving_sessions

from support.engines import OpenChat
from support.events import events_of, seen
from turnwise import Engine, FilePart, InvalidArgument, SettingsError, Tool, ToolContext
from turnwise.engine.mcp import MCPAnswerLost, MCPToolFailed, MCPTools, MCPUnreachable
from turnwise.providers.scripted import Call, Reply
from turnwise.states.events import ToolProgressEvent
from turnwise.states.facts import Profile

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


def serving(*tools: mcp.types.Tool, answer: Callable[[str, Any], CallToolResult] | None = None) -> Any:
    """Return a server of those tools; `answer` gets a call's tool and arguments."""

    async def offered(*_: Any) -> ListToolsResult:
        return ListToolsResult(tools=[*tools])

    async def called(_: Any, params: Any) -> CallToolResult:
        assert answer is not None
        return answer(params.name, params.arguments)

    return Server("things", on_list_tools=offered, on_call_tool=called)


def tools_of(server: Any, **options: Any) -> MCPTools:
    return MCPTools(lambda: mcp.Client(server), name="things", **options)


def offered(name: str = "give", **more: Any) -> mcp.types.Tool:
    return mcp.types.Tool(name=name, input_schema=SCHEMA, **more)


async def output_of(tool: Tool, report: Callable[[Any], None] = lambda _: None, **arguments: Any) -> Any:
    """Run a tool as the engine does; return its result."""
    context = ToolContext.for_tests(report=report)
    assert tool.context_parameter is not None
    return await tool.run(**{tool.context_parameter: context}, **arguments)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: MCPTools(print, name=" "), "name: must say something; it was empty"),
        (lambda: MCPTools.stdio("server", env={"PORT": 80}), r"env\['PORT'\]: must be a string; it was 80"),
        (lambda: MCPTools.http("host/mcp"), "url: must be like https://host/mcp; it was 'host/mcp'"),
        (lambda: MCPTools.http("http://h", auth=7), "auth: must be an httpx.Auth, .user, password. or a function"),
        (lambda: MCPTools.http("http://h", headers={"A": None}), r"headers\['A'\]: must be a string; it was None"),
        (lambda: MCPTools.stdio("server", connect_timeout=math.inf), "connect_timeout: must be finite; it was inf"),
    ],
)
def test_invalid_server_arguments_are_refused(make: Callable[[], MCPTools], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{problem}"):
        make()


async def test_tools_are_unknown_before_they_are_entered() -> None:
    """Otherwise an engine in a module would silently lack them. Tools that were entered once stay as they were."""
    tools = tools_of(serving(offered()), prefix="of_")
    with pytest.raises(SettingsError, match=r"^MCPTools 'things': has no tools before .*: enter it first"):
        Engine("sqlite://", model="demo", tools=tools.tools)
    async with tools:
        pass
    assert [tool.name for tool in tools.tools] == ["of_give"]


GOOD = {"name": "good", "inputSchema": {"type": "object"}}


def schema_of(**words: Any) -> dict[str, Any]:
    return {"inputSchema": {"type": "object"} | words}


BAD = [
    (schema_of(type="array"), "inputSchema.type: Input should be 'object'"),
    (schema_of(type=None), "inputSchema.type"),
    ({}, "inputSchema: Field required"),
    (schema_of() | {"name": 7}, "name: Input should be a valid string"),
    ("bad", "Input should be"),
    (schema_of(properties={"a": {"type": "strnig"}}), "not valid at properties.a.type"),
    (schema_of(properties={"a": {"$ref": "#/$defs/Missing"}}), "refers to '#/$defs/Missing'"),
    (schema_of(anyOf=[{"required": ["a"]}]), "has anyOf at the top"),
    (schema_of() | {"name": ""}, "needs a name"),
    (schema_of() | {"name": "go od", "description": "a\0b"}, "NUL"),
    (schema_of() | {"execution": {"taskSupport": "required"}}, "as a task"),
    (GOOD, "another tool of the server is named 'good'"),
]


async def test_bad_tools_are_left_out_by_name() -> None:
    """Good tools are offered in any position."""
    tools = [{"name": f"bad{at}"} | tool if isinstance(tool, dict) else tool for at, (tool, _) in enumerate(BAD)]
    for listed in ([*tools, GOOD], [GOOD, *tools]):
        with structlog.testing.capture_logs() as logs:
            async with serving_sessions(tools=listed) as server, MCPTools.http(server.url) as connected:
                assert [tool.name for tool in connected.tools] == ["good"]
        lines = [line for line in logs if line["event"] == "tool_left_out"]
        assert {line["source"] for line in lines} == {server.url}
        assert len(lines) == len(BAD)
        assert [why for (_, why), line in zip(BAD, lines, strict=True) if why not in line["problem"]] == []


async def test_adapted_tools_and_names_taken_by_others() -> None:
    """The program's own tools come first, then servers in their order."""

    def look() -> str:
        """Look."""
        return "own"

    def adapt(adapted: Tool) -> Tool | None:
        if adapted.name == "broken":
            raise RuntimeError("no such tool")
        return None if adapted.name == "unwanted" else replace(adapted, policy="ask")

    one = tools_of(serving(*map(offered, ["look", "give", "broken", "unwanted"])), adapt=adapt)
    other = tools_of(serving(*map(offered, ["give", "take"])))
    engine = Engine("sqlite://", model="demo", tools=[one, other, look])
    assert {*engine.agents["default"]} == {"look"}
    with structlog.testing.capture_logs() as logs:
        async with engine:
            toolbox = engine._agents.toolbox(Profile(created_at=datetime.now(UTC)))
    expected = {"look": "auto", "give": "ask", "take": "auto"}
    assert {name: tool.policy for name, tool in toolbox.tools.items()} == expected
    assert toolbox.tools["look"].source is None
    assert {line["tool"] for line in logs if line["event"] == "tool_left_out"} == {"broken", "look", "give"}


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_engine_follows_changed_tools(strict_model: Any, mode: str, open_chat: OpenChat) -> None:
    """A step offers the server's current tools. A call of a removed tool is answered nevertheless."""
    server = MCPServer("growing", log_level="ERROR")

    @server.tool(structured_output=False)
    async def change(context: Context) -> str:
        """Change the tools."""
        server.remove_tool("old")
        server.add_tool(lambda: "new", name="new", description="New.", structured_output=False)
        await (context.session.send_tool_list_changed() if mode == "legacy" else context.notify_tools_changed())
        return "changed"

    server.add_tool(lambda: "old", name="old", description="Old.", structured_output=False)
    script = [
        Reply(calls=[Call("change", {}), Call("old", {})]),
        Reply(calls=[Call("new", {}), Call("old", {})]),
        "done",
    ]
    model = strict_model(script)
    mcp_tools = MCPTools(lambda: mcp.Client(server, mode=mode), name="growing")
    async with open_chat(model, tools=[mcp_tools]) as (engine, chat, _):
        answer = await engine.ask(chat.id, "go", timeout=60)
        assert {*engine.agents["default"]} == {"change", "old", "new"}, "a call of the old one may wait elsewhere"
    expected = [["change", "old"], ["change", "new"]]
    assert [[tool.name for tool in request.tools] for request in model.requests[:2]] == expected
    outputs = [str(message.result.output) for message in answer.messages if message.result is not None]
    assert outputs[0] == "changed"
    assert "Unknown tool" in outputs[1]
    assert outputs[2:] == ["new", "There is no tool named 'old'. Tools: change, new."]


@pytest.mark.parametrize(
    ("hints", "parallel_safe", "crash"),
    [
        (None, False, "at_most_once"),
        ({"read_only_hint": False, "idempotent_hint": False}, False, "at_most_once"),
        ({"read_only_hint": True, "idempotent_hint": False}, True, "at_least_once"),
        ({"read_only_hint": False, "idempotent_hint": True}, False, "at_least_once"),
    ],
    ids=str,
)
async def test_annotations_decide_parallel_and_crash_policies(
    hints: dict[str, bool] | None, *, parallel_safe: bool, crash: str
) -> None:
    annotations = None if hints is None else ToolAnnotations(**hints)
    async with tools_of(serving(offered(annotations=annotations))) as tools:
        (tool,) = tools.tools
    assert (tool.parallel_safe, tool.crash) == (parallel_safe, crash)


async def test_server_is_called_by_its_own_tool_name() -> None:
    received: list[Any] = []

    def answer(name: str, arguments: Any) -> CallToolResult:
        received.append((name, arguments))
        return CallToolResult(content=[])

    async with tools_of(serving(offered("give.one"), answer=answer), prefix="my.") as tools:
        (tool,) = tools.tools
        assert (await output_of(tool, n=3)).output == ""
    assert tool.name == "my_give_one"
    assert received == [("give.one", {"n": 3})]


async def test_long_names_stay_unique() -> None:
    names = ["n" * 64, "n" * 64 + "a", "n" * 64 + "b"]
    async with tools_of(serving(*map(offered, names))) as tools:
        fits, first, second = (tool.name for tool in tools.tools)
    assert (fits, len(first), len(second), len({first, second})) == (names[0], 64, 64, 2)
    assert first[:56] == second[:56] == "n" * 55 + "_"
    async with tools_of(serving(*map(offered, names))) as again:
        assert [tool.name for tool in again.tools] == [fits, first, second]


def said_by(name: str) -> CallToolResult:
    return CallToolResult(content=[text(name)])


def text(content: str) -> TextContent:
    return TextContent(type="text", text=content)


def link(**more: Any) -> ResourceLink:
    return ResourceLink(type="resource_link", name="dots", uri="https://a.example/dots", **more)


def held(resource: Any) -> EmbeddedResource:
    return EmbeddedResource(type="resource", resource=resource)


@pytest.mark.parametrize(
    ("content", "output", "files"),
    [
        ([], "", ()),
        ([text("one"), text("two")], "one\ntwo", ()),
        ([link(), link(title="Dots")], "dots: https://a.example/dots\nDots: https://a.example/dots", ()),
        ([held(TextResourceContents(uri="note://1", text="a note"))], "a note", ()),
        (
            [ImageContent(type="image", data="AAAA", mime_type="image/png"), text("so")],
            "so",
            (FilePart(media_type="image/png", data="AAAA"),),
        ),
        (
            [AudioContent(type="audio", data="AAAA", mime_type="audio/wav")],
            "",
            (FilePart(media_type="audio/wav", data="AAAA"),),
        ),
        (
            [held(BlobResourceContents(uri="disk://1", blob="AAAA"))],
            "",
            (FilePart(media_type="application/octet-stream", data="AAAA", name="disk://1"),),
        ),
    ],
)
async def test_content_becomes_text_and_files(content: list[Any], output: str, files: Any) -> None:
    plain = CallToolResult(content=content)
    structured = CallToolResult(content=content, structured_content={})
    answers = [plain, structured]
    async with tools_of(serving(offered(), answer=lambda *_: answers.pop(0))) as tools:
        (tool,) = tools.tools
        for expected in (output, {}):
            result = await output_of(tool)
            assert (result.output, result.attachments) == (expected, files)


PAID = {"type": "text", "text": "paid 30"}
BOOKED = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


STRANGE = [
    ({"content": [PAID]}, BOOKED, "paid 30\n[the server declared an output schema for this tool, and sent no"),
    ({"content": [PAID], "structuredContent": {"id": "x"}}, BOOKED, 'paid 30\n{"id":"x"}\n[the result does not fit'),
    ({"content": [], "structuredContent": {"id": "x"}}, BOOKED, '{"id":"x"}\n[the result does not fit the output'),
    ({"content": [PAID], "structuredContent": {"id": 7}}, {"type": "object", "$ref": "#/$defs/Gone"}, "paid 30\n"),
    ({"content": [PAID], "structuredContent": {"id": 7}}, {"type": "strnig"}, "paid 30\n"),
    ({"content": [PAID], "structuredContent": {"id": 7}}, BOOKED, {"id": 7}),
    ({"structuredContent": {"id": 7}}, None, {"id": 7}),
    ({"structuredContent": [7]}, None, "[7]"),
    ({"content": [PAID, {"type": "video", "data": "AAAA"}]}, None, "paid 30\n[a block of type 'video' was left out"),
    ({"content": [PAID, 7, {"type": "verse", "text": "well"}]}, None, "paid 30\nwell\n[a block of type 'None'"),
    ({"content": "paid 30"}, None, "paid 30"),
    ({"content": PAID, "isError": {}}, None, "paid 30\n[the server did not say in a readable way whether"),
    ({"content": [PAID, {"type": "image", "data": "?", "mimeType": "image/png"}]}, None, "paid 30\n[a file was left"),
    ({"content": [PAID], "_meta": 3}, None, "paid 30"),
    ({"x": 1}, None, ""),
]


async def test_strange_answer_is_a_result_with_a_note(open_engine: Any, strict_model: Any) -> None:
    """The tool has run, and the note says so."""
    results = {f"give_{number}": result for number, (result, *_) in enumerate(STRANGE)}
    listed = [
        OFFERED | {"name": name} | ({} if schema is None else {"outputSchema": schema})
        for name, (_, schema, _) in zip(results, STRANGE, strict=True)
    ]
    async with serving_sessions(tools=listed, results=results) as server:
        calls = [Call(name, {}) for name in results]
        answers = await result_of(open_engine, strict_model, [MCPTools.http(server.url)], *calls)
        assert server.runs == len(calls)
    for answer, (*_, output) in zip(answers, STRANGE, strict=True):
        assert answer.outcome == "succeeded"
        assert answer.output == output or (str(answer.output).startswith(output) and answer.output.endswith("]"))


class Renewed(httpx2.Auth):
    """Provides a token, and another one if the server refuses it."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = [*tokens]

    def auth_flow(self, request: Any) -> Any:
        request.headers["Authorization"] = f"Bearer {self.tokens[0]}"
        answer = yield request
        if answer.status_code == 401 and len(self.tokens) > 1:
            self.tokens.pop(0)
            request.headers["Authorization"] = f"Bearer {self.tokens[0]}"
            yield request


async def test_expired_token_is_said_and_can_be_renewed() -> None:
    """No tool ran, the session continues, and each request asks for the credentials."""
    old, new = "t1", "t2"
    mine = {"Authorization": f"Bearer {old}"}

    def bring(request: Any) -> Any:
        request.headers.update(mine)
        return request

    for auth in (bring, Renewed(old, new), OfHttpx(old, new)):
        async with serving_sessions(token=old) as server, MCPTools.http(server.url, auth=auth) as tools:
            (tool,) = tools.tools
            assert (await output_of(tool)).output == "given 1"
            server.token = new
            if auth is bring:
                with pytest.raises(MCPUnreachable, match=r"refused the request: 401 Unauthorized; .*auth=") as refused:
                    await output_of(tool)
                assert (refused.value.status, isinstance(refused.value, MCPAnswerLost)) == (401, False)
                mine["Authorization"] = f"Bearer {new}"
            assert (await output_of(tool)).output == "given 2"
            assert server.session_count == 1
    async with serving_sessions(token=new) as server:
        with pytest.raises(MCPUnreachable, match="401 Unauthorized"):
            await MCPTools.http(server.url, auth=("user", "password")).__aenter__()


class OfHttpx(httpx.Auth):
    """The same for the httpx package that most programs have."""

    auth_flow = Renewed.auth_flow

    def __init__(self, *tokens: str) -> None:
        self.tokens = [*tokens]


DOT = ImageContent(type="image", data="AAAA", mime_type="image/png")


@pytest.mark.parametrize(
    ("content", "structured", "problem"),
    [
        ([text("no"), text("luck")], {"n": 1}, "no\nluck"),
        ([DOT], {"n": 1}, '{"n":1}\n[left out, as the call failed: image/png]'),
        ([text("see"), DOT], None, "see\n[left out, as the call failed: image/png]"),
        ([], {}, "it does not say why"),
    ],
)
async def test_failure_has_the_words_of_the_server(content: list[Any], structured: Any, problem: str) -> None:
    answer = CallToolResult(content=content, is_error=True, structured_content=structured)
    async with tools_of(serving(offered(), answer=lambda *_: answer)) as tools:
        (tool,) = tools.tools
        with pytest.raises(MCPToolFailed, match=f"^{re.escape(problem)}$"):
            await output_of(tool)


class Breakable:
    """Makes clients of a server, over transports that a test can break."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._broken: list[anyio.Event] = []
        self.left = 0

    @property
    def connections(self) -> int:
        return len(self._broken)

    def break_last(self) -> None:
        self._broken[-1].set()

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[mcp.Client]:
        broken = anyio.Event()
        self._broken.append(broken)

        async def break_down() -> None:
            await broken.wait()
            raise ConnectionResetError("the wire was cut")

        try:
            async with mcp.Client(self._server) as client, anyio.create_task_group() as tasks:
                tasks.start_soon(break_down)
                yield client
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()  # to stop a server takes its time
            self.left += 1


async def test_calls_share_a_new_connection_after_a_broken_transport() -> None:
    connect = Breakable(mcp_server.server)

    async def add(tools: MCPTools) -> None:
        (adding,) = (tool for tool in tools.tools if tool.name == "add")
        sums.append((await output_of(adding, first=1, second=2)).output)

    sums: list[Any] = []
    async with MCPTools(connect, name="numbers") as tools:
        (waiting,) = (tool for tool in tools.tools if tool.name == "wait_for_ever")
        with pytest.raises(MCPUnreachable, match="answer: ConnectionResetError: the wire was cut") as broken:
            await output_of(waiting, lambda _: connect.break_last())
        assert broken.value.server == "numbers"
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(add, tools)
        await add(tools)
    assert sums == ["3"] * 4
    assert (connect.connections, connect.left) == (2, 2)


@pytest.mark.parametrize(("code", "is_lost"), [(CONNECTION_CLOSED, True), (INVALID_PARAMS, False)])
async def test_only_a_closed_connection_is_reopened(code: int, *, is_lost: bool) -> None:
    """A process that was started keeps its memory when it refuses calls, -32000 included: any server error has it."""

    def answer(_name: str, _arguments: Any) -> CallToolResult:
        if not refusals:
            return CallToolResult(content=[text("done")])
        raise refusals.pop()

    refusals = [mcp.MCPError(code=code, message="not so")]
    connect = Breakable(serving(offered(), answer=answer))
    async with MCPTools(connect, name="things") as tools:
        (tool,) = tools.tools
        with pytest.raises(MCPAnswerLost if is_lost else mcp.MCPError, match="not so"):
            await output_of(tool)
        assert (await output_of(tool)).output == "done"
    assert connect.connections == 1


@pytest.mark.parametrize(
    "stranger",
    [
        Answer(404),
        Answer.refusal(404, REQUEST_TIMEOUT, "Session not found"),
        Answer.refusal(400, CONNECTION_CLOSED, "Bad Request: No valid session ID provided"),
    ],
    ids=lambda answer: f"{answer.status} {answer.body.decode()}",
)
async def test_expired_http_session_is_replaced(stranger: Answer) -> None:
    """Otherwise no call would succeed after a restart, a deployment or idle time, until this process ends."""
    async with serving_sessions(stranger) as server, MCPTools.http(server.url) as tools:
        (tool,) = tools.tools
        for restarts in range(2):
            assert (await output_of(tool)).output == f"given {restarts + 1}"
            server.forget()
            with pytest.raises(MCPUnreachable, match=re.escape(server.url)) as forgotten:
                await output_of(tool)
            assert not isinstance(forgotten.value, MCPAnswerLost), "the call was not made"
        assert (await output_of(tool)).output == "given 3"
    assert (server.session_count, server.runs) == (3, 3)


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_call_with_a_lost_answer_is_not_repeated(*, is_restarted: bool) -> None:
    lost = Answer(502, b"<html>Bad Gateway</html>", "text/html")
    async with serving_sessions(lost) as server, MCPTools.http(server.url) as tools:
        (tool,) = tools.tools
        server.failing = [lost]
        server.on_run = server.forget if is_restarted else None
        with pytest.raises(MCPAnswerLost, match=r"no readable answer: it answered 502 Bad Gateway$"):
            await output_of(tool)
        assert server.runs == 1
        assert (await output_of(tool)).output == "given 2"
    assert server.session_count == (2 if is_restarted else 1)


# Connections


async def report(*_: Any) -> None:
    """Ignore progress."""


async def test_endless_pages_are_refused() -> None:
    async def pages(_: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        following = {None: "b", "b": "c", "c": "b"}[None if params is None else params.cursor]
        return ListToolsResult(tools=[mcp.types.Tool(name="x", input_schema={"type": "object"})], next_cursor=following)

    server: Any = mcp.server.Server("pages", on_list_tools=pages)
    with anyio.fail_after(60), pytest.raises(MCPUnreachable, match="its list of tools has no end"):
        await MCPTools(lambda: mcp.Client(server), name="pages").__aenter__()


async def test_server_without_tools_offers_none() -> None:
    async with tools_of(Server("prompts")) as tools:
        assert tools.tools == ()


async def test_empty_cursor_ends_the_list() -> None:
    async def one_page(*_: Any) -> ListToolsResult:
        return ListToolsResult(tools=[offered()], next_cursor="")

    async with tools_of(Server("pages", on_list_tools=one_page)) as tools:
        assert [tool.name for tool in tools.tools] == ["give"]


LINES = r"""
import json, sys
deep = '{"type": "object", "properties": {"a": ' * 120 + "{}" + "}}" * 120
results = {"half": '{"content": [{"type": "text", "text": "so \\ud83d"}]}', "none": "null"}
schemas = {**dict.fromkeys(results, '{"type": "object"}'), "deep": deep}
tools = ['{"name": "%s", "inputSchema": %s}' % item for item in schemas.items()]
hello = {"capabilities": {"tools": {}}, "serverInfo": {"name": "lines", "version": "1"}}
for line in sys.stdin:
    asked = json.loads(line)
    match asked["method"]:
        case "initialize":
            answer = '"result": ' + json.dumps({**hello, "protocolVersion": asked["params"]["protocolVersion"]})
        case "tools/list":
            answer = '"result": {"tools": [%s]}' % ", ".join(tools)
        case "tools/call":
            answer = '"result": ' + results[asked["params"]["name"]]
        case _:
            answer = '"error": {"code": -32601, "message": "no"}'
    if "id" in asked:
        print('{"id": %s}' % json.dumps(asked["id"]), flush=True)
        print('{"jsonrpc": "2.0", "id": %s, %s}' % (json.dumps(asked["id"]), answer), flush=True)
"""


async def test_unreadable_line_costs_no_other_tool_and_no_wait() -> None:
    """The SDK drops lines with half of an emoji, deep nesting or a wrong form; the request would wait for ever."""
    with anyio.fail_after(60):
        async with MCPTools.stdio(sys.executable, ["-c", LINES]) as tools:
            half, none = tools.tools
            assert (await output_of(half)).output == "so \ufffd"
            with pytest.raises(MCPAnswerLost, match="cannot be parsed"):
                await output_of(none)


async def test_silent_server_is_unreachable_after_the_timeout() -> None:
    async def silence(*_: Any) -> ListToolsResult:
        await anyio.sleep_forever()
        raise AssertionError

    server: Any = mcp.server.Server("silence", on_list_tools=silence)
    tools = MCPTools(lambda: mcp.Client(server), name="silence", connect_timeout=0.1)
    with anyio.fail_after(60), pytest.raises(MCPUnreachable, match=r"it has not listed its tools within 0\.1 s"):
        await tools.__aenter__()


# Processes


SERVER = mcp_server.__file__
ADDRESS = re.compile(r"running on (http://[\d.]+:\d+)")


def over_stdio(**options: Any) -> MCPTools:
    return MCPTools.stdio(sys.executable, [SERVER], **options)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Run one server for every test that neither ends it nor asks how it was started; return its address."""
    with subprocess.Popen([sys.executable, SERVER, "http", "0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            address = next(found for line in process.stderr if (found := ADDRESS.search(line)))
            threading.Thread(target=process.stderr.read, daemon=True).start()  # or what it logs fills the pipe
            yield f"{address[1]}/mcp"
        finally:
            process.kill()


async def result_of(open_engine: Any, strict_model: Any, tools: Any, *calls: Call) -> list[Any]:
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
    """The server gets the given environment and folder, not ours."""
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
    assert (died.outcome, "MCPAnswerLost" in died.output) == ("unknown", True)
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
