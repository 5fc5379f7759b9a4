"""Served engines: real uvicorn on a real socket, in this process, and real HTTP clients."""

import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import anyio
import httpx
import uvicorn
from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI

from turnwise import Engine
from turnwise.service import OWNERS_MAY, Authenticator, Principal, ServiceSettings, StaticTokens, create_app

TRUSTED: Final = httpx.create_ssl_context()
"""The certificates of HTTP clients, read once: a client without this reads them again, for 20 ms."""
TOKENS: Final = StaticTokens(
    {
        "ada-token": Principal("ada"),
        "bob-token": Principal("bob"),
        "operator-token": Principal("ops", "operator"),
        "auditor-token": Principal("eve", "auditor"),
    }
)
STRICT: Final = ServiceSettings(requests_per_second=10_000, burst=10_000, not_found_seconds=0)
TRUSTED_OWNERS: Final = OWNERS_MAY | {
    *("create_chat", "update_chat", "configure", "erase", "delete_chat", "compact", "clear", "export_chat")
}
GENEROUS: Final = replace(STRICT, owners_may=TRUSTED_OWNERS)
"""Owners may do everything that an application allows for a user's own chats."""


class SentEvent(NamedTuple):
    id: int | None
    event: str
    data: Any


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    engine: Engine

    @asynccontextmanager
    async def client(self, who: str = "ada", **options: Any) -> AsyncIterator[httpx.AsyncClient]:
        headers = {"Authorization": f"Bearer {who}-token"}
        async with httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=120, verify=TRUSTED, **options
        ) as client:
            yield client


Serve = Callable[..., AbstractAsyncContextManager[Served]]
"""Serves an engine; `auth` and `settings` are the service's."""


@asynccontextmanager
async def served(
    engine: Engine, *, auth: Authenticator = TOKENS, settings: ServiceSettings = GENEROUS
) -> AsyncIterator[Served]:
    async with listening(create_app(engine, auth=auth, settings=settings)) as url:
        yield Served(url, engine)


class _Server(uvicorn.Server):
    """uvicorn without its ticks, which check every 0.1 s whether it and its connections should end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.end = anyio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.end.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in [*self.servers, *(sockets or ())]:
            server.close()
        for connection in [*self.server_state.connections]:
            connection.shutdown()
        with anyio.move_on_after(5):
            while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 - uvicorn has no event for it
                await anyio.sleep(0.002)
        for task in self.server_state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


@asynccontextmanager
async def listening(app: FastAPI) -> AsyncIterator[str]:
    """Run an application on a free port, and yield its address."""
    server = _Server(uvicorn.Config(app, ws="none", log_level="warning", access_log=False))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with anyio.create_task_group() as running:
            running.start_soon(lambda: server.serve(sockets=[listener]))
            while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await anyio.sleep(0.002)
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.end.set()


@asynccontextmanager
async def streaming(
    client: httpx.AsyncClient, chat_id: str, *, headers: Mapping[str, str] | None = None, **query: Any
) -> AsyncIterator[AsyncIterator[SentEvent]]:
    path = f"/chats/{chat_id}/events"
    async with client.stream("GET", path, params=query, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield _sent_events(response)


async def _sent_events(response: httpx.Response) -> AsyncIterator[SentEvent]:
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif "event" in fields:
            number = fields.get("id")
            yield SentEvent(None if number is None else int(number), fields["event"], json.loads(fields["data"]))
            fields = {}
        else:
            fields = {}


async def stream_of(client: httpx.AsyncClient, chat_id: str, **query: Any) -> list[SentEvent]:
    """Return the events of a stream until it ends."""
    async with streaming(client, chat_id, **query) as events:
        return [event async for event in events]


async def created(client: httpx.AsyncClient, **body: Any) -> str:
    answer = await client.post("/chats", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def answered(client: httpx.AsyncClient, chat_id: str, content: Any) -> dict[str, Any]:
    """Send a message and wait until the chat rests; return the receipt."""
    sent = await client.post(f"/chats/{chat_id}/messages", json={"content": content})
    assert sent.status_code == 202, sent.text
    await stream_of(client, chat_id, after=sent.json()["seq"], until_rest=True)
    return dict(sent.json())


@contextmanager
def served_beside(engine: Callable[[], Engine], *, settings: ServiceSettings = GENEROUS) -> Iterator[str]:
    """Serve an engine in a thread of its own, for tests that block, and yield the address.

    Args:
        engine: makes it, in that thread.
        settings: of the service.
    """
    with start_blocking_portal() as portal:

        @asynccontextmanager
        async def serving() -> AsyncIterator[str]:
            async with served(engine(), settings=settings) as service:
                yield service.url

        with portal.wrap_async_context_manager(serving()) as url:
            yield url


def referred_to(part: Any) -> Iterator[str]:
    """Yield every schema that a part of the document refers to."""
    entries = list(part.values()) if isinstance(part, dict) else part if isinstance(part, list) else []
    if isinstance(part, dict) and isinstance(part.get("$ref"), str):
        yield part["$ref"].removeprefix("#/components/schemas/")
    for entry in entries:
        yield from referred_to(entry)
