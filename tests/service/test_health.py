"""Health: what a balancer and Prometheus are told."""

from __future__ import annotations

import sys

import httpx
import pytest

from support.served import Served
from turnwise.states.errors import StoreError


async def test_service_without_store_is_alive_but_not_ready(
    demo: Served, ada: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise StoreError("cannot connect to postgresql://jane:hunter2@db")

    assert (await ada.get("/readyz")).json() == {"status": "ready"}
    monkeypatch.setattr(demo.engine, "list_chats", fail)
    ready, alive = await ada.get("/readyz"), await ada.get("/healthz")
    assert (ready.status_code, ready.json()["type"]) == (503, "urn:turnwise:problem:store-error")
    assert (alive.status_code, alive.json()) == (200, {"status": "ok"})


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
