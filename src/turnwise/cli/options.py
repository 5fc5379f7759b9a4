"""The arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from turnwise.states.errors import SettingsError

DEFAULT_STORE: Final = "sqlite:///turnwise.db"


def _in_one_place(context: typer.Context, value: str | None) -> str | None:
    """Check that a store and a service were not both typed: the chats are in one of them, and it might not be meant."""
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
        help="Where the chats are kept.",
    ),
]
AgentsStoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="TURNWISE_STORE",
        metavar="URL",
        callback=_in_one_place,
        help="Where the chats of agents are kept; an engine has its own store.",
    ),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        callback=_in_one_place,
        help="The service that has the chats, instead of a store; TURNWISE_TOKEN is the token.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
ChatArgument = Annotated[str, typer.Argument(metavar="CHAT", help="A chat: its id, the beginning of it, or 'last'.")]
ActorOption = Annotated[
    str, typer.Option("--actor", envvar="TURNWISE_ACTOR", metavar="NAME", help="Who acts, as the audit log names them.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="The model that answers; the demo model by default.")
]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 for any that is free.")]
ConcurrencyOption = Annotated[
    int, typer.Option("--concurrency", min=1, help="Chats of agents to run at once; an engine has its own setting.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Do not tell every transition.")]
