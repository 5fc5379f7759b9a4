"""Health: what a balancer and Prometheus are told."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import anyio
import httpx
import pytest

from support.served import served
from turnwise import Engine


async def test_service_that_cannot_write_is_not_ready(tmp_path: Path) -> None:
    """It is alive, and reads; it is ready again as soon as its store takes writes."""
    database = tmp_path / "chats.db"
    async with served(Engine(f"sqlite:///{database}", model="demo")) as service, service.client() as ada:
        assert (await ada.get("/readyz")).json() == {"status": "ready"}
        with closing(sqlite3.connect(database, isolation_level=None)) as other:
            other.execute(
                "CREATE TRIGGER full BEFORE UPDATE ON turnwise_migrations BEGIN SELECT RAISE(ABORT, 'x'); END"
            )
            refused = await _readiness(ada, 503)
            assert refused.json()["type"] == "urn:turnwise:problem:store-error"
            assert (await ada.get("/chats")).status_code == 200
            assert (await ada.get("/healthz")).json() == {"status": "ok"}
            other.execute("DROP TRIGGER full")
        await _readiness(ada, 200)


async def _readiness(client: httpx.AsyncClient, status: int) -> httpx.Response:
    """Ask until the answer has that status: answers are shared for a moment."""
    with anyio.fail_after(30):
        while (answer := await client.get("/readyz")).status_code != status:
            pass
    return answer


async def test_metrics_have_prometheus_format(ada: httpx.AsyncClient) -> None:
    told = await ada.get("/metrics")
    assert told.headers["content-type"].startswith("text/plain; version=")
    assert told.text.endswith("# TYPE turnwise_open_streams gauge\nturnwise_open_streams 0\n")
    assert "# HELP python_info" in told.text


async def test_metrics_name_the_missing_extra(ada: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    told = await ada.get("/metrics")
    assert (told.status_code, told.json()["field"], told.json()["problem"]) == (
        400, "metrics", "need the extra `observability`"
    )  # fmt: skip
