"""`turnwise serve`: the chats of an engine over HTTP."""

from __future__ import annotations

import logging
import secrets
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from turnwise.cli.file_folder import FileFolderOption
from turnwise.cli.options import DEFAULT_STORE
from turnwise.cli.published_checkpoints import PublishingKeyOption, PublishOption, checkpoints_of
from turnwise.cli.style import console
from turnwise.cli.target import CreateOption, TargetArgument, engine_of
from turnwise.engine.settings import Settings
from turnwise.states.errors import SettingsError

if TYPE_CHECKING:
    from turnwise.service import Authenticator


def serve(  # noqa: PLR0913 - options
    target: TargetArgument,
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any that is free.")] = 8080,
    tokens: Annotated[
        Path | None,
        typer.Option(
            envvar="TURNWISE_TOKENS", metavar="FILE", help="A TOML file that names each principal and its token."
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="TURNWISE_TOKEN",
            metavar="TOKEN",
            help="The token of one operator, if there is no file; by default a new one, which is shown.",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="An origin whose pages may call; may be repeated.")
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            envvar="TURNWISE_STORE",
            metavar="URL",
            help="Where the chats of agents are kept; an engine has its own store.",
        ),
    ] = DEFAULT_STORE,
    file_folder: FileFolderOption = None,
    create: CreateOption = False,
    run_worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Run chats of agents here, too; an engine has its own setting.")
    ] = True,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Chats of agents to run at once; an engine has its own setting.")
    ] = 100,
    shutdown_seconds: Annotated[
        float, typer.Option(min=0, help="How long open requests may go on once it is asked to stop.")
    ] = 10,
    checkpoints: PublishOption = None,
    signing_key: PublishingKeyOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not tell every transition.")] = False,
) -> None:
    """Serve chats over HTTP until SIGTERM or Ctrl-C, and run them, unless other workers do.

    The paths are described at /openapi.json. Every request needs a token: 'Authorization: Bearer TOKEN'.
    """
    from turnwise import service  # noqa: PLC0415 - an extra's, and long to import

    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    logging.raiseExceptions = False  # whoever reads the log may leave
    settings = Settings(max_running=concurrency, run_worker=run_worker)
    limits = service.ServiceSettings(allow_origins=tuple(allow_origin or ()), shutdown_seconds=shutdown_seconds)
    published = checkpoints_of(checkpoints, signing_key)
    engine = engine_of(
        target, store=store, file_folder=file_folder, create=create, settings=settings, checkpoints=published
    )
    auth = _auth(tokens, token)
    with _listening(host, port) as listener:
        address, bound = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address

        def told() -> None:
            console.print(f"serving on http://{shown}:{bound}; SIGTERM or Ctrl-C stops it", highlight=False)

        serving = partial(service.serve, engine, auth=auth, sockets=[listener], settings=limits, log_level="warning")
        anyio.run(partial(serving, opened=told))
    console.print("stopped")


def _auth(tokens: Path | None, token: str | None) -> Authenticator:
    from turnwise.service import Principal, StaticTokens  # noqa: PLC0415 - an extra's

    if tokens is not None:
        return StaticTokens.from_file(tokens)
    if token is None:
        token = secrets.token_urlsafe(24)
        console.print(f"operator's token, valid until this process ends: {token}", highlight=False, soft_wrap=True)
    return StaticTokens({token: Principal("operator", "operator")})


def _listening(host: str, port: int) -> socket.socket:
    try:
        host.encode("idna")
    except UnicodeError:
        raise SettingsError("--host", f"must be an address or the name of a host; it was {host!r:.100}") from None
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingsError("--host, --port", f"cannot listen on {host} port {port}: {error.strerror}") from None
