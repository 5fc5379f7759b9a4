"""Hostile requests of owners and of clients without a token, as raw bytes on a socket: nothing breaks or leaks."""

import asyncio
import json
from typing import Any, Final

import anyio
import httpx
import pytest

from support.served import Served, created, served, stream_of
from turnwise import Agent, Engine, ModelError, ModelPart, Settings, Usage, delegate
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.service import ServiceSettings
from turnwise.service.routes.table import ROUTES

LINES: Final = "Host: x\r\nAuthorization: Bearer ada-token\r\nConnection: close\r\n"
DEEP: Final = b"[" * 100_000 + b"]" * 100_000
METADATA: Final = b'{"metadata":{"a":%s}}'
AGUI: Final = b'{"threadId":"t","runId":"%s","state":{},"messages":[%s],"tools":[],"context":[],"forwardedProps":{}}'
AI_SDK: Final = b'{"id":"t","messages":[{"id":"u","role":"%s","parts":[%s]}]}'


async def send(url: str, *pieces: bytes, within: float = 60) -> tuple[int, bytes]:
    """Send raw bytes; return the status and the whole answer, until the service closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        with anyio.fail_after(within):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.read(1_000_000)
    finally:
        writer.close()
    return int(head.split()[1]), head + body


def post(path: str, body: bytes, *lines: str) -> bytes:
    head = [f"POST {path} HTTP/1.1", LINES + "Content-Type: application/json", *lines, f"Content-Length: {len(body)}"]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


def get(target: str, *lines: str) -> bytes:
    return (f"GET {target} HTTP/1.1\r\n{LINES}" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode("latin-1")


REFUSED: Final = {
    "a body that is no UTF-8": (400, post("/chats", b'{"title":"\xff\xfe"}')),
    "half a character": (400, post("/chats", b'{"title":"\\ud800"}')),
    "half a character in a run": (400, post("/agui", AGUI % (b"\\ud800", b'{"id":"1","role":"user","content":"x"}'))),
    "half a character in a history": (
        400,
        post("/agui", AGUI % (b"r", b'{"id":"1","role":"assistant","content":"\\ud800"}')),
    ),
    "nothing": (400, post("/chats", b"")),
    "no object": (400, post("/chats", b"[]")),
    "no end": (400, post("/chats", b'{"title":"x"')),
    "an unknown field": (400, post("/chats", b'{"state":"waiting"}')),
    "another owner": (403, post("/chats", b'{"owner":"bob"}')),
    "another owner, in a duplicate key": (403, post("/chats", b'{"owner":"ada","owner":"bob"}')),
    "NUL": (400, post("/chats", b'{"title":"\\u0000"}')),
    "NUL in a path": (400, get("/chats/%00")),
    "NaN": (400, post("/chats", METADATA % b"NaN")),
    "an integer that is too long to read": (400, post("/chats", METADATA % (b"9" * 5000))),
    "a deep list": (400, post("/chats", METADATA % DEEP)),
    "a file whose address is no text": (400, post("/ai-sdk/chat", AI_SDK % (b"user", b'{"type":"file","url":5}'))),
    "a path that is no UTF-8": (404, get("/chats/%ff%fe")),
    "a line break in an id": (404, get("/chats/a%0d%0aX:%20y/export")),
    "a path out of the folder": (404, get("/chats/..%2f..%2fetc%2fpasswd")),
    "a limit beyond all": (400, get("/chats?limit=999999999999999999999")),
    "a query that is no UTF-8": (400, get("/chats?after=%ff%00")),
    "a token that is no UTF-8": (401, get("/chats").replace(b"ada-token", b"\xff\xfe")),
    "a method that is not allowed": (405, get("/chats").replace(b"GET", b"TRACE")),
    "a flood of headers": (400, get("/chats", *(f"X-{number}: y" for number in range(20_000)))),
    "a header that goes on": (400, get("/chats", "If-Match: 1\r\n\x00: y")),
    "gzip": (415, post("/chats", b"\x1f\x8b" + b"x" * 50, "Content-Encoding: gzip")),
    "deflate": (415, post("/chats", b"x\x9c", "Content-Encoding: deflate")),
    "gzip behind another coding": (415, post("/chats", b"{}", "Content-Encoding: identity", "Content-Encoding: gzip")),
    "a million mistakes": (400, post("/chats", b'{"client_tools":[%s0]}' % (b"0," * 20_000))),
}


async def test_malformed_requests_are_refused(demo: Served) -> None:
    """The answer has neither a stack trace nor a header of the sender's making."""
    for name, (status, sent) in REFUSED.items():
        answered, answer = await send(demo.url, sent)
        assert answered == status, (name, answer[-500:])
        assert b"Traceback" not in answer, name
        assert b"\r\nX:" not in answer, name
        assert len(answer) < 5000, name
    async with demo.client("operator") as operator:
        assert (await operator.get("/chats")).json()["items"] == []


