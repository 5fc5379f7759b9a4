"""The target of `worker` and `serve`, which may be misspelt, its options, and the shutdown."""

import logging
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import turnwise
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


class Shop:
    def __init__(self):
        raise AssertionError("made")


def make():
    return engine


def elsewhere():
    return Engine("redis://host", model="demo")


async def later():
    return engine
"""
MODULES = {
    "shop": SHOP,
    "broken": "1 / 0",
    "needy": "import not_installed",
    "failing": "import os\n\ndef make():\n    os.environ['NO_SUCH_VARIABLE']\n",
    "unset": "from turnwise import Settings\n\nSettings(lease=1, renew_every=2)",
}


@pytest.fixture
def shop(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return a terminal in a folder with modules, one of which has the name of another program's."""
    installed = terminal.folder / "installed"
    installed.mkdir()
    (installed / "shop.py").write_text("")
    for name, code in MODULES.items():
        (terminal.folder / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(installed)
    return terminal


def test_worker_options_reach_the_engine(shop: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[Any] = []
    logs: list[dict[str, Any]] = []
    monkeypatch.setattr(logging, "basicConfig", lambda **how: logs.append(how))
    monkeypatch.setattr(worker.anyio, "run", lambda _, engine: run.append(engine))
    for words in (("--create",), ("--create", "--quiet", "--concurrency", "7")):
        monkeypatch.setattr(logging, "raiseExceptions", True)
        assert shop.run("worker", "shop:agents", *words).code == 0
        assert not logging.raiseExceptions
    assert [engine.settings.max_running for engine in run] == [100, 7]
    assert [how.pop("level") for how in logs] == [logging.INFO, logging.WARNING]
    assert logs == [{"format": "%(asctime)s %(message)s", "datefmt": "%H:%M:%S"}] * 2
    assert shop.run("worker", "shop:agents", "--concurrency", "0").code == 2
    assert [set(engine.agents) for engine in run] == [{"support", "research"}] * 2


def test_worker_takes_agents_engine_or_factory(shop: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[Any] = []
    monkeypatch.setattr(worker.anyio, "run", lambda _, engine: run.append(engine))
    for typed in ("agents --create", "support --create", "engine", "make", "inner.engine"):
        done = shop.run("worker", *f"shop:{typed}".split())
        assert done.code == 0, done
    assert all("support" in engine.agents for engine in run)
    assert len(run) == 5


FORM = "MODULE:ATTRIBUTE: must be like shop.agents:engine; it was"
TARGETS = {
    "shop": f"{FORM} 'shop'",
    "shop:": f"{FORM} 'shop:'",
    ":x": f"{FORM} ':x'",
    "./shop.py:agents": f"{FORM} './shop.py:agents'",
    "nowhere:x": "'nowhere:x' cannot be imported: ModuleNotFoundError: No module named 'nowhere'",
    "shop.agents:x": "No module named 'shop.agents'",
    "shop:nothing": "module 'shop' has no attribute 'nothing'",
    "shop:number": "must be an Engine, a function that makes one, an Agent, or a list of agents; it was 7",
    "shop:mixed": "or a list of agents; it was [Agent(",
    "shop:none": "or a list of agents; it was []",
    "shop:later": "'shop:later' is an async function; a function that makes an engine is none",
    "shop:Shop": "it was <class 'shop.Shop'>",
    "shop:elsewhere": "turnwise: store: ",
    "failing:make": "'failing:make' raised KeyError: 'NO_SUCH_VARIABLE'",
    "broken:x": "'broken:x' cannot be imported: ZeroDivisionError",
    "needy:x": "'needy:x' cannot be imported: ModuleNotFoundError: No module named 'not_installed'",
    "unset:x": "turnwise: renew_every: must be shorter than lease (1.0); it was 2.0; nothing was stored.",
    "shop:agents": "there is no file 'turnwise.db'; --create creates it",
}


def test_unusable_target_is_explained(shop: Terminal) -> None:
    """It creates no store and no instance of a class, and the engine's own refusal is unchanged."""
    for target, problem in TARGETS.items():
        refused = shop.run("worker", target)
        assert (refused.code, problem in refused.words, "Traceback" in refused.err) == (2, True, False), refused
    assert not (shop.folder / "turnwise.db").exists()


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("serve --no-worker", "--worker, --no-worker: {} says so itself: Settings(run_worker=...)"),
        ("serve --store sqlite://", "--store: {} has its own: Engine(store, ...)"),
        ("worker --concurrency 100", "--concurrency: {} has its own: Settings(max_running=...)"),
        ("worker --create", "--create: {} makes the file of its store itself"),
        ("chat --file-folder x", "--file-folder: {} has its own: Engine(..., files=...)"),
    ],
)
def test_ignored_options_are_refused_for_engines(shop: Terminal, typed: str, problem: str) -> None:
    """Otherwise a service would run chats against its options. Environment variables only fill in missing options."""
    command, *options = typed.split()
    refused = shop.run(command, "shop:engine", *options)
    assert (refused.code, problem.format("'shop:engine' is an engine, which") in refused.words) == (2, True), refused


@pytest.mark.parametrize(
    ("typed", "extra", "library", "problem"),
    [
        ("serve any:x", "service", "fastapi", "turnwise.service: needs the extra `service`: pip install"),
        ("inspect", "service", "fastapi", "turnwise.service: needs the extra `service`: pip install"),
        ("list --server http://h", "client", "httpx", "turnwise.client: needs the extra `client`: pip install"),
        ("diagram --out a.png", "png", "resvg_py", "--format: png needs the extra `png`: pip install"),
    ],
    ids=["serve", "inspect", "a service", "png"],
)
def test_missing_extra_is_named(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, typed: str, extra: str, library: str, problem: str
) -> None:
    monkeypatch.setenv("TURNWISE_TOKEN", "a-token")
    for name in [name for name in sys.modules if f"{name}.".startswith(f"turnwise.{extra}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(turnwise, extra, raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    refused = terminal.run(*typed.split())
    assert (refused.code, problem in refused.words) == (2, True), refused
    assert not [*terminal.folder.iterdir()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_opening_worker_can_be_stopped(capsys: pytest.CaptureFixture[str], number: signal.Signals) -> None:
    store = Stuck()
    with anyio.fail_after(120):
        async with anyio.create_task_group() as running:
            running.start_soon(worker.run_until_stopped, Engine(store, model="demo"))
            await store.waits.wait()
            signal.raise_signal(number)
    assert capsys.readouterr().out.splitlines()[-1] == "stopped"


def test_stopped_worker_releases_chats(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
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
    printed = capsys.readouterr().out.splitlines()
    ended = ["SIGTERM: releasing the chats", "stopped"]
    assert [line.partition(" runs ")[2] or line for line in printed] == [
        "research, support; SIGTERM or Ctrl-C stops it", *ended,
        "nothing: run_worker is False; SIGTERM or Ctrl-C stops it", *ended,
    ]  # fmt: skip
