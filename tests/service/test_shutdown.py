"""Stopping under uvicorn's plain command line: readers are informed, and the process ends in every state."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import pytest

from support.exploring import few
from support.served import TRUSTED, served
from turnwise import Engine, EngineClosed
from turnwise.engine.worker.worker import Worker
from turnwise.service import Principal, ServiceSettings, StaticTokens
from turnwise.service.app import application

PROGRAM: Final = """
from contextlib import asynccontextmanager
from fastapi import FastAPI
from fastapi.sse import EventSourceResponse
from turnwise import Engine, Settings
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.service import Principal, StaticTokens, event_stream, router, shutdown

shutdown.GRACE_S = 3  # a busy machine needs time to inform all readers
model = ScriptedModel(lambda _: Reply("Hello", stall_after=1))
engine = Engine("sqlite:///chats.db", model=model, settings=Settings(shutdown_grace=1))

@asynccontextmanager
async def lifespan(app):
    async with engine:
        yield

app = FastAPI(lifespan=lifespan)
app.include_router(router(engine, auth=StaticTokens({"t": Principal("ada", "operator")})), prefix="/v1")

@app.get("/own/{chat}", response_class=EventSourceResponse)
async def own(chat: str):
    async for event in event_stream(engine, chat):
        yield event
"""
LIMIT_S: Final = 30
"""Seconds in which a server with open streams must end; their clients give up after a minute."""
MESSAGE: Final = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}
AGUI: Final = {
    "threadId": "t2",
    "runId": "r",
    "state": {},
    "tools": [],
    "context": [],
    "forwardedProps": {},
    "messages": [{"id": "u1", "role": "user", "content": "hi"}],
}


@asynccontextmanager
async def running(folder: Path, *options: str) -> AsyncIterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run the program by uvicorn's command line; yield its address and the process."""
    (folder / "shop.py").write_text(PROGRAM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "shop:app", "--port", str(port), *options]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220 - begins at once
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        await up(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}", process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def up(url: str) -> None:
    async with httpx.AsyncClient(verify=TRUSTED) as client:
        with anyio.fail_after(150):
            is_up = False
            while not is_up:
                with suppress(httpx.TransportError):
                    is_up = (await client.get(f"{url}/v1/healthz")).is_success
                await anyio.sleep(0.05)


class Readers:
    """Every kind of open stream of a service, each read to its end."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(
            base_url=url, headers={"Authorization": "Bearer t"}, timeout=60, verify=TRUSTED
        )
        self.ends: dict[str, str] = {}
        self._asked = anyio.Event()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open all, and read them during the block and to their ends."""
        async with self._client, anyio.create_task_group() as reading:
            chat = (await self._client.post("/v1/chats", json={})).raise_for_status().json()["id"]
            asked = {"json": {"content": "hi"}, "headers": {"Idempotency-Key": "k"}}
            kinds: dict[str, tuple[str, str, dict[str, Any]]] = {
                "events": ("GET", f"/v1/chats/{chat}/events", {}),
                "own": ("GET", f"/own/{chat}", {}),
                "agui": ("POST", "/v1/agui", {"json": AGUI}),
                "ai-sdk": ("POST", "/v1/ai-sdk/chat", {"json": {"id": "t1", "messages": [MESSAGE]}}),
            }
            for name, (method, path, options) in kinds.items():
                started = anyio.Event()
                reading.start_soon(self._read, name, started, method, path, options)
                await started.wait()
            reading.start_soon(self._ask, f"/v1/chats/{chat}/ask", asked)
            half = await asyncio.open_connection(self._client.base_url.host, self._client.base_url.port)
            head = b"POST /v1/chats HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nContent-Length: 9\r\n\r\n{"
            half[1].write(head)
            await half[1].drain()
            await self._asked.wait()
            yield
        half[1].close()

    async def _read(self, name: str, started: anyio.Event, method: str, path: str, options: dict[str, Any]) -> None:
        async with self._client.stream(method, path, **options) as answer:
            self.ends[name] = ""
            async for line in answer.aiter_lines():
                started.set()
                self.ends[name] += line
                if (name, line) == ("events", "event: message"):
                    self._asked.set()

    async def _ask(self, path: str, asked: dict[str, Any]) -> None:
        self.ends["ask"] = (await self._client.post(path, **asked)).text

    def check(self) -> None:
        """Check that each reader was asked to reconnect."""
        words = {"events": "reconnect", "own": "reconnect", "agui": "reconnect", "ai-sdk": "come back", "ask": "closed"}
        assert {name for name, word in words.items() if word not in self.ends[name]} == set(), self.ends


