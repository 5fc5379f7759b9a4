"""An application of its own: what it serves beside the routes, and which pages may call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import httpx
import pytest

from support.served import TOKENS, listening, served
from turnwise import Engine, InvalidArgument, SettingsError
from turnwise.service import ServiceSettings, create_app, describe, problem_response, router, serve

ORIGIN = "https://shop.example"


async def test_allowed_origin_may_call_and_read_headers() -> None:
    settings = ServiceSettings(allow_origins=(ORIGIN,))
    asking = {"Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "if-match, x-odd"}
    async with (
        served(Engine("sqlite://", model="demo"), settings=settings) as service,
        service.client() as ada,
        httpx.AsyncClient(base_url=service.url) as nobody,
    ):
        before, other = [
            await nobody.options("/chats/c1", headers=asking | {"Origin": origin})
            for origin in (ORIGIN, "https://evil.example")
        ]
        made = await ada.post("/chats", json={}, headers={"Origin": ORIGIN})
    allowed = before.headers["access-control-allow-methods"].split(", ")
    assert before.status_code == 200
    assert {"GET", "POST", "PATCH", "DELETE"} <= set(allowed)
    assert before.headers["access-control-allow-headers"] == "if-match, x-odd"
    assert before.headers["access-control-allow-origin"] == made.headers["access-control-allow-origin"] == ORIGIN
    exposed = made.headers["access-control-expose-headers"]
    assert exposed == "ETag, Link, Location, Retry-After, Turnwise-Chat, X-Problem-After"
    assert (other.status_code, "access-control-allow-origin" in other.headers) == (400, False)


async def test_unknown_path_and_method_are_problems(ada: httpx.AsyncClient) -> None:
    """FastAPI's own documentation pages are unknown paths, too."""
    for path in ("/docs", "/redoc", "/nowhere"):
        answer = await ada.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json"), path
        assert answer.json() == {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "Not Found"}
    other_way = await ada.put("/chats")
    assert (other_way.status_code, other_way.headers["content-type"]) == (405, "application/problem+json")
    assert other_way.headers["allow"] == "GET, HEAD, OPTIONS, POST"
    assert (await ada.get("/openapi.json")).json()["info"]["title"] == "turnwise"
    assert (await ada.get("/inspector")).is_success


async def test_router_refuses_allow_origins() -> None:
    """Routes would ignore them: only an application can answer preflight requests."""
    with pytest.raises(SettingsError, match=r"^allow_origins: .*CORSMiddleware"):
        router(Engine("sqlite://", model="demo"), auth=TOKENS, settings=ServiceSettings(allow_origins=(ORIGIN,)))


WRONG: Final[dict[str, Callable[[Any], Any]]] = {
    "settings": lambda engine: create_app(engine, auth=TOKENS, settings=7),
    "auth": lambda engine: router(engine, auth="a token"),
    "engine": lambda _: router(Engine, auth=TOKENS),
    "log_level": lambda engine: serve(engine, auth=TOKENS, sockets=[], log_level="loud"),
    "app": describe,
    "error": lambda _: problem_response(ValueError("x")),
}


@pytest.mark.parametrize("argument", WRONG)
async def test_wrong_argument_is_refused_by_name(argument: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await WRONG[argument](Engine("sqlite://", model="demo"))
    assert refused.value.argument == argument


async def test_app_opens_and_closes_its_engine() -> None:
    engine = Engine("sqlite://", model="demo")
    async with listening(create_app(engine, auth=TOKENS)) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/readyz")).json() == {"status": "ready"}
    assert not engine.takes_followers
