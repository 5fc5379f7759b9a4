"""The arguments and options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from turnwise.cli.connect import FOLDER, OPERATOR, ChatSource
from turnwise.cli.style import Report
from turnwise.states.errors import SettingsError

DEFAULT_STORE: Final = "sqlite:///turnwise.db"


def parse_time(option: str, value: str) -> datetime:
    """Return the time that an option names."""
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise SettingsError(option, f"must be a time such as 2027-01-31T09:00+01:00; it was {value!r:.100}") from None


def time_in_utc(option: str, value: str | None) -> datetime | None:
    """Return the time that an option names, if it was given; without an offset it is in UTC."""
    time = None if value is None else parse_time(option, value)
    return time.replace(tzinfo=UTC) if time is not None and time.tzinfo is None else time


def _in_one_place(context: typer.Context, value: str | None) -> str | None:
    """Refuse a store beside a service: only one of them has the chats."""
    sources = [context.get_parameter_source(name) for name in ("store", "server")]
    if all(source is not None and source.name == "COMMANDLINE" for source in sources):
        raise SettingsError("--store, --server", "each names the place where the chats are: leave one of them out")
    return value


StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="TURNWISE_STORE",
        metavar="URL",
        callback=_in_one_place,
        help="The store of the chats.",
    ),
]
AgentsStoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="TURNWISE_STORE",
        metavar="URL",
        callback=_in_one_place,
        help="The store of the agents' chats; an engine has its own.",
    ),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        callback=_in_one_place,
        help="The service to use instead of a store, with the token TURNWISE_TOKEN.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ChatArgument = Annotated[str, typer.Argument(metavar="CHAT", help="A chat: its id, the beginning of it, or 'last'.")]
ActorOption = Annotated[
    str, typer.Option("--actor", envvar="TURNWISE_ACTOR", metavar="NAME", help="The actor, as the audit log names it.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="The model that answers; the demo model by default.")
]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 for any free one.")]
ConcurrencyOption = Annotated[
    int, typer.Option("--concurrency", min=1, help="Chats of agents to run at once; an engine has its own setting.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Do not log every transition.")]
FileFolderOption = Annotated[
    Path | None,
    typer.Option(
        FOLDER,
        envvar="TURNWISE_FILE_FOLDER",
        metavar="PATH",
        help="The folder for files, if the database does not keep them.",
    ),
]

_OPTIONS_OF_SOURCE: Final[Mapping[str, tuple[Any, Any]]] = {
    "store": (StoreOption, DEFAULT_STORE),
    "server": (ServerOption, None),
    "file_folder": (FileFolderOption, None),
    "actor": (ActorOption, OPERATOR),
}
"""The options that make a `ChatSource`, with their defaults."""
_JSON: Final = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption)


Body = Callable[..., Report | None]
"""The function of a command."""


def with_source(*more: Literal["file_folder", "actor"]) -> Callable[[Body], Callable[..., None]]:
    """Give a command the options --store and --server, and `more`, for its keyword parameter `source`.

    A command that returns a `Report` gets --json, too.
    """
    options = {name: option for name, option in _OPTIONS_OF_SOURCE.items() if name in ("store", "server", *more)}
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]

    def decorated(command: Body) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        json = [_JSON] if signature.return_annotation is Report else []

        @wraps(command)
        def run(*arguments: Any, **named: Any) -> None:
            as_json = bool(json) and named.pop("as_json", False)
            source = ChatSource.named(**{name: named.pop(name, default) for name, (_, default) in options.items()})
            report = command(*arguments, source=source, **named)
            if report is not None:
                report.print(as_json=as_json)

        own = [parameter for name, parameter in signature.parameters.items() if name != "source"]
        run.__signature__ = signature.replace(parameters=[*own, *json, *parameters])  # type: ignore[attr-defined] # for typer
        return run

    return decorated
