"""A standalone application: its own paths, and the pages that may call it."""

import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import pytest
from fastapi import FastAPI

from support.clock import StillClock
from support.served import TOKENS, listening, served
from support.sql_by_hand import by_hand
from turnwise import Engine, InvalidArgument, Settings, SettingsError
from turnwise.http_problems import RateLimited
from turnwise.service import OWNERS_MAY, Principal, ServiceSettings, describe, problem_response, router, serve, service
from turnwise.service.app import create_app
from turnwise.service.service import Rates, Readiness, Streams
from turnwise.states.errors import StoreError

ORIGIN = "https://shop.example"


async def test_allowed_origin_may_call_and_read_headers() -> None:
    settings = ServiceSettings(allow_origins=(ORIGIN,))
    asking = {"Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "if-match, x-odd"}
    async with (
        served(Engine("sqlite://", model="demo"), settings=settings) as service,
        service.client() as ada,
        httpx.AsyncClient(base_url=service.url, timeout=60) as stranger,
    ):
        before, other = [
            await stranger.options("/chats/c1", headers=asking | {"Origin": origin})
            for origin in (ORIGIN, "https://evil.example")
        ]
        response = await ada.post("/chats", json={}, headers={"Origin": ORIGIN})
    allowed = before.headers["access-control-allow-methods"].split(", ")
    assert before.status_code == 200
    assert {"GET", "POST", "PATCH", "DELETE"} <= set(allowed)
    assert before.headers["access-control-allow-headers"] == "if-match, x-odd"
    assert before.headers["access-control-allow-origin"] == response.headers["access-control-allow-origin"] == ORIGIN
    exposed = response.headers["access-control-expose-headers"]
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
    async with listening(create_app(engine, auth=TOKENS)) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        assert (await client.get("/readyz")).json() == {"status": "ready"}
    assert not engine.takes_followers


# Settings


COUNTS = ("body_limit_bytes", "history_limit_bytes", "upload_limit_bytes", "burst", "streams_per_owner")
AMOUNTS = ("requests_per_second", "reader_timeout", "upload_timeout", "shutdown_seconds", "not_found_seconds")


def test_default_settings() -> None:
    assert asdict(ServiceSettings()) == {
        "body_limit_bytes": 4 * 1024 * 1024,
        "history_limit_bytes": 16 * 1024 * 1024,
        "upload_limit_bytes": 1024 * 1024 * 1024,
        "requests_per_second": 50,
        "burst": 200,
        "streams_per_owner": 100,
        "reader_timeout": 30,
        "upload_timeout": 30,
        "header_timeout": 10,
        "anonymous_connections": 1000,
        "shutdown_seconds": 10,
        "not_found_seconds": 0.02,
        "owners_may": OWNERS_MAY,
        "policy": None,
        "webhooks": (),
        "allow_origins": (),
        "models": (),
    }


@pytest.mark.parametrize("name", COUNTS + AMOUNTS)
def test_limits_are_not_negative(name: str) -> None:
    for sound in (0, 7) if name in COUNTS else (0, 0.5, 7):
        assert getattr(ServiceSettings(**{name: sound}), name) == sound
    for odd in (-0.5, -1, math.inf, math.nan, "7", None, True):
        with pytest.raises(SettingsError, match=f"^{name}: "):
            ServiceSettings(**{name: odd})


@pytest.mark.parametrize("name", ["allow_origins", "models"])
@pytest.mark.parametrize("odd", ["demo", (7,), ("demo", None)])
def test_origins_and_models_are_lists_of_text(name: str, odd: Any) -> None:
    with pytest.raises(SettingsError, match=rf"^{name}.*: must be a (sequence|string)"):
        ServiceSettings(**{name: odd})
    assert getattr(ServiceSettings(**{name: ["demo"]}), name) == ("demo",)


# Health


RELOAD: Final = "SELECT pg_reload_conf()"
REFUSE_WRITES: Final = {
    "sqlite": ("CREATE TRIGGER full BEFORE UPDATE ON turnwise_migrations BEGIN SELECT RAISE(ABORT, 'x'); END",),
    "postgres": ("ALTER SYSTEM SET default_transaction_read_only = on", RELOAD),
}
TAKE_WRITES: Final = {
    "sqlite": ("DROP TRIGGER full",),
    "postgres": ("ALTER SYSTEM RESET default_transaction_read_only", RELOAD),
}


@pytest.mark.parametrize("place", ["sqlite", pytest.param("postgres", marks=pytest.mark.deep)])
async def test_service_that_cannot_write_is_not_ready(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The service is alive and reads, and becomes ready again as soon as its store accepts writes."""
    url = f"sqlite:///{tmp_path}/chats.db"
    if place == "postgres":
        url = request.getfixturevalue("postgres").new_url("readiness")
    idle = Settings(run_worker=False)  # a worker would log each write that fails
    async with served(Engine(url, model="demo", settings=idle)) as service, service.client() as ada:
        assert (await ada.get("/readyz")).json() == {"status": "ready"}
        for statement in REFUSE_WRITES[place]:
            await by_hand(url, statement)
        try:
            refused = await _readiness(ada, 503)
            assert refused.json()["type"] == "urn:turnwise:problem:store-error"
            assert (await ada.get("/chats")).status_code == 200
            assert (await ada.get("/healthz")).json() == {"status": "ok"}
        finally:
            for statement in TAKE_WRITES[place]:
                await by_hand(url, statement)
        await _readiness(ada, 200)


async def _readiness(client: httpx.AsyncClient, status: int) -> httpx.Response:
    """Request until the answer has that status: answers are cached for a short time."""
    with anyio.fail_after(120):
        while (answer := await client.get("/readyz")).status_code != status:
            pass
    return answer


class Writes:
    """Stands for an engine whose store takes a write, fails, or does not answer."""

    def __init__(self, *outcomes: Exception | None, latch: anyio.Event | None = None) -> None:
        self.outcomes = [*outcomes]
        self.latch = latch

    async def check_writable(self) -> None:
        outcome = self.outcomes.pop(0)
        if self.latch is not None:
            await self.latch.wait()
        if outcome is not None:
            raise outcome


async def test_probes_share_one_write_for_a_moment(clock: StillClock) -> None:
    """Requests need no token for it: each would cost a write."""
    engine = Writes(None, StoreError("full"), None)
    readiness = Readiness(engine)  # type: ignore[arg-type]
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(readiness.check)
    clock.now += 0.09
    await readiness.check()
    assert len(engine.outcomes) == 2
    clock.now += 0.02
    for _ in range(2):
        with pytest.raises(StoreError, match="full"):
            await readiness.check()
    clock.now += 1
    await readiness.check()


async def test_silent_store_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check starts no second write while one hangs."""
    monkeypatch.setattr(service, "_PROBE_TIMEOUT_S", 0.001)
    latch = anyio.Event()
    readiness = Readiness(Writes(None, latch=latch))  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(StoreError, match=r"took no write within 0\.001 s") as refused:
            await readiness.check()
        assert (refused.value.written, refused.value.passing) == ("unknown", True)
    latch.set()
    monkeypatch.setattr(service, "_PROBE_TIMEOUT_S", 60)
    await readiness.check()


async def test_metrics_have_prometheus_format(ada: httpx.AsyncClient) -> None:
    response = await ada.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert "# TYPE turnwise_open_streams gauge\nturnwise_open_streams 0\n" in response.text
    assert "# HELP python_info" in response.text


async def test_metrics_name_the_missing_extra(ada: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    response = await ada.get("/metrics")
    assert (response.status_code, response.json()["field"], response.json()["problem"]) == (
        400, "metrics", "need the extra `observability`"
    )  # fmt: skip


# A service


ADA, BOB, CYD = Principal("ada"), Principal("bob"), Principal("cyd")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StillClock:
    clock = StillClock()
    monkeypatch.setattr(service, "time", clock)
    return clock


def waits(rates: Rates, principal: Principal, count: int = 1) -> list[float | None]:
    """Send that many requests; return the seconds until each may be retried, `None` for accepted ones."""
    delays: list[float | None] = []
    for _ in range(count):
        try:
            rates.spend(principal.actor)
            delays.append(None)
        except RateLimited as limited:
            delays.append(limited.retry_after)
    return delays


def test_burst_is_the_limit_at_once(clock: StillClock) -> None:
    rates = Rates(2, 3)
    assert waits(rates, ADA, 5) == [None, None, None, 0.5, 0.5]
    assert waits(rates, BOB, 4) == [None, None, None, 0.5]
    assert waits(rates, Principal("ada", "operator")) == [None], "the name alone is nobody"
    with pytest.raises(RateLimited) as refused:
        rates.spend(ADA.actor)
    assert refused.value.limit == "2 requests a second, 3 at once"


def test_tokens_refill_up_to_the_burst(clock: StillClock) -> None:
    rates = Rates(2, 3)
    waits(rates, ADA, 3)
    clock.now += 0.25
    assert waits(rates, ADA) == [0.25]
    clock.now += 0.5
    assert waits(rates, ADA, 2) == [None, 0.25]
    clock.now += 1
    assert waits(rates, ADA, 3) == [None, None, 0.25]
    clock.now += 1_000_000
    assert waits(rates, ADA, 4) == [None, None, None, 0.5]


@pytest.mark.parametrize("sent_per_second", [9, 11, 100])
def test_long_run_rate_equals_the_limit(clock: StillClock, sent_per_second: int) -> None:
    """Ten a second, for a minute, and the burst."""
    rates = Rates(10, 3)
    taken = 0
    for place in range(sent_per_second * 60):
        clock.now = 1000 + place / sent_per_second
        taken += waits(rates, ADA) == [None]
    assert taken == pytest.approx(min(sent_per_second * 60, 3 + 10 * 60), abs=1)


@pytest.mark.parametrize("per_second", [0.03, 0.7, 50, 444.5379106221935])
@pytest.mark.parametrize("started", [0, 1e8])
def test_waiting_retry_after_is_enough(clock: StillClock, per_second: float, started: float) -> None:
    """The problem's number, its sentence, and the header in whole seconds."""
    clock.now = started
    for as_told in (
        lambda refused: refused.retry_after,
        lambda refused: float(str(refused).partition("try again in ")[2].partition(" s")[0]),
        lambda refused: float(problem_response(refused).headers["retry-after"]),
    ):
        rates = Rates(per_second, 2)
        for pause in [0.1, 0.37, 0.6, 0.8] * 10:
            with pytest.raises(RateLimited) as refused:  # noqa: PT012 - the second or third is refused
                for _ in range(4):
                    rates.spend(ADA.actor)
                    clock.now += pause / per_second / 4
            clock.now += as_told(refused.value)
            rates.spend(ADA.actor)


def test_least_recent_principal_is_forgotten(clock: StillClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_MAX_PRINCIPALS", 2)
    rates = Rates(0, 1)
    for principal in (ADA, BOB):
        rates.spend(principal.actor)
    assert (waits(rates, BOB), waits(rates, ADA)) == ([60], [60])
    assert (waits(rates, CYD), waits(rates, ADA), waits(rates, BOB)) == ([None], [60], [None])


async def test_unknown_senders_are_limited_by_address() -> None:
    """Principals at the same address are not: `auth` runs first."""
    settings = ServiceSettings(requests_per_second=0.1, burst=2, not_found_seconds=0)
    async with Engine("sqlite://", model="demo") as engine:
        app = FastAPI()
        app.include_router(router(engine, auth=TOKENS, settings=settings))
        answers = {}
        for host in ("192.0.2.1", "192.0.2.2"):
            transport = httpx.ASGITransport(app, client=(host, 1))
            async with httpx.AsyncClient(base_url="http://chats", transport=transport) as client:
                answers[host] = [await client.get("/chats") for _ in range(3)]
                known = await client.get("/chats", headers={"Authorization": "Bearer ada-token"})
            assert known.status_code == 200
    for responses in answers.values():
        assert [answer.status_code for answer in responses] == [401, 401, 429]
        assert responses[2].headers["retry-after"] == "10"


def test_stream_limit_counts_open_streams() -> None:
    streams = Streams(2)
    with streams.opened(ADA):
        with streams.opened(ADA), streams.opened(BOB), streams.opened(BOB):
            assert streams.count == 4
            with pytest.raises(RateLimited) as refused, streams.opened(ADA):
                pass
            assert (refused.value.limit, refused.value.retry_after) == ("2 open streams", 5)
            assert streams.count == 4
        assert streams.count == 1
        with pytest.raises(ValueError, match="broken"), streams.opened(ADA):  # noqa: PT012 - it has to end there
            assert streams.count == 2
            raise ValueError("broken")
        assert streams.count == 1
    assert streams.count == 0
