"""Commands for an operator whose chat is stuck: each is one command of the engine, recorded under who gave it.

None of them runs the chat: a worker of the store does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Literal

import typer
from rich.text import Text

from turnwise.cli.chat_argument import on_chat
from turnwise.cli.event_view import NOTE
from turnwise.cli.options import DEFAULT_STORE, ActorOption, ChatArgument, JsonOption, StoreOption
from turnwise.cli.show import summary
from turnwise.cli.style import clean, console, print_json
from turnwise.engine.engine import Engine
from turnwise.engine.results import Chat

OPERATOR = "operator"


def send(  # noqa: PLR0913 - the options of a command
    chat: ChatArgument,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="What the user says.", show_default=False)],
    *,
    when_busy: Annotated[
        Literal["queue", "interrupt", "reject"], typer.Option(help="What becomes of it while the chat works.")
    ] = "queue",
    client_id: Annotated[str | None, typer.Option(help="Accept the message once under this name.")] = None,
    store: StoreOption = DEFAULT_STORE,
    actor: ActorOption = OPERATOR,
    as_json: JsonOption = False,
) -> None:
    """Send a message to a chat, as its user would."""
    said = partial(Engine.send_message, content=message, when_busy=when_busy, client_id=client_id, actor=actor)
    receipt = on_chat(store, chat, said)
    if as_json:
        print_json(receipt)
        return
    done = "was accepted before" if receipt.replayed else "waits in the queue" if receipt.queued else "is accepted"
    tell(store, receipt.chat, f"message {receipt.message_id} {done}")


def interrupt(
    chat: ChatArgument,
    *,
    reason: Annotated[str | None, typer.Option(help="Why, for the audit log.")] = None,
    store: StoreOption = DEFAULT_STORE,
    actor: ActorOption = OPERATOR,
    as_json: JsonOption = False,
) -> None:
    """Stop a chat: what was shown is kept, open calls are closed, the queue waits."""
    _change(store, chat, partial(Engine.interrupt, reason=reason, actor=actor), as_json=as_json)


def _operation(command: Callable[..., Awaitable[Chat]], purpose: str) -> Callable[..., None]:
    """Return the command line's command for a method of the engine that takes nothing but the chat and the actor."""

    def operate(
        chat: ChatArgument,
        *,
        store: StoreOption = DEFAULT_STORE,
        actor: ActorOption = OPERATOR,
        as_json: JsonOption = False,
    ) -> None:
        _change(store, chat, partial(command, actor=actor), as_json=as_json)

    operate.__name__, operate.__doc__ = command.__name__, purpose
    return operate


resume = _operation(Engine.resume, "Let a chat go on after an interrupt or an error.")
archive = _operation(Engine.archive, "Close a resting chat to everything but `unarchive`.")
unarchive = _operation(Engine.unarchive, "Open an archived chat again.")


def tell(store: str, chat: Chat, done: str | None = None) -> None:
    """Print what was done, where the chat stands now, and why it goes no further."""
    if done is not None:
        console.print(Text.assemble(("✓ ", "green"), clean(done)))
    console.print(summary(chat))
    console.print(Text(clean(on_chat(store, chat.id, Engine.explain).reason), style=NOTE))


def _change(store: str, name: str, command: Callable[[Engine, str], Awaitable[Chat]], *, as_json: bool) -> None:
    chat = on_chat(store, name, command)
    if as_json:
        print_json(chat)
    else:
        tell(store, chat)
