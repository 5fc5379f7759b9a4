"""Requests of the client: each kind of argument at its place. The methods declare their routes."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

from support.wire.server import Answer, Server
from turnwise import Agent, ClientTool, FilePart, InvalidArgument, TextPart, ToolResult, TurnwiseError
from turnwise.client import Client, ClientSettings

CLOSED = Answer.of(
    {"type": "urn:turnwise:problem:engine-closed", "detail": "it stops", "problem": "it stops"},
    503,
    content_type="application/problem+json",
)
REFUSED = Answer.of(
    {"type": "urn:turnwise:problem:chat-not-found", "detail": "no", "chat_id": "c1"},
    404,
    content_type="application/problem+json",
)
HI = [{"type": "text", "text": "Hi!", "metadata": None}]
DIGEST = "0" * 64
PICK = ClientTool("pick", "Pick.", {"type": "object"})
PICKED = {"name": "pick", "description": "Pick.", "input_schema": {"type": "object"}, "deadline": None}
PICKED |= {"output_schema": None}


async def all_of(stream: Any) -> None:
    async for _ in stream:
        pass


@pytest.mark.parametrize(
    ("call", "request_line", "headers", "body"),
    [
        (
            lambda c: c.create_chat(
                system="s", client_tools=[PICK], owner="o", title="t", metadata={"a": 1}, parent="p", agent="a",
                model="m", parameters={"b": 2}, active_tools=("x",), history=[], client_id="k",
            ),
            "POST /chats",
            {"idempotency-key": "k"},
            {
                "system": "s", "client_tools": [PICKED], "owner": "o", "title": "t", "metadata": {"a": 1},
                "parent": "p", "agent": "a", "model": "m", "parameters": {"b": 2}, "active_tools": ["x"], "history": [],
            },
        ),
        (lambda c: c.get_chat("a b?c#d%"), "GET /chats/a%20b%3Fc%23d%25", {}, b""),
        (
            lambda c: c.list_chats(owner="o", state="error", awaiting="client", limit=3, after="c7"),
            "GET /chats?owner=o&state=error&awaiting=client&limit=3&after=c7", {}, b"",
        ),
        (lambda c: c.chat_ids("c", owner="o", limit=1001), "GET /chat-ids?owner=o&limit=1001&prefix=c", {}, b""),
        (lambda c: c.subagents("c1"), "GET /chats/c1/subagents", {}, b""),
        (lambda c: c.agents(), "GET /agents", {}, b""),
        (lambda c: c.update_chat("c1", title=None), "PATCH /chats/c1", {}, {"title": None}),
        (
            lambda c: c.update_chat("c1", metadata={}, archived=True, if_version=0),
            "PATCH /chats/c1", {"if-match": '"0"'}, {"metadata": {}, "archived": True},
        ),
        (
            lambda c: c.configure(
                "c1", agent="a", model=None, parameters={"b": 2}, active_tools=None, system="s", if_version=7
            ),
            "POST /chats/c1/configure",
            {"if-match": '"7"'},
            {"agent": "a", "model": None, "parameters": {"b": 2}, "active_tools": None, "system": "s"},
        ),
        (lambda c: c.fork("c1", at_version=3), "POST /chats/c1/fork", {}, {"at_version": 3}),
        (lambda c: c.delete_chat("c1", if_version=7), "DELETE /chats/c1", {"if-match": '"7"'}, b""),
        (lambda c: all_of(c.export_chat("c1")), "GET /chats/c1/export", {}, b""),
        (lambda c: c.import_chat(["{}", "[]\n"]), "POST /chats/import", {}, b"{}\n[]\n"),
        (
            lambda c: c.send_message("c1", [TextPart(text="Hi!")], when_busy="reject", client_id="k"),
            "POST /chats/c1/messages", {"idempotency-key": "k"}, {"content": HI, "when_busy": "reject"},
        ),
        (
            lambda c: c.ask("c1", "Hi!", client_id="k"),
            "POST /chats/c1/messages", {"idempotency-key": "k"}, {"content": HI},
        ),
        (
            lambda c: all_of(c.stream("c1", "Hi!", when_busy="interrupt", client_id="k")),
            "POST /chats/c1/messages", {"idempotency-key": "k"}, {"content": HI, "when_busy": "interrupt"},
        ),
        (
            lambda c: c.submit_tool_results("c1", (ToolResult("k", 1),), if_version=7),
            "POST /chats/c1/tool-results",
            {"if-match": '"7"'},
            {"results": [{"call_id": "k", "output": 1, "is_error": False, "attachments": []}]},
        ),
        (lambda c: c.interrupt("c1", reason="r"), "POST /chats/c1/interrupt", {}, {"reason": "r"}),
        (
            lambda c: c.edit_message("c1", "m1", "Hi!", client_id="k", if_version=7),
            "PATCH /chats/c1/messages/m1", {"if-match": '"7"', "idempotency-key": "k"}, {"content": HI},
        ),
        (lambda c: c.clear_context("c1"), "POST /chats/c1/clear", {}, b""),
        (
            lambda c: c.put_file("c1", b"AA", media_type="a/b", name="n"),
            "POST /files?chat=c1&name=n", {"content-type": "a/b"}, b"AA",
        ),
        (
            lambda c: all_of(c.open_file("c1", FilePart(media_type="a/b", blob=DIGEST))),
            f"GET /files/{DIGEST}?chat=c1", {}, b"",
        ),
        (lambda c: all_of(c.open_file("c1", "no digest")), "GET /chats/c1", {}, b""),
        (
            lambda c: c.edit_queued("c1", "q1", "Hi!", if_version=7),
            "PATCH /chats/c1/queue/q1", {"if-match": '"7"'}, {"content": HI},
        ),
        (lambda c: c.delete_queued("c1", "q1", if_version=7), "DELETE /chats/c1/queue/q1", {"if-match": '"7"'}, b""),
        (lambda c: c.promote_queued("c1", "q1"), "POST /chats/c1/queue/q1/promote", {}, b""),
        (lambda c: c.messages("c1", view="raw"), "GET /chats/c1/messages?view=raw", {}, b""),
        (lambda c: c.erase_message("c1", "m1"), "POST /chats/c1/erase", {}, {"messages": ["m1"]}),
        (lambda c: all_of(c.events("c1")), "GET /chats/c1/events?after=0&follow=true&until_rest=false", {}, b""),
        (lambda c: c.verify("c1", family=True, files=True), "GET /chats/c1/verify?family=true&files=true", {}, b""),
    ],
)  # fmt: skip
async def test_method_sends_its_request(
    server: Server, call: Callable[[Client], Any], request_line: str, headers: dict[str, str], body: Any
) -> None:
    """It retries idempotent requests; streamed bytes are requested once."""
    server.script = [CLOSED, REFUSED]
    async with Client(server.url, token="t", settings=ClientSettings(first_delay=0)) as client:
        with suppress(TurnwiseError):
            await call(client)
    asked = server.asked[0]
    assert f"{asked.method} {asked.path}" == request_line
    known = {"if-match", "idempotency-key", "content-type"} & asked.headers.keys()
    meant = {"content-type": "application/json"} if isinstance(body, dict) else {}
    assert {name: asked.headers[name] for name in known} == meant | headers
    assert (asked.body if isinstance(body, dict) else asked.content) == body
    is_safe = asked.method == "GET" or "idempotency-key" in headers or request_line.endswith("/tool-results")
    is_streamed = "/files" in request_line or request_line.endswith("/export")
    assert len(server.asked) == (2 if is_safe and not is_streamed else 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.wait("c1", timeout=1),
        lambda c: c.ask("c1", "Hi!", timeout=1),
        lambda c: c.ask("c1", "Hi!", timeout=1, agent=Agent("support", "demo")),
    ],
)
async def test_timeout_ends_waiting_for_a_hanging_service(server: Server, call: Callable[[Client], Any]) -> None:
    server.script = [Answer(None)]
    async with Client(server.url, token="t", settings=ClientSettings(timeout=60)) as client:
        with anyio.fail_after(30), pytest.raises(TimeoutError):
            await call(client)
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda c: c.send_message("c1", "Hi!", client_id="Zoë:41"), "client_id"),
        (lambda c: c.send_message("c1", "Hi!", client_id="a\n"), "client_id"),
        (lambda c: c.send_message("c1", "Hi!", client_id=" a"), "client_id"),
        (lambda c: c.create_chat(client_id="Zoë"), "client_id"),
        (lambda c: c.put_file("c1", b"x", media_type="é"), "media_type"),
        (lambda c: c.get_chat("c" * 70_000), "arguments"),
        *((lambda c, odd=odd: c.create_chat(history=odd), "history") for odd in ({}, 1, "Hi!")),
        (lambda c: c.create_chat(history=["Hi!"]), "history[0]"),
    ],
)  # fmt: skip
async def test_unsendable_argument_is_refused(server: Server, call: Callable[[Client], Any], argument: str) -> None:
    async with Client(server.url, token="t") as client:
        with pytest.raises(InvalidArgument, match="nothing was written") as refused:
            await call(client)
    assert (refused.value.argument, server.asked) == (argument, [])
