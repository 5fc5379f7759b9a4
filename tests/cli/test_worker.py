"""`turnwise worker`: what it runs, how many chats at once, and how it is stopped."""

from __future__ import annotations

import logging
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.stores import Stuck
from support.terminal import Terminal
from turnwise import Agent, Engine, Settings
from turnwise.cli import worker

SHOP = """
from turnwise import Agent, Engine

support = Agent("support", "demo")
agents = (support, Agent("research", "demo"))
engine = Engine("sqlite:///shop.db", agents=agents)
number, none, mixed = 7, [], [support, "research"]


class inner:
    engine = engine


def make():
    return engine
"""


def test_worker_options_reach_the_engine(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[Any] = []
    logs: list[dict[str, Any]] = []
    monkeypatch.setattr(logging, "basicConfig", lambda **how: logs.append(how))
    monkeypatch.setattr(worker.anyio, "run", lambda _, engine: run.append(engine))
    (terminal.folder / "shop.py").write_text(SHOP)
    for words in (("--create",), ("--create", "--quiet", "--concurrency", "7")):
        monkeypatch.setattr(logging, "raiseExceptions", True)
        assert terminal.run("worker", "shop:agents", *words).code == 0
        assert not logging.raiseExceptions
    assert [engine.settings.max_running for engine in run] == [100, 7]
    assert [how.pop("level") for how in logs] == [logging.INFO, logging.WARNING]
    assert logs == [{"format": "%(asctime)s %(message)s", "datefmt": "%H:%M:%S"}] * 2
    assert terminal.run("worker", "shop:agents", "--concurrency", "0").code == 2
    assert [set(engine.agents) for engine in run] == [{"support", "research"}] * 2


@pytest.mark.parametrize("target", ["shop:agents", "shop:support", "shop:engine", "shop:make", "shop:inner.engine"])
def test_worker_takes_agents_engine_or_factory(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    run: list[Any] = []
    monkeypatch.setattr(worker.anyio, "run", lambda _, engine: run.append(engine))
    (terminal.folder / "shop.py").write_text(SHOP)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    create = () if target in ("shop:engine", "shop:make", "shop:inner.engine") else ("--create",)
    told = terminal.run("worker", target, *create)
    assert told.code == 0, told
    assert "support" in run[0].agents


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("shop", "must be like shop.agents:engine; it was 'shop'"),
        (":x", "must be like shop.agents:engine"),
        ("nowhere:x", "there is no module 'nowhere' here or among those installed"),
        ("nowhere.else:x", "there is no module 'nowhere.else' here or among those installed"),
        ("shop:nothing", "module 'shop' has no 'nothing'"),
        ("shop:number", "must be an Engine, a function that makes one, an Agent, or a list of agents; it was 7"),
        ("shop:mixed", "must be an Engine"),
        ("shop:none", "must be an Engine"),
        ("failing:make", "'failing:make' raised KeyError: 'NO_SUCH_VARIABLE'"),
        ("broken:x", "'broken' cannot be imported: ZeroDivisionError"),
        ("needy:x", "'needy' cannot be imported: No module named 'not_installed'"),
        ("shop:agents", "there is no file 'turnwise.db'; --create creates it"),
    ],
)
def test_unusable_worker_target_creates_nothing(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, target: str, problem: str
) -> None:
    failing = "import os\n\ndef make():\n    os.environ['NO_SUCH_VARIABLE']\n"
    for name, code in (("shop", SHOP), ("broken", "1 / 0"), ("needy", "import not_installed"), ("failing", failing)):
        (terminal.folder / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    told = terminal.run("worker", target)
    assert (told.code, "Traceback" in told.err) == (2, False)
    assert problem in told.words
    assert not (terminal.folder / "turnwise.db").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_opening_worker_can_be_stopped(capsys: pytest.CaptureFixture[str], number: signal.Signals) -> None:
    """It may have to wait for another process, however long that takes."""
    store = Stuck()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as running:
            running.start_soon(worker.run_until_stopped, Engine(store, model="demo"))
            await store.waits.wait()
            signal.raise_signal(number)
    assert capsys.readouterr().out.splitlines()[-1] == "stopped"


def test_stopped_worker_releases_chats(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It tells whose chats it runs, or that it was told to run none, and what has ended it."""

    async def stopped(*, run_worker: bool) -> None:
        settings = Settings(run_worker=run_worker)
        agents = [Agent("support", "demo"), Agent("research", "demo")]
        engine = Engine(f"sqlite:///{tmp_path}/chats.db", agents=agents, settings=settings)
        async with anyio.create_task_group() as running:
            running.start_soon(worker.run_until_stopped, engine)
            with anyio.fail_after(60):
                while not engine.takes_followers:  # noqa: ASYNC110 - no event comes from there
                    await anyio.sleep(0.005)
            signal.raise_signal(signal.SIGTERM)

    for run_worker in (True, False):
        anyio.run(partial(stopped, run_worker=run_worker))
    told = capsys.readouterr().out.splitlines()
    ended = ["SIGTERM: letting the chats go", "stopped"]
    assert [line.partition(" runs ")[2] or line for line in told] == [
        "research, support; SIGTERM or Ctrl-C stops it", *ended,
        "nothing: run_worker is False; SIGTERM or Ctrl-C stops it", *ended,
    ]  # fmt: skip
