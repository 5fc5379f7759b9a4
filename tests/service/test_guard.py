"""Limits of a route: size and time of bodies, and readers that stop reading."""

from collections.abc import AsyncIterator, Iterator
from typing import Final

import anyio
import anyio.lowlevel
import httpx
import pytest
from fastapi import FastAPI

from support.clock import StillClock
from support.served import TOKENS, Served, served
from turnwise import Engine
from turnwise.service import ServiceSettings, guard, router
from turnwise.service.routes.table import OPEN_ROUTES, ROUTES

SMALL: Final = ServiceSettings(
    requests_per_second=10_000,
    burst=10_000,
    not_found_seconds=0,
    body_limit_bytes=1000,
    history_limit_bytes=2000,
    upload_limit_bytes=3000,
)
IN_PIECES: Final = 500


@pytest.fixture
async def small() -> AsyncIterator[Served]:
    async with served(Engine("sqlite://", model="demo"), settings=SMALL) as service:
        yield service


@pytest.mark.parametrize("in_pieces", [False, True], ids=["its length is said", "in pieces"])
async def test_body_limits_are_exact(small: Served, in_pieces: bool) -> None:
    async with small.client("operator") as operator:
        chat = (await operator.post("/chats", json={})).json()["id"]
        limits = {
            "/chats": 1000,
            f"/chats/{chat}/messages": 1000,
            f"/files?chat={chat}": 3000,
            "/chats/import": 3000,
            "/agui": 2000,
            "/ai-sdk/chat": 2000,
        }
        refused = {}
        for path, limit in limits.items():
            for length in (limit, limit + 1):
                body = b"{}".ljust(length)
                pieces = _pieces(body) if in_pieces else body
                answer = await operator.post(path, content=pieces, headers={"Content-Type": "application/json"})
                refused[path, length] = answer.json().get("limit") if answer.status_code == 413 else None
    assert refused == {
        (path, length): limit if length > limit else None
        for path, limit in limits.items()
        for length in (limit, limit + 1)
    }


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), IN_PIECES):
        yield body[start : start + IN_PIECES]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[StillClock]:
    clock = StillClock()
    monkeypatch.setattr(guard, "time", clock)
    return clock


PATHS: Final = sorted({row.path for row in (*ROUTES, *OPEN_ROUTES)})


async def test_every_path_answers_options_and_405() -> None:
    app, prefix = FastAPI(), "/v1"
    app.include_router(router(Engine("sqlite://", model="demo"), auth=TOKENS), prefix=prefix)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as stranger:
        for path in PATHS:
            methods = {row.method for row in (*ROUTES, *OPEN_ROUTES) if row.path == path}
            allowed = ", ".join(sorted(methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())))
            asked, refused = await stranger.options(prefix + path), await stranger.put(prefix + path)
            assert (asked.status_code, asked.content, asked.headers["allow"]) == (204, b"", allowed), path
            assert (refused.status_code, refused.headers["allow"]) == (405, allowed), path
            assert refused.headers["content-type"] == "application/problem+json"
            if "GET" in methods:
                assert (await stranger.head(prefix + path)).status_code != 405, path


async def test_head_equals_get_without_body(small: Served) -> None:
    """Load balancers request it for the health of a service; for a stream it neither waits nor takes a slot."""
    async with small.client("ada") as ada, httpx.AsyncClient(base_url=small.url, timeout=60) as stranger:
        chat = (await ada.post("/chats", json={})).json()["id"]
        for path in ("/healthz", "/readyz", "/chats", f"/chats/{chat}", f"/chats/{chat}/diagram.svg", "/chats/never"):
            head, whole = await ada.head(path), await ada.get(path)
            assert (head.status_code, head.content) == (whole.status_code, b"")
            for name in ("content-type", "content-length", "etag"):
                assert head.headers.get(name) == whole.headers.get(name), (path, name)
        assert (await ada.head(f"/chats/{chat}", headers={"If-None-Match": "*"})).status_code == 304
        for _ in range(3):
            stream = await ada.head(f"/chats/{chat}/events")
            assert (stream.status_code, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert "turnwise_open_streams 0" in (await ada.get("/metrics")).text
        assert [(await stranger.head(path)).status_code for path in ("/healthz", "/chats")] == [200, 401]


TRICKLES: Final[list[tuple[list[tuple[int, float]], bool]]] = [
    ([(2, 20), (0, 9.9), (0, 0)], True),
    ([(2, 20), (0, 10.1), (0, 0)], False),
    ([(5_000, 10)] * 5 + [(0, 5.1), (0, 0)], False),
    ([(1_000_000, 1029.9), (0, 0)], True),
    ([(1_000_000, 1030.1), (0, 0)], False),
]
"""Pieces with their bytes and seconds, and whether their body is accepted."""


async def test_slow_body_is_cut_off_below_the_rate(clock: StillClock) -> None:
    """A body may be idle for 30 s in all, and then needs 1,000 bytes a second."""

    async def body(pieces: list[tuple[int, float]]) -> AsyncIterator[bytes]:
        await anyio.lowlevel.checkpoint()
        yield b"{}"
        for length, seconds in pieces:
            await anyio.lowlevel.checkpoint()
            clock.now += seconds
            yield b" " * length

    problem = "the next piece did not come within 30 s, or all came too slowly"
    async with Engine("sqlite://", model="demo") as engine:
        app = FastAPI()
        app.include_router(router(engine, auth=TOKENS))
        headers = {"Authorization": "Bearer ada-token", "Content-Type": "application/json"}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here", headers=headers) as client:
            for pieces, is_taken in TRICKLES:
                answer = await client.post("/chats", content=body(pieces))
                assert answer.status_code == (201 if is_taken else 400), pieces
                assert answer.json().get("problems") == (None if is_taken else [{"field": "body", "problem": problem}])
