"""`serve` and `inspect` in this process: options reach their place, and are printed."""

import contextlib
import inspect
import logging
import re
import socket
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastapi import Request

from support.served import served
from support.terminal import Terminal
from turnwise import Engine, SigningKey, StoreError, service
from turnwise.cli import worker
from turnwise.service import OWNERS_MAY, Authenticator, Principal, ServiceSettings

SHOP = 'from turnwise import Agent\n\nagents = [Agent("support", "demo")]\n'


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The service's arguments."""

    engine: Engine
    auth: Authenticator
    settings: ServiceSettings | None
    log_level: str
    addresses: list[tuple[str, int]]

    def who(self, token: str) -> Principal | None:
        request = Request({"type": "http", "headers": [(b"authorization", f"Bearer {token}".encode())]})
        known = self.auth(request)
        assert known is None or isinstance(known, Principal)
        return known


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    calls: list[Asked] = []
    takes = inspect.signature(service.serve)

    async def serve(*args: Any, **named: Any) -> None:
        asks = takes.bind(*args, **named)  # or it raises, as the service would
        asks.apply_defaults()
        asks.arguments.pop("opened")()
        sockets = asks.arguments.pop("sockets")
        calls.append(Asked(**asks.arguments, addresses=[listener.getsockname()[:2] for listener in sockets]))

    monkeypatch.setattr("turnwise.service.serve", serve)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    monkeypatch.delenv("TURNWISE_TOKEN", raising=False)
    monkeypatch.delenv("TURNWISE_TOKENS", raising=False)
    return calls


