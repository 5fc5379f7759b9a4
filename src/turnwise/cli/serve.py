"""`turnwise serve` and `turnwise inspect`: the chats of an engine over HTTP."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import anyio
import typer

from turnwise.cli.connect import ChatSource, address_of, existing_store, token_of_service
from turnwise.cli.keys import PublishingKeyOption, PublishOption, checkpoints_of
from turnwise.cli.options import (
    DEFAULT_STORE,
    AgentsStoreOption,
    ConcurrencyOption,
    FileFolderOption,
    PortOption,
    QuietOption,
    with_source,
)
from turnwise.cli.style import console, show_logs
from turnwise.cli.target import CreateOption, TargetArgument, engine_of, typed_options
from turnwise.engine.config.settings import Settings
from turnwise.engine.engine import Engine
from turnwise.engine.observers.observer import Observer
from turnwise.states.errors import InvalidArgument, SettingsError

if TYPE_CHECKING:
    from turnwise.service import Authenticator

TokensOption = Annotated[
    Path | None,
    typer.Option(
        "--tokens",
        envvar="TURNWISE_TOKENS",
        metavar="FILE",
        help="A TOML file that names each principal and its token.",
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="TURNWISE_TOKEN",
        metavar="TOKEN",
        help="The token of one operator, without a file; by default a new one, which is printed.",
    ),
]
OriginsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-origin", metavar="ORIGIN", help="An origin whose pages may call the service; may be repeated."
    ),
]
OwnersMayOption = Annotated[
    list[str] | None,
    typer.Option(
        "--owners-may",
        metavar="OPERATION",
        help="A permission of owners in addition to the defaults: an operation (erase) or one of its fields "
        "(update_chat.title); may be repeated.",
    ),
]
RateOption = Annotated[float, typer.Option(min=0, help="Requests per second of each principal, on average.")]
BurstOption = Annotated[int, typer.Option(min=0, help="Requests that each principal may send at once.")]
StreamsOption = Annotated[
    int, typer.Option(min=0, help="Streams and `ask` requests that each principal may have open.")
]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-model",
        metavar="NAME",
        help="A model that clients may choose, in addition to those of the agents; may be repeated.",
    ),
]
WebhooksOption = Annotated[
    Path | None,
    typer.Option(
        "--webhooks",
        envvar="TURNWISE_WEBHOOKS",
        metavar="FILE",
        help="A TOML file that names each webhook, its address and its secret.",
    ),
]
RunWorkerOption = Annotated[
    bool, typer.Option("--worker/--no-worker", help="Also run the chats of the agents; an engine has its own setting.")
]


def serve(  # noqa: PLR0913 - options
    context: typer.Context,
    target: TargetArgument,
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: PortOption = 8080,
    tokens: TokensOption = None,
    token: TokenOption = None,
    owners_may: OwnersMayOption = None,
    allow_origin: OriginsOption = None,
    allow_model: ModelsOption = None,
    webhooks: WebhooksOption = None,
    requests_per_second: RateOption = 50,
    burst: BurstOption = 200,
    streams_per_owner: StreamsOption = 100,
    store: AgentsStoreOption = DEFAULT_STORE,
    file_folder: FileFolderOption = None,
    create: CreateOption = False,
    run_worker: RunWorkerOption = True,
    concurrency: ConcurrencyOption = 100,
    shutdown_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds that open requests may take after a signal to stop.")
    ] = 10,
    checkpoints: PublishOption = None,
    signing_key: PublishingKeyOption = None,
    quiet: QuietOption = False,
) -> None:
    """Serve chats over HTTP until SIGTERM or Ctrl-C, and run them, unless other workers do.

    The paths are described at /openapi.json. Every request needs a token: 'Authorization: Bearer TOKEN'.
    """
    from turnwise import service  # noqa: PLC0415 - an extra's, and long to import

    show_logs(quiet=quiet)
    settings = Settings(max_running=concurrency, run_worker=run_worker)
    limits = service.ServiceSettings(
        owners_may=service.OWNERS_MAY | set(owners_may or ()),
        allow_origins=tuple(allow_origin or ()),
        models=tuple(allow_model or ()),
        webhooks=[] if webhooks is None else service.Webhook.from_file(webhooks),
        requests_per_second=requests_per_second,
        burst=burst,
        streams_per_owner=streams_per_owner,
        shutdown_seconds=shutdown_seconds,
    )
    engine = engine_of(
        target,
        store=store,
        file_folder=file_folder,
        create=create,
        settings=settings,
        checkpoints=checkpoints_of(checkpoints, signing_key),
        observers=_observers,
        typed=typed_options(context),
    )
    auth = _auth(tokens, token)
    with _listening(host, port) as listener:
        started = f"serving on {_listener_url(listener)}; SIGTERM or Ctrl-C stops it"
        _serve(engine, auth, listener, partial(console.print, started), settings=limits)


@cache
def _observers() -> tuple[Observer, ...]:
    """Return the observer for `/metrics`, one for the process: its registry takes the metrics of one only."""
    from turnwise.engine.observers.prometheus import PrometheusObserver  # noqa: PLC0415 - an extra's

    try:
        return (PrometheusObserver(),)
    except InvalidArgument:
        raise SettingsError(
            "MODULE:ATTRIBUTE",
            "the module has a PrometheusObserver already; serve the engine that it is of, or give it its own registry",
        ) from None


def _listener_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _auth(tokens: Path | None, token: str | None) -> Authenticator:
    from turnwise.service import Principal, StaticTokens  # noqa: PLC0415 - an extra's

    if tokens is not None:
        return StaticTokens.from_file(tokens)
    if token is None:
        token = secrets.token_urlsafe(24)
        console.print(f"operator's token, valid until this process ends: {token}", soft_wrap=True)
    return StaticTokens({token: Principal("operator", "operator")})


def _listening(host: str, port: int, *, option: str = "--host, --port") -> socket.socket:
    try:
        host.encode("idna")
    except UnicodeError:
        raise SettingsError("--host", f"must be an address or the name of a host; it was {host!r:.100}") from None
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingsError(option, f"cannot listen on {host} port {port}: {error.strerror}") from None


@with_source()
def inspect(
    *,
    source: ChatSource,
    port: PortOption = 0,
) -> None:
    """Show the chats of a store in a browser, read-only, until Ctrl-C.

    The address contains a token that may read all chats. With --server, it is the page of the service.
    """
    if source.is_service:
        _print_page(address_of(source.url), token_of_service())
        return
    from turnwise import service  # noqa: PLC0415 - an extra's, and long to import

    engine = Engine(existing_store(source.url), model="demo", settings=Settings(run_worker=False))
    token = secrets.token_urlsafe(24)
    auth = service.StaticTokens({token: service.Principal("inspect", "auditor")})
    with _listening("127.0.0.1", port, option="--port") as listener:

        def on_listening() -> None:
            _print_page(_listener_url(listener), token)
            console.print("Ctrl-C ends it")

        _serve(engine, auth, listener, on_listening)


def _serve(
    engine: Engine, auth: Authenticator, listener: socket.socket, opened: Callable[[], None], **options: Any
) -> None:
    from turnwise import service  # noqa: PLC0415 - an extra's, and long to import

    serving = partial(service.serve, engine, auth=auth, sockets=[listener], log_level="warning", opened=opened)
    anyio.run(partial(serving, **options))
    console.print("stopped")


def _print_page(server: str, token: str) -> None:
    console.print(f"look at {server}/inspector#token={quote(token, safe='')}", soft_wrap=True)
