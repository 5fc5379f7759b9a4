"""The arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated, Final

import typer

DEFAULT_STORE: Final = "sqlite:///turnwise.db"

StoreOption = Annotated[
    str, typer.Option("--store", envvar="TURNWISE_STORE", metavar="URL", help="Where the chats are kept.")
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
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
