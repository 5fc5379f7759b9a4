"""The request limit counts for all replicas of a service together, and costs few writes."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from turnwise import Engine, Settings
from turnwise.http_problems import RateLimited
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.sql import store as sql_store
from turnwise.service import service
from turnwise.service.auth import Principal
from turnwise.service.service import SharedRates
from turnwise.states.errors import StoreError
from turnwise.testing.clock import ManualClock

ADA, BOB = Principal("ada", "owner"), Principal("bob", "owner")


@pytest.mark.parametrize("place", ["sqlite", pytest.param("postgres", marks=pytest.mark.deep)])
async def test_replicas_share_a_rate(place: str, request: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Each principal has a bucket; it fills by the database's clock, and is deleted once it is full."""
    monkeypatch.setattr(sql_store, "_DRAWS_UNTIL_CLEANUP", 5)
    server = request.getfixturevalue("postgres") if place == "postgres" else None
    url = server.new_url("rates") if server else f"sqlite:///{tmp_path / 'chats.db'}"
    clock, settings = ManualClock(), Settings(run_worker=False)
    stores = [store_from_url(url, durability="normal", now=clock.now) for _ in range(2)]
    async with (
        Engine(stores[0], model="demo", settings=settings) as one,
        Engine(stores[1], model="demo", settings=settings) as other,
    ):
        replicas = [SharedRates(engine, per_second=2, burst=60) for engine in (one, other)]
        for number in range(60):
            await replicas[number % 2].spend(ADA)
        for replica in replicas:
            with pytest.raises(RateLimited) as refused:
                await replica.spend(ADA)
            assert refused.value.retry_after == 0.5
        await replicas[1].spend(BOB)
        await clock.advance(0.5)
        await replicas[1].spend(ADA)
        await clock.advance(31)
        for _ in range(16):
            await replicas[0].spend(BOB)
        names = await stores[0]._read(lambda db: db.fetch_sql("SELECT name FROM rates"))
        assert [name for (name,) in names] == [BOB.actor]


class Database:
    """Stands for an engine whose database gives out requests, or is away."""

    def __init__(self, *gives: int | StoreError) -> None:
        self.gives = [*gives]
        self.asked: list[tuple[str, int]] = []

    async def draw(self, name: str, *, wanted: int, **_: Any) -> tuple[int, float]:
        await anyio.lowlevel.checkpoint()
        self.asked.append((name, wanted))
        given = self.gives.pop(0)
        if isinstance(given, StoreError):
            raise given
        return given, 0.0


async def test_requests_pass_while_the_database_is_away() -> None:
    """Each replica then keeps to its own rate; later requests are counted in the database again."""
    database = Database(StoreError("away"), 1, 0)
    rates = SharedRates(database, per_second=2, burst=60)  # type: ignore[arg-type]
    for _ in range(2):
        await rates.spend(ADA)
    with pytest.raises(RateLimited):
        await rates.spend(ADA)
    assert database.asked == [(ADA.actor, 3)] * 3


async def test_requests_at_once_share_a_draw() -> None:
    database = Database(3)
    rates = SharedRates(database, per_second=2, burst=60)  # type: ignore[arg-type]
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(rates.spend, ADA)
    assert len(database.asked) == 1


async def test_draws_of_the_least_recent_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_MAX_PRINCIPALS", 2)
    database = Database(*[3] * 9)
    rates = SharedRates(database, per_second=2, burst=60)  # type: ignore[arg-type]
    for principal in (ADA, BOB, ADA, Principal("cyd"), ADA, BOB):
        await rates.spend(principal)
    assert [name for name, _ in database.asked] == ["user:ada", "user:bob", "user:cyd", "user:bob"]
