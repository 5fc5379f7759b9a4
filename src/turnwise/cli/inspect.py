"""`turnwise inspect`: the chats of a store in a browser, to be read."""

from __future__ import annotations

import secrets
import socket
from functools import partial
from urllib.parse import quote

import anyio

from turnwise.cli.chat_argument import existing_store
from turnwise.cli.connected import address_of, place_of, token_of_service
from turnwise.cli.options import DEFAULT_STORE, PortOption, ServerOption, StoreOption
from turnwise.cli.style import console
from turnwise.engine.config.settings import Settings
from turnwise.engine.engine import Engine
from turnwise.states.errors import SettingsError


def inspect(
    *,
    store: StoreOption = DEFAULT_STORE,
    server: ServerOption = None,
    port: PortOption = 0,
) -> None:
    """Show the chats of a store in a browser of this machine, until Ctrl-C. Nothing can be changed there.

    The address holds a token: who has it may read all chats. With --server it is that of the service's own page.
    """
    if server is not None:
        _print_page(address_of(place_of(store, server)), token_of_service())
        return
    from turnwise import service  # noqa: PLC0415 - an extra's, and long to import

    engine = Engine(existing_store(store), model="demo", settings=Settings(run_worker=False))
    token = secrets.token_urlsafe(24)
    auth = service.StaticTokens({token: service.Principal("inspect", "auditor")})
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise SettingsError("--port", f"cannot listen on port {port}: {error.strerror}") from None
    with listener:

        def on_listening() -> None:
            _print_page(f"http://127.0.0.1:{listener.getsockname()[1]}", token)
            console.print("Ctrl-C ends it")

        serving = partial(service.serve, engine, auth=auth, sockets=[listener], log_level="warning")
        anyio.run(partial(serving, opened=on_listening))
    console.print("stopped")


def _print_page(server: str, token: str) -> None:
    console.print(f"look at {server}/inspector#token={quote(token, safe='')}", soft_wrap=True)