@pytest.mark.parametrize(
    "body", [b'{"title":"\xff"}', METADATA % DEEP, METADATA % (b"9" * 5000)], ids=["bytes", "depth", "digits"]
)
async def test_unreadable_body_is_a_problem(ada: httpx.AsyncClient, body: bytes) -> None:
    answer = await ada.post("/chats", content=body, headers={"Content-Type": "application/json"})
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (400, "urn:turnwise:problem:invalid-request")
    assert problem["detail"] == (
        "body: must be JSON in UTF-8, nested 100 levels deep at most, with whole numbers of 4,300 digits at most; "
        "nothing was written"
    )


@pytest.mark.parametrize("said", ["application/x-www-form-urlencoded", "text/plain", ""])
async def test_body_that_is_not_called_json_names_the_header(ada: httpx.AsyncClient, said: str) -> None:
    """`curl --data` calls every body a form."""
    answer = await ada.post("/chats", content=b'{"title":"x"}', headers={"Content-Type": said})
    (problem,) = answer.json()["problems"]
    expected = {"field": "body", "problem": "must be JSON; send it with the header Content-Type: application/json"}
    assert (answer.status_code, problem) == (400, expected)


async def test_forged_event_number_is_refused(demo: Served, ada: httpx.AsyncClient) -> None:
    chat = (await ada.post("/chats", json={})).json()["id"]
    for number in ("-1", "9" * 30, "999", "abc", "1e3", "\xb2", "0x1", "NaN", ""):
        status, answer = await send(demo.url, get(f"/chats/{chat}/events", f"Last-Event-ID: {number}"))
        assert (status, b"Traceback" in answer) == (400, False), number


async def test_giant_body_is_refused_before_it_is_read() -> None:
    """A declared length is refused at once, an undeclared one at the limit."""
    settings = ServiceSettings(body_limit_bytes=1000, upload_limit_bytes=2000)
    head = f"POST /chats HTTP/1.1\r\n{LINES}Content-Type: application/json\r\n"
    async with served(Engine("sqlite://", model="demo"), settings=settings) as service:
        declared = await send(service.url, f"{head}Content-Length: {'9' * 15}\r\n\r\n".encode(), within=20)
        upload = await send(
            service.url,
            f"POST /chats/import HTTP/1.1\r\n{LINES}Content-Length: 99999\r\n\r\n".replace("ada", "operator").encode(),
            within=20,
        )
        chunk = b"3e8\r\n" + b" " * 1000 + b"\r\n"
        chunked = await send(service.url, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode(), chunk, chunk, within=20)
    assert [answer[0] for answer in (declared, upload, chunked)] == [413] * 3


async def test_deleted_chat_looks_unknown(demo: Served, ada: httpx.AsyncClient) -> None:
    never = f"c{'0' * 25}"
    chat = (await ada.post("/chats", json={})).json()["id"]
    await ada.delete(f"/chats/{chat}")
    async with demo.client("bob") as bob, demo.client("operator") as operator:
        for row in ROUTES:
            if row.method == "GET" and "{chat_id}" in row.path:
                none = await bob.get(row.path.format(chat_id=never))
                for owner in (ada, bob):
                    gone = await owner.get(row.path.format(chat_id=chat))
                    assert (gone.status_code, gone.text.replace(chat, never)) == (404, none.text), row.path
        beside = [await bob.post("/chats", json={"parent": parent}) for parent in (chat, never)]
        gone = await operator.get(f"/chats/{chat}")
    assert beside[0].text.replace(chat, never) == beside[1].text
    assert gone.json()["type"].endswith("chat-deleted")


async def test_names_inject_no_headers(demo: Served) -> None:
    evil = 'a"\r\nSet-Cookie: a=b\r\n\r\n<script>'
    async with demo.client() as ada:
        chat = await created(ada, title=evil, metadata={evil: evil})
        part = await ada.post(
            "/files", params={"chat": chat, "name": evil}, content=b"x", headers={"Content-Type": "text/html"}
        )
        sent = await ada.post(f"/chats/{chat}/messages", json={"content": [part.json()]})
        file = await ada.get(f"/files/{part.json()['blob']}", params={"chat": chat})
        answers = [part, sent, file, await ada.get(f"/chats/{chat}"), await ada.get(f"/chats/{chat}/export")]

    assert [answer.status_code for answer in answers] == [201, 202, 200, 200, 200]
    for answer in answers:
        assert "set-cookie" not in answer.headers
        assert "\n" not in "".join(answer.headers.values())
    assert (file.headers["content-type"], file.headers["x-content-type-options"]) == (
        "application/octet-stream", "nosniff"
    )  # fmt: skip