@pytest.fixture
def shop(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return a terminal in a folder that declares an agent."""
    (terminal.folder / "booth.py").write_text(SHOP)
    monkeypatch.delitem(sys.modules, "booth", raising=False)
    return terminal


def serve(shop: Terminal, *words: str) -> list[str]:
    done = shop.run("serve", "booth:agents", "--create", "--port", "0", *words)
    assert (done.code, done.err) == (0, ""), done
    return done.out.splitlines()


def test_serve_options_reach_the_service(shop: Terminal, asked: list[Asked], monkeypatch: pytest.MonkeyPatch) -> None:
    logs: list[dict[str, Any]] = []
    monkeypatch.setattr(logging, "basicConfig", lambda **how: logs.append(how))
    serve(shop)
    serve(
        shop, "--no-worker", "--concurrency", "7", "--shutdown-seconds", "2.5", "--quiet",
        "--allow-origin", "https://a.example", "--allow-origin", "https://b.example",
        "--allow-model", "openai:gpt-5", "--allow-model", "demo:other", "--owners-may", "erase",
        "--requests-per-second", "0.5", "--burst", "3", "--streams-per-owner", "4",
    )  # fmt: skip
    plain, typed = asked
    expected = [(100, True), (7, False)]
    assert [(one.engine.settings.max_running, one.engine.settings.run_worker) for one in asked] == expected
    assert plain.settings == ServiceSettings(shutdown_seconds=10, allow_origins=())
    assert typed.settings == ServiceSettings(
        shutdown_seconds=2.5,
        owners_may=OWNERS_MAY | {"erase"},
        requests_per_second=0.5,
        burst=3,
        streams_per_owner=4,
        allow_origins=("https://a.example", "https://b.example"),
        models=("openai:gpt-5", "demo:other"),
    )
    assert [one.log_level for one in asked] == ["warning"] * 2
    assert [how["level"] for how in logs] == [logging.INFO, logging.WARNING]
    assert logging.raiseExceptions is False


def test_served_agents_have_metrics(shop: Terminal, asked: list[Asked]) -> None:
    """Once for the process: its registry refuses a second metric of the same name."""
    serve(shop)
    serve(shop)

    async def scrape() -> str:
        async with served(asked[1].engine) as service, service.client() as ada:
            await ada.post("/chats", json={})
            return (await ada.get("/metrics")).text

    with contextlib.chdir(shop.folder):
        metrics = anyio.run(scrape)
    assert 'turnwise_transitions_total{source="new",target="waiting",trigger="create"}' in metrics
    assert "turnwise_running_chats 0.0" in metrics


def test_taken_port_is_explained(shop: Terminal, asked: list[Asked]) -> None:
    assert shop.run("migrate").code == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for command in (("serve", "booth:agents"), ("inspect",)):
            refused = shop.run(*command, "--port", port)
            assert refused.code == 2, refused
            assert re.search(f"cannot listen on (127.0.0.1 )?port {port}: Address already in use", refused.words)
    assert asked == []


def test_tokens_come_from_a_file_or_one_operator(
    shop: Terminal, asked: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop.folder / "tokens.toml").write_text('[[tokens]]\ntoken = "ada-token"\nname = "ada"\n')
    serve(shop, "--tokens", "tokens.toml", "--token", "no-token")
    assert [asked[0].who(token) for token in ("ada-token", "no-token")] == [Principal("ada"), None]
    monkeypatch.setenv("TURNWISE_TOKEN", "the-token")
    assert "token" not in " ".join(serve(shop))
    monkeypatch.delenv("TURNWISE_TOKEN")
    token = serve(shop)[0].removeprefix("operator's token, valid until this process ends: ")
    assert re.fullmatch("[A-Za-z0-9_-]{32}", token)
    operator = Principal("operator", "operator")
    assert [one.who("the-token") for one in asked] == [None, operator, None]
    assert [one.who(token) for one in asked] == [None, None, operator]


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_serve_and_worker_use_the_named_stores(
    shop: Terminal, asked: list[Asked], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    run: list[Engine] = []

    async def write_down(engine: Engine) -> None:
        run.append(engine)

    monkeypatch.setattr(worker, "run_until_stopped", write_down)
    (shop.folder / "audit.pem").write_bytes(SigningKey.generate().private_pem)
    stores = ("--store", "sqlite:///kept.db", "--file-folder", "files")
    published = ("--checkpoints", "published.jsonl", "--signing-key", "audit.pem")
    port = ("--port", "0") if command == "serve" else ()
    missing = shop.run(command, "booth:agents", *port)
    assert (missing.code, "there is no file 'turnwise.db'" in missing.words) == (2, True), missing
    for more in ((*stores, *published), ()):
        assert shop.run(command, "booth:agents", "--create", *port, *more).code == 0
    typed, plain = run or [one.engine for one in asked]
    for engine in (typed, plain):
        anyio.run(partial(put_file, engine, shop.folder))
    assert (shop.folder / "kept.db").is_file()
    assert (shop.folder / "turnwise.db").is_file()
    assert len([blob for blob in (shop.folder / "files" / "blobs").rglob("*") if blob.is_file()]) == 1
    assert (shop.folder / "published.jsonl").read_text().count("\n") == 1


async def put_file(engine: Engine, folder: Path) -> None:
    with contextlib.chdir(folder):
        async with engine:
            chat = await engine.create_chat()
            await engine.put_file(chat.id, b"a page" * 1000, media_type="image/png", name="scan.png")


def test_inspect_serves_without_worker(shop: Terminal, asked: list[Asked]) -> None:
    (shop.folder / "chats.db").touch()
    done = shop.run("inspect", "--store", "sqlite:///chats.db")
    assert (done.code, done.err) == (0, "")
    (inspected,) = asked
    ((host, port),) = inspected.addresses
    address, ends, stopped = done.out.splitlines()
    known = re.fullmatch(f"look at http://127.0.0.1:{port}/inspector#token=([A-Za-z0-9_-]{{32}})", address)
    assert known, address
    assert (host, ends, stopped) == ("127.0.0.1", "Ctrl-C ends it", "stopped")
    assert inspected.who(known[1]) == Principal("inspect", "auditor")
    assert inspected.engine.settings.run_worker is False
    assert [*inspected.engine.agents] == ["default"]
    assert inspected.log_level == "warning"
    with contextlib.chdir(shop.folder), pytest.raises(StoreError, match="there is no store in"):
        anyio.run(inspected.engine.__aenter__)
