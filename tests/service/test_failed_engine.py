"""An engine that ends by an error ends its process, with a code that a supervisor sees, and its health at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import httpx
import pytest

from support.exploring import few
from turnwise import Engine, EngineClosed
from turnwise.engine.worker.worker import Worker
from turnwise.service import Principal, ServiceSettings, StaticTokens
from turnwise.service.app import application

PROGRAM = """
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
    (tmp_path / "shop.py").write_text(PROGRAM)
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


async def test_failed_engine_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    end = anyio.Event()

    async def run(_: Worker) -> None:
        await end.wait()
        raise BaseException("planted")  # noqa: TRY002 - no ordinary exception

    monkeypatch.setattr(Worker, "run", run)
    engine, told = Engine("sqlite://", model="demo"), anyio.Event()
    engine.add_failure_callback(told.set)
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
                await told.wait()
    assert left.group_contains(RuntimeError, match="planted")