@pytest.mark.deep
@pytest.mark.parametrize("options", [(), ("--workers", "1"), ("--reload",)], ids=["plain", "workers", "reload"])
async def test_sigterm_ends_open_streams(tmp_path: Path, options: tuple[str, ...]) -> None:
    async with running(tmp_path, *options) as (url, process):
        readers = Readers(url)
        async with readers.opened():
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(LIMIT_S):
                await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
    readers.check()


@pytest.mark.deep
async def test_reload_ends_open_streams(tmp_path: Path) -> None:
    async with running(tmp_path, "--reload") as (url, _):
        readers = Readers(url)
        async with readers.opened():
            reload = anyio.current_time()
            (tmp_path / "shop.py").write_text(PROGRAM + "\n")
        assert anyio.current_time() - reload < LIMIT_S
        readers.check()
        await up(url)


async def test_stopping_server_informs_its_own_readers() -> None:
    """Readers of another server of the process continue."""
    lines: list[str] = []
    started = anyio.Event()

    async def read(client: httpx.AsyncClient, url: str) -> None:
        async with client.stream("GET", url) as stream:
            async for line in stream.aiter_lines():
                started.set()
                lines.append(line)

    async with served(Engine("sqlite://", model="demo")) as other, other.client() as ada:
        chat_id = (await ada.post("/chats", json={})).json()["id"]
        async with ada.stream("GET", f"/chats/{chat_id}/events") as staying:
            await anext(staying.aiter_lines())
            async with anyio.create_task_group() as reading, served(Engine("sqlite://", model="demo")) as service:
                chat = (await ada.post(f"{service.url}/chats", json={})).json()["id"]
                reading.start_soon(read, ada, f"{service.url}/chats/{chat}/events")
                await started.wait()
            assert "event: reconnect" in lines
            assert other.engine.takes_followers


# An engine that ends by an error


FAILING = """
import os
from contextlib import asynccontextmanager
import anyio
from fastapi import FastAPI
from turnwise import Engine
from turnwise.engine.worker.worker import Worker
from turnwise.service import Principal, StaticTokens, router

async def run(worker):
    print("up", flush=True)
    while not os.path.exists("end"):
        await anyio.sleep(0.01)
    raise BaseException("planted")

Worker.run = run
engine = Engine("sqlite:///chats.db", model="demo")
auth = StaticTokens({"t": Principal("ada", "operator")})

@asynccontextmanager
async def lifespan(app):
    async with engine:
        yield

app = FastAPI(lifespan=lifespan)
app.include_router(router(engine, auth=auth), prefix="/v1")
"""


@pytest.mark.parametrize(
    "command",
    few(["turnwise serve shop:engine --port 0", "turnwise worker shop:engine", "uvicorn shop:app --port 0"], plain=1),
)
async def test_process_ends_with_its_engine(command: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FAILING)
    async with await anyio.open_process(
        [sys.executable, "-m", *command.split()],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, env={"PYTHONPATH": str(tmp_path)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        output, asked = "", False
        async for piece in process.stdout:
            output += piece.decode()
            if not asked and "up\n" in output and ("uvicorn" not in command or "startup complete" in output):
                (tmp_path / "end").touch()
                asked = True
        assert (await process.wait(), "planted" in output) == (1, True), output


async def test_failed_engine_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    end = anyio.Event()

    async def run(_: Worker) -> None:
        await end.wait()
        raise BaseException("planted")  # noqa: TRY002 - no ordinary exception

    monkeypatch.setattr(Worker, "run", run)
    engine, failed = Engine("sqlite://", model="demo"), anyio.Event()
    engine.add_failure_callback(failed.set)
    app = application(engine, auth=StaticTokens({"t": Principal("ada", "operator")}), settings=ServiceSettings())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://turnwise") as client:
        with pytest.raises(ExceptionGroup, match="TaskGroup") as left:  # noqa: PT012 - leaving it raises
            async with engine:
                chat = await engine.create_chat()
                following = engine.events(chat.id, after=chat.last_seq)
                assert (await client.get("/healthz")).status_code == 200
                end.set()
                with pytest.raises(EngineClosed, match="ended by an error"):
                    await anext(following)
                health = await client.get("/healthz")
                assert (health.status_code, health.json()["type"]) == (503, "urn:turnwise:problem:engine-closed")
                assert (await client.get("/readyz")).status_code == 503
                with pytest.raises(EngineClosed, match="ended by an error"):
                    await engine.get_chat(chat.id)
                await failed.wait()
    assert left.group_contains(RuntimeError, match="planted")
