"""What the command line runs and serves: a store that may be misspelt, and extras that may not be installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import turnwise
from support.terminal import Terminal
from turnwise.cli.target import check_is_there
from turnwise.states.errors import SettingsError


@pytest.mark.parametrize("store", ["sqlite:///{}/chats.db", "sqlite://", "postgresql://localhost/none"])
@pytest.mark.parametrize("create", [False, True])
def test_existing_or_memory_store_is_taken(tmp_path: Path, store: str, *, create: bool) -> None:
    (tmp_path / "chats.db").touch()
    check_is_there(store.format(tmp_path), create=create)


@pytest.mark.parametrize("name", ["chat.db", ""], ids=["misspelt", "a folder"])
def test_missing_store_needs_create(tmp_path: Path, name: str) -> None:
    path = f"{tmp_path}/{name}"
    with pytest.raises(SettingsError, match="--store") as refused:
        check_is_there(f"sqlite:///{path}", create=False)
    assert f"there is no file {path!r}; --create creates it" in str(refused.value)
    check_is_there(f"sqlite:///{path}", create=True)


LIBRARIES = {"service": "fastapi", "client": "httpx", "png": "resvg_py"}


@pytest.mark.parametrize(
    ("typed", "brought", "told"),
    [
        (("serve", "anything:at_all"), "service", "turnwise.service: needs the extra `service`: pip install"),
        (("inspect",), "service", "turnwise.service: needs the extra `service`: pip install"),
        (("list", "--server", "http://h"), "client", "turnwise.client: needs the extra `client`: pip install"),
        (
            ("diagram", "--format", "png", "--out", "a.png"),
            "png",
            "--format: png needs the extra `png`: pip install",
        ),
    ],
    ids=["serve", "inspect", "a service", "png"],
)
def test_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: tuple[str, ...], brought: str, told: str
) -> None:
    monkeypatch.setenv("TURNWISE_TOKEN", "a-token")
    for name in [name for name in sys.modules if f"{name}.".startswith(f"turnwise.{brought}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(turnwise, brought, raising=False)
    monkeypatch.setitem(sys.modules, LIBRARIES[brought], None)
    finished = Terminal(tmp_path).run(*typed)
    assert finished.code == 2
    assert told in finished.words
    assert not [*tmp_path.iterdir()]


SHOP = """
from turnwise import Agent, Engine

here = [Agent("support", "demo")]
nobody = []
mixed = [*here, "support"]
engine = Engine("sqlite:///nowhere/stall.db", agents=here)


def elsewhere():
    return Engine("redis://host", model="demo")


async def later():
    return engine


class Shop:
    def __init__(self):
        raise AssertionError("made")
"""
UNSET = "from turnwise import Settings\n\nSettings(lease=1, renew_every=2)"
NAMELESS = 'raise ModuleNotFoundError("there is no such thing")'


@pytest.fixture
def shop(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return a terminal in a folder with modules, of which one also is elsewhere, as another program's."""
    installed = terminal.folder / "installed"
    installed.mkdir()
    (installed / "stall.py").write_text("")
    for name, code in (("stall", SHOP), ("nameless", NAMELESS), ("unset", UNSET)):
        (terminal.folder / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(installed)
    return terminal


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("stall:", "MODULE:ATTRIBUTE: must be like shop.agents:engine; it was 'stall:'"),
        (":here", "MODULE:ATTRIBUTE: must be like shop.agents:engine; it was ':here'"),
        ("./stall.py:here", "MODULE:ATTRIBUTE: must be like shop.agents:engine; it was './stall.py:here'"),
        ("stall.py:here", "MODULE:ATTRIBUTE: must be like shop.agents:engine; it was 'stall.py:here'"),
        ("stall:later", "'stall:later' is an async function; a function that makes an engine is none"),
        ("stall:Shop", "it was <class 'stall.Shop'>"),
        ("stall:nobody", "or a list of agents; it was []"),
        ("stall:mixed", "or a list of agents; it was [Agent("),
        ("stall:elsewhere", "turnwise: store: "),
        ("nameless:x", "'nameless' cannot be imported: there is no such thing"),
        ("unset:x", "turnwise: renew_every: must be shorter than lease (1); it was 2; nothing was stored."),
        ("stall.agents:x", "there is no module 'stall.agents'"),
    ],
)
def test_unusable_target_is_explained(shop: Terminal, target: str, told: str) -> None:
    """The engine's own refusal stays as it is, and no class is made only to see what it is."""
    refused = shop.run("worker", target, "--create")
    assert (refused.code, told in refused.words) == (2, True), refused


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("serve --no-worker", "--worker, --no-worker: {} says so itself: Settings(run_worker=...)"),
        ("serve --store sqlite://", "--store: {} has its own: Engine(store, ...)"),
        ("worker --concurrency 100", "--concurrency: {} has its own: Settings(max_running=...)"),
        ("worker --create", "--create: {} makes the file of its store itself"),
        ("chat --file-folder x", "--file-folder: {} has its own: Engine(..., files=...)"),
    ],
)
def test_ignored_options_are_refused_for_engines(shop: Terminal, typed: str, told: str) -> None:
    """Else a service would run chats that it was told not to run. What the environment says is for whoever reads it."""
    command, *options = typed.split()
    refused = shop.run(command, "stall:engine", *options)
    assert (refused.code, told.format("'stall:engine' is an engine, which") in refused.words) == (2, True), refused
