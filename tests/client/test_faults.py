"""What goes wrong between a client and its service: nothing is lost, nothing comes twice, and the error says what."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from support.processes.service_process import TOKEN
from support.processes.talkative_service import ServiceProcess
from support.served import listening, served
from turnwise import ChatState, Engine, Event, TurnwiseError, fold
from turnwise.client import (
    BadAnswer,
    BodyTooLarge,
    Client,
    ClientSettings,
    NotAllowed,
    NotAuthenticated,
    RateLimited,
    ServiceFailed,
    ServiceUnreachable,
)
from turnwise.service import ServiceSettings
from turnwise.states.errors import EngineClosed

AT_ONCE = ClientSettings(patience=0, timeout=20)


async def followed(client: Client, chat_id: str, after_part: Callable[[], None]) -> list[Event]:
    """Follow a chat until it rests; something happens once the third part is there."""
    events: list[Event] = []
    async with aclosing(client.events(chat_id, until_rest=True)) as told:
        async for event in told:
            events.append(event)
            if [one.kind for one in events].count("part") == 3 and event.kind == "part":
                await anyio.to_thread.run_sync(after_part)
    return events


@pytest.mark.parametrize("end", ["kill", pytest.param("stop", marks=pytest.mark.deep)])
async def test_stream_survives_a_service_restart(service: ServiceProcess, end: str) -> None:
    def restart() -> None:
        getattr(service, end)()
        service.start()

    async with Client(service.url, token=TOKEN, settings=ClientSettings(first_delay=0.05)) as client:
        chat = await client.create_chat()
        await client.send_message(chat.id, "slow")
        events = await followed(client, chat.id, restart)
        stored = [event async for event in client.events(chat.id, follow=False)]
        messages = await client.messages(chat.id)

    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events == stored
    assert fold(events).messages == messages
    assert messages[-1].text.endswith("word59")


@pytest.mark.deep
async def test_ask_survives_a_killed_service(service: ServiceProcess) -> None:
    async with Client(service.url, token=TOKEN, settings=ClientSettings(first_delay=0.05)) as client:
        chat = await client.create_chat()

        async def kill_and_start() -> None:
            await client.wait(chat.id, until={"streaming"}, timeout=30)
            await anyio.to_thread.run_sync(service.kill)
            await anyio.to_thread.run_sync(service.start)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill_and_start)
            result = await client.ask(chat.id, "crawl", timeout=60)
        messages = await client.messages(chat.id)

    assert result.stop_reason == "end_turn"
    assert result.messages == messages
    assert [message.text for message in messages if message.role == "user"] == ["crawl"]


async def test_unreachable_service_is_named() -> None:
    async with Client("http://127.0.0.1:9", token="t", settings=AT_ONCE) as client:
        with pytest.raises(ServiceUnreachable) as once:
            await client.create_chat()
        with pytest.raises(ServiceUnreachable):
            [event async for event in client.events("c1")]
    short = ClientSettings(patience=0.3, first_delay=0.05)
    async with Client("http://127.0.0.1:9", token="t", settings=short) as client:
        began = anyio.current_time()
        with pytest.raises(ServiceUnreachable):
            await client.send_message("c1", "x")
        took = anyio.current_time() - began

    assert (once.value.url, once.value.sent) == ("http://127.0.0.1:9", False)
    assert "nothing was written" in str(once.value)
    assert 0.1 < took < 20


async def test_lost_answer_is_retried_only_if_safe() -> None:
    """A service that takes the first of each request, and cuts the line instead of answering."""
    heard: list[str] = []
    async with served(Engine("sqlite://", model="demo")) as service:

        async def serve_one(stream: anyio.abc.SocketStream) -> None:
            async with stream, await anyio.connect_tcp("127.0.0.1", int(service.url.rpartition(":")[2])) as behind:
                head = await stream.receive()
                line = head.split(b"\r\n")[0].decode()
                is_lost = line.startswith("POST") and heard.count(line) == 0
                heard.append(line)
                await behind.send(head.replace(b"\r\nHost", b"\r\nConnection: close\r\nHost", 1))
                while b"\r\n\r\n" in head and head.endswith(b"\r\n\r\n") and line.startswith("POST"):
                    head = await stream.receive()
                    await behind.send(head)
                try:
                    while True:
                        answer = await behind.receive()
                        if not is_lost:
                            await stream.send(answer)
                except anyio.EndOfStream:
                    pass

        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - no Django
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve_one)
            async with Client(f"http://127.0.0.1:{port}", token="ada-token") as client:
                chat = await client.create_chat(title="once")
                with pytest.raises(ServiceUnreachable) as lost:
                    await client.fork(chat.id, at_version=1)
                chats = (await client.list_chats()).items
                receipt = await client.send_message(chat.id, "once")
                messages = await client.wait(chat.id, timeout=20)
                said = await client.messages(chat.id)
            tasks.cancel_scope.cancel()

    assert (lost.value.sent, "it may have been done" in str(lost.value)) == (True, True)
    assert len(chats) == 2, "one created, one forked"
    assert (receipt.replayed, messages.state) == (True, ChatState.waiting)
    assert [message.text for message in said if message.role == "user"] == ["once"]
    assert heard.count(f"POST /chats/{chat.id}/fork HTTP/1.1") == 1


async def test_token_role_and_limits_are_distinct_errors() -> None:
    tight = ServiceSettings(requests_per_second=0, burst=3, body_limit_bytes=1000)
    async with served(Engine("sqlite://", model="demo"), settings=tight) as service:
        async with Client(service.url, token="wrong", settings=AT_ONCE) as nobody:
            with pytest.raises(NotAuthenticated, match="knows nobody with this token"):
                await nobody.list_chats()
            with pytest.raises(NotAuthenticated):
                [event async for event in nobody.events("c1")]
        async with Client(service.url, token="auditor-token", settings=AT_ONCE) as auditor:
            with pytest.raises(NotAllowed) as role:
                await auditor.create_chat()
        async with Client(service.url, token="ada-token", settings=AT_ONCE) as ada:
            chat = await ada.create_chat()
            with pytest.raises(BodyTooLarge) as large:
                await ada.send_message(chat.id, "x" * 2000)
            with pytest.raises(NotAllowed):
                await ada.compactions(chat.id)
            with pytest.raises(RateLimited) as limited:
                await ada.get_chat(chat.id)

    assert (role.value.role, large.value.limit) == ("auditor", 1000)
    assert limited.value.retry_after == 60


@asynccontextmanager
async def answering(answer: Callable[[Request], Response]) -> AsyncIterator[str]:
    """Give the address of a server that answers everything so."""
    app = FastAPI()

    async def any_path(request: Request) -> Response:
        await request.body()
        return answer(request)

    app.add_api_route("/{path:path}", any_path, methods=["GET", "POST", "PATCH", "DELETE"])
    async with listening(app) as url:
        yield url


def problem(status: int, **fields: Any) -> Response:
    return Response(json.dumps(fields), status, media_type="application/problem+json")


KIND = "urn:turnwise:problem:"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda _: PlainTextResponse("<html>Welcome</html>"), BadAnswer),
        (lambda _: Response(b"\xff\xfe", media_type="application/json"), BadAnswer),
        (lambda _: PlainTextResponse("elsewhere", 307, headers={"Location": "http://127.0.0.1:9/"}), BadAnswer),
        (lambda _: PlainTextResponse("not here", 404), BadAnswer),
        (lambda _: problem(429, type=f"{KIND}queue-full", detail="full"), BadAnswer),
        (lambda _: PlainTextResponse("bad gateway", 502), ServiceFailed),
        (lambda _: problem(503, type=f"{KIND}engine-closed", detail="stops; nothing", problem="stops"), EngineClosed),
    ],
)
async def test_nonsense_answer_is_an_error_with_its_url(
    answer: Callable[[Request], Response], kind: type[TurnwiseError]
) -> None:
    async with answering(answer) as url, Client(url, token="t", settings=AT_ONCE) as client:
        for call in (client.get_chat("c1"), client.send_message("c1", "x"), client.delete_chat("c1")):
            with pytest.raises(kind) as told:
                await call
            assert type(told.value) is kind
        with pytest.raises(kind):
            [event async for event in client.events("c1")]
        if kind is BadAnswer:
            assert url in str(told.value)
