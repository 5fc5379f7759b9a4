"""The engines that commands run: one of the user's code, one for the user's agents, or one whose tools read files."""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from turnwise.cli.connect import check_is_there, files_to_run_with
from turnwise.cli.keys import PUBLISH
from turnwise.engine.agents.agent import Agent
from turnwise.engine.checkpoints.checkpoints import Checkpoints
from turnwise.engine.config.settings import Settings
from turnwise.engine.engine import Engine
from turnwise.engine.observers.observer import Observer
from turnwise.engine.tools.declare import Tool, tool
from turnwise.states.errors import SettingsError, TurnwiseError

_TARGET: Final = re.compile(r"(?!.*\.py:)[\w.]+:[\w.]+")
_TARGETS: Final = "Your engine, a function that makes one, an agent, or a list of agents."
TargetArgument = Annotated[str, typer.Argument(metavar="MODULE:ATTRIBUTE", help=_TARGETS)]
OptionalTarget = Annotated[str | None, typer.Argument(metavar="[MODULE:ATTRIBUTE]", help=_TARGETS)]
CreateOption = Annotated[
    bool, typer.Option("--create", help="Create the file of --store, and the folder of its files, if missing.")
]

CREATE_IT: Final = "--create creates it"
_OF_AN_ENGINE: Final = {
    "store": ("--store", "has its own: Engine(store, ...)"),
    "file_folder": ("--file-folder", "has its own: Engine(..., files=...)"),
    "create": ("--create", "makes the file of its store itself"),
    "run_worker": ("--worker, --no-worker", "says so itself: Settings(run_worker=...)"),
    "concurrency": ("--concurrency", "has its own: Settings(max_running=...)"),
    "checkpoints": (PUBLISH, "has its own: Engine(..., checkpoints=...)"),
}
"""The options that an engine would ignore, by parameters of commands, each with the right way."""


def typed_options(context: typer.Context) -> Collection[str]:
    """Return the parameters of a command that were typed: neither defaults nor environment variables."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def engine_of(  # noqa: PLR0913 - the options of commands
    target: str,
    *,
    store: str,
    file_folder: Path | None,
    create: bool,
    right: str = CREATE_IT,
    settings: Settings,
    checkpoints: Checkpoints | None = None,
    observers: Callable[[], Sequence[Observer]] = tuple,
    typed: Collection[str] = (),
) -> Engine:
    """Return the engine that `module:attribute` names, not entered yet, or a new one for the agents that it names.

    All other arguments are for a new engine; `typed` are those that must not be given with an engine of one's own.
    """
    named = _import_object(target)
    made = _call_factory(target, named) if callable(named) and not isinstance(named, type) else named
    if isinstance(made, Engine):
        for option, how in (own for name, own in _OF_AN_ENGINE.items() if name in typed):
            raise SettingsError(option, f"{target!r} is an engine, which {how}")
        return made
    agents = [made] if isinstance(made, Agent) else made
    if not isinstance(agents, Sequence) or not agents or not all(isinstance(agent, Agent) for agent in agents):
        raise SettingsError(
            "MODULE:ATTRIBUTE",
            f"{target!r} must be an Engine, a function that makes one, an Agent, or a list of agents; it was "
            f"{made!r:.100}",
        )
    if not create:
        check_is_there(store, right)
    files = files_to_run_with(file_folder, create=create)
    return Engine(store, files=files, agents=agents, settings=settings, checkpoints=checkpoints, observers=observers())


def _call_factory(target: str, make: Callable[[], Any]) -> Any:
    if inspect.iscoroutinefunction(make):
        problem = f"{target!r} is an async function; a function that makes an engine is none"
        raise SettingsError("MODULE:ATTRIBUTE", problem)
    try:
        return make()
    except TurnwiseError:
        raise
    except Exception as error:
        raise SettingsError("MODULE:ATTRIBUTE", f"{target!r} raised {type(error).__name__}: {error}") from error


def _import_object(target: str) -> Any:
    if not _TARGET.fullmatch(target):
        raise SettingsError("MODULE:ATTRIBUTE", f"must be like shop.agents:engine; it was {target!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return pkgutil.resolve_name(target)
    except TurnwiseError:
        raise
    except Exception as error:
        problem = f"{target!r} cannot be imported: {type(error).__name__}: {error}"
        raise SettingsError("MODULE:ATTRIBUTE", problem) from error


MOST_NAMES: Final = 60


def file_tools(root: Path, *, max_characters: int = 20_000) -> list[Tool]:
    """Return `list_files` and `read_file` for the folder `root`. Hidden files and all that lies outside are refused."""
    root = root.resolve()

    def inside(path: str) -> Path:
        place = (root / path).resolve()
        if not place.is_relative_to(root):
            raise PermissionError(f"{path!r} lies outside the folder {root.name!r}; only what is below it may be read")
        if any(part.startswith(".") for part in place.relative_to(root).parts):
            raise PermissionError(f"{path!r} is hidden; hidden files are not read")
        return place

    @tool(parallel_safe=True, crash="at_least_once")
    def list_files(path: str = ".") -> list[str]:
        """List the files and folders in a folder of the project."""
        names = sorted(
            f"{entry.name}/" if entry.is_dir() else entry.name
            for entry in inside(path).iterdir()
            if not entry.name.startswith(".")
        )
        more = len(names) - MOST_NAMES
        return [*names[:MOST_NAMES], f"and {more} more"] if more > 0 else names

    @tool(parallel_safe=True, crash="at_least_once")
    def read_file(path: str) -> str:
        """Read a text file of the project."""
        with inside(path).open(encoding="utf-8") as file:
            text = file.read(max_characters)
            return f"{text}\n[cut: the file goes on]" if file.read(1) else text

    return [list_files, read_file]