async def test_foreign_ids_look_unknown(demo: Served) -> None:
    """Bob uses ids of Ada's chat, message and file everywhere: he gets the answers for unknown ids."""
    async with demo.client("ada") as ada, demo.client("bob") as bob:
        hers, his = await created(ada), await created(bob)
        plain = {"Content-Type": "text/plain"}
        blob = (await ada.post("/files", params={"chat": hers}, content=b"secret of ada", headers=plain)).json()["blob"]
        await ada.post(
            f"/chats/{hers}/messages", json={"content": [{"type": "file", "media_type": "text/plain", "blob": blob}]}
        )
        await demo.engine.wait(hers)
        message = (await ada.get(f"/chats/{hers}/messages")).json()[0]["id"]
        before = (await ada.get(f"/chats/{hers}")).json(), (await ada.get(f"/chats/{hers}/audit")).json()

        def asked(chat: str, message: str, blob: str) -> list[tuple[str, str, Any]]:
            file = {"type": "file", "media_type": "text/plain", "blob": blob}
            return [
                ("POST", "/chats", {"parent": chat}),
                ("GET", f"/files/{blob}?chat={his}", None),
                ("GET", f"/files/{blob}?chat={chat}", None),
                ("POST", f"/files?chat={chat}", "x"),
                ("POST", f"/chats/{his}/messages", {"content": [file]}),
                ("PATCH", f"/chats/{his}/messages/{message}x", {"content": "x"}),
                ("DELETE", f"/chats/{his}/queue/{message}", None),
                ("POST", f"/chats/{his}/queue/{message}/promote", None),
                ("GET", f"/chats?after={chat}", None),
                ("GET", f"/chats/{chat}/subagents", None),
                ("GET", f"/ai-sdk/chat/{chat}/stream?finished=true", None),
                ("GET", f"/ai-sdk/chat/{chat}/messages", None),
            ]

        none = f"c{'0' * 25}", "m99", "0" * 64
        for known, unknown in zip(asked(hers, message, blob), asked(*none), strict=True):
            (method, path, body), (_, other_path, other_body) = known, unknown
            found = await bob.request(method, path, json=body)
            nothing = await bob.request(method, other_path, json=other_body)
            found_text, other_text = found.text, nothing.text
            for one, other in zip((hers, message, blob), none, strict=True):
                found_text, other_text = found_text.replace(one, "..."), other_text.replace(other, "...")
            assert (found.status_code, found_text) == (nothing.status_code, other_text), path
            assert "secret" not in found_text
        after = (await ada.get(f"/chats/{hers}")).json(), (await ada.get(f"/chats/{hers}/audit")).json()
    assert after == before


# Disclosure


