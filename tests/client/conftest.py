"""Fixtures of the client's tests: the same chats behind an engine and behind a service."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.client.client_clock import ClientClock

from support.processes import postgres_server
from support.processes.service_process import TOKEN
from support.processes.talkative import engine_on
from support.processes.talkative_service import ServiceProcess
from support.wire.server import Server, serving
from turnwise import Engine
from turnwise.client import Client, ClientSettings

Chats = Engine | Client


def url_of(store: str, name: str, request: pytest.FixtureRequest, folder: Path) -> str:
    if store == "sqlite":
        return f"sqlite:///{folder}/{name}.db"
    server: postgres_server.Server = request.getfixturevalue("postgres")
    return server.new_url(name)


@pytest.fixture
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, str], str]:
    """Return a function that makes a store's URL, by kind and name."""
    return lambda store, name: url_of(store, name, request, tmp_path)


PLACES = ("engine-sqlite", "client-sqlite")
MORE_PLACES = (pytest.param(f"{kind}-postgresql", marks=pytest.mark.deep) for kind in ("engine", "client"))


@pytest.fixture(scope="module", params=[*PLACES, *MORE_PLACES])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | ServiceProcess]:
    """Return the URL of a store, or a service on one."""
    kind, _, store = request.param.partition("-")
    url = url_of(store, kind, request, tmp_path_factory.mktemp(kind))
    if kind == "engine":
        yield url
        return
    with ServiceProcess.running(url) as found:
        yield found


@pytest.fixture
async def chats(place: str | ServiceProcess) -> AsyncIterator[Chats]:
    """Open an engine or a client on the place."""
    if isinstance(place, str):
        async with engine_on(place) as engine:
            yield engine
        return
    settings = ClientSettings(retry_timeout=120)
    async with Client(place.url, token=TOKEN, settings=settings) as client:
        yield client


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """Run a server that answers by a script."""
    async with serving() as found:
        yield found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ClientClock:
    """Advance the clients' clock only while they wait for their next try."""
    clock = ClientClock()
    for name in ("settings.anyio", "settings.random", "settings.time", "events.time"):
        monkeypatch.setattr(f"turnwise.client.{name}", clock)
    return clock