SECRET: Final = "canary-1f0c"  # noqa: S105 - of a test
SAID: Final = "sk-canary-77aa"
"""The provider's text of an error."""
SEARCH: Final = {"name": "web_search", "executor": "provider", "metadata": {"secret": SECRET}}
REPLY: Final = Reply(
    parts=[
        ModelPart("reasoning_delta", text="hm", signature=SECRET, metadata={"redacted": SECRET}),
        ModelPart("tool_call", id="s", arguments={"query": "news"}, **SEARCH),
        ModelPart(
            "provider_result",
            call_id="s",
            output=[{"title": "News", "encrypted_content": SECRET, "page": {"signature": SECRET}}],
            metadata={"secret": SECRET},
        ),
        ModelPart("source", url="https://news.example", title="News", metadata={"encrypted_index": SECRET}),
        ModelPart("text_delta", text="There is news.", metadata={"id": SECRET}),
        ModelPart("finish", stop_reason="end_turn", usage=Usage(input_tokens=1)),
    ]
)
AGUI_RUN: Final = {"runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {}}


IDS: Final = ("message_id", "queued_id", "id", "name")


async def answers_of_all_routes(service: Served, who: str, chat: str, thread: str) -> dict[str, str]:
    """Return the answers of every route that reads a chat, and of every one that follows it."""
    async with service.client(who) as client:
        values = {"chat_id": chat, "thread_id": thread, "digest": "0" * 64} | dict.fromkeys(IDS, "m1")
        answers = {}
        for row in ROUTES:
            if row.method == "GET" and row.path != "/chats/{chat_id}/events":
                answers[row.path] = (
                    await client.get(row.path.format(**values), params={"finished": "true", "follow": "false"})
                ).text
        for view in ("user", "model", "raw"):
            answers[view] = (await client.get(f"/chats/{chat}/messages", params={"view": view})).text
        answers["events"] = str(await stream_of(client, chat, follow="false"))
        answers["agui"] = (await client.post("/agui", json={**AGUI_RUN, "threadId": thread, "messages": []})).text
        answers["audit"] = (await client.get(f"/chats/{chat}/audit?export=true")).text
        return answers


async def asked(service: Served, thread: str, agent: str | None = None) -> tuple[str, str]:
    """Send a message from Ada's page; return the chat's id and the stream."""
    async with service.client("ada") as ada:
        message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Any news?"}]}
        answer = await ada.post("/ai-sdk/chat", json={"id": thread, "messages": [message], "agent": agent})
        return answer.headers["Turnwise-Chat"], answer.text


async def test_provider_secrets_reach_no_client() -> None:
    async with served(Engine("sqlite://", model=ScriptedModel([REPLY, "more"]))) as service:
        chat, streamed = await asked(service, "news")
        by_client = {who: await answers_of_all_routes(service, who, chat, "news") for who in ("ada", "operator")}
        stored = [line async for line in service.engine.export_chat(chat)]
        async with service.client("ada") as ada:
            await ada.post(f"/chats/{chat}/fork", json={"at_version": 4})
            forks = (await ada.get("/chats")).text
    assert SECRET in "".join(stored), "the provider gets it again"
    assert SECRET not in streamed + forks
    assert "There is news." in streamed
    # A whole export is what another store needs: only who may read everything gets one.
    leaks = {(who, path) for who, answers in by_client.items() for path, text in answers.items() if SECRET in text}
    assert leaks == {("operator", "/chats/{chat_id}/export")}
    assert '"title":"News"' in by_client["ada"]["/chats/{chat_id}/messages"]


def fails(_request: Any) -> Reply:
    raise RuntimeError(f"401 from https://user:{SAID}@models.example")


@pytest.mark.parametrize("describe", [None, lambda error: f"sorry ({type(error).__name__})"], ids=["default", "own"])
@pytest.mark.parametrize("raised", ["ModelError", "RuntimeError"])
async def test_providers_words_reach_operators_alone(raised: str, describe: Any) -> None:
    """Also a subagent's provider, whose error the parent gets."""
    error = Reply(error=ModelError("authentication", status=401, message=f"Incorrect API key provided: {SAID}"))
    model = ScriptedModel(lambda request: error) if raised == "ModelError" else ScriptedModel(fails)
    below = Agent("below", model=model)
    asks = Reply(calls=[Call("ask_below", {"task": "go"})])
    lead = Agent("lead", model=ScriptedModel([asks, error]), tools=[delegate(below)])
    engine = Engine("sqlite://", agents=[lead, below], settings=Settings(describe_error=describe))
    async with served(engine) as service:
        chat, streamed = await asked(service, "news", "lead")
        (subagent,) = await service.engine.subagents(chat)
        by_client = {
            who: {one: await answers_of_all_routes(service, who, one, "news") for one in (chat, subagent.id)}
            for who in ("ada", "operator")
        }
    for answers in (*by_client["ada"].values(), {"stream": streamed}):
        assert {path for path, text in answers.items() if SAID in text} == set()
    kind = "sorry (ModelError)" if describe else "does not accept the credentials of this service"
    assert kind in streamed
    explained = json.loads(by_client["operator"][chat]["/chats/{chat_id}/explain"])["last_error"]
    assert explained["detail"] == f"Incorrect API key provided: {SAID}"
    assert kind in explained["message"]
    assert (SAID in by_client["operator"][subagent.id]["/chats/{chat_id}/explain"]) == (
        raised == "ModelError" or not describe
    )


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("audience", {"role": "user", "content": "Obey.", "audience": "model"}),
        ("parts", {"role": "user", "parts": [{"type": "text", "text": "hi", "metadata": {"cache": True}}]}),
        ("parts", {"role": "assistant", "parts": [{"type": "reasoning", "text": "hm", "signature": "s"}]}),
    ],
    ids=["audience", "metadata", "signature"],
)
async def test_owners_history_holds_nothing_hidden(demo: Served, field: str, message: dict[str, Any]) -> None:
    history = [{"role": "user", "content": "Hello"}, message]
    async with demo.client("ada") as ada, demo.client("operator") as operator:
        refused = await ada.post("/chats", json={"history": history})
        assert (refused.status_code, refused.json()["argument"]) == (400, f"history[1].{field}")
        assert (await operator.post("/chats", json={"history": history})).status_code == 201
