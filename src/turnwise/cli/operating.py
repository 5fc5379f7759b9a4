"""Commands for an operator whose chat is stuck: each is one command of the engine, recorded under who gave it.

None of them runs the chat: a worker of the store does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

import typer
from rich.text import Text

from turnwise.cli.chat_argument import OPERATOR, Chats, acted, on_chat
from turnwise.cli.connected import place_of
from turnwise.cli.event_view import NOTE
from turnwise.cli.options import DEFAULT_STORE, ActorOption, ChatArgument, JsonOption, ServerOption, StoreOption
from turnwise.cli.show import summary
from turnwise.cli.style import clean, console, print_json
from turnwise.engine.config.results import Chat, SendReceipt


def send(  # noqa: PLR0913 - the options of a command
    chat: ChatArgument,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="What the user says.")],
    *,
    when_busy: Annotated[
        Literal["queue", "interrupt", "reject"], typer.Option(help="What becomes of it while the chat works.")
    ] = "queue",
    client_id: Annotated[str | None, typer.Option(help="Accept the message once under this name.")] = None,
    store: StoreOption = DEFAULT_STORE,
    server: ServerOption = None,
    actor: ActorOption = OPERATOR,
    as_json: JsonOption = False,
) -> None:
    """Send a message to a chat, as its user would."""

    async def sent(chats: Chats, chat_id: str) -> SendReceipt:
        options = {"when_busy": when_busy, "client_id": client_id}
        return await acted(chats.send_message, chat_id, message, actor=actor, **options)

    place = place_of(store, server)
    receipt = on_chat(place, chat, sent)
    if as_json:
        print_json(receipt)
        return
    done = "was accepted before" if receipt.replayed else "waits in the queue" if receipt.queued else "is accepted"
    tell(place, receipt.chat, f"message {receipt.message_id} {done}")


def interrupt(
    chat: ChatArgument,
    *,
    reason: Annotated[str | None, typer.Option(help="Why, for the audit log.")] = None,
    store: StoreOption = DEFAULT_STORE,
    server: ServerOption = None,
    actor: ActorOption = OPERATOR,
    as_json: JsonOption = False,
) -> None:
    """Stop a chat: what was shown is kept, open calls are closed, the queue waits."""

    async def stopped(chats: Chats, chat_id: str) -> Chat:
        return await acted(chats.interrupt, chat_id, reason=reason, actor=actor)

    _change(place_of(store, server), chat, stopped, as_json=as_json)


def _operation(method: Literal["resume", "archive", "unarchive"], purpose: str) -> Callable[..., None]:
    """Return the command line's command for a method that takes nothing but the chat and the actor."""

    def operate(
        chat: ChatArgument,
        *,
        store: StoreOption = DEFAULT_STORE,
        server: ServerOption = None,
        actor: ActorOption = OPERATOR,
        as_json: JsonOption = False,
    ) -> None:
        async def operated(chats: Chats, chat_id: str) -> Chat:
            return await acted(getattr(chats, method), chat_id, actor=actor)

        _change(place_of(store, server), chat, operated, as_json=as_json)

    operate.__name__, operate.__doc__ = method, purpose
    return operate


resume = _operation("resume", "Let a chat go on after an interrupt or an error.")
archive = _operation("archive", "Close a resting chat to everything but `unarchive`.")
unarchive = _operation("unarchive", "Open an archived chat again.")


def tell(place: str, chat: Chat, done: str | None = None) -> None:
    """Print what was done, where the chat stands now, and why it goes no further."""
    if done is not None:
        console.print(Text.assemble(("✓ ", "green"), clean(done)))
    console.print(summary(chat))
    explained = on_chat(place, chat.id, lambda chats, chat_id: chats.explain(chat_id))
    console.print(Text(clean(explained.reason), style=NOTE))


def _change(place: str, name: str, command: Callable[[Chats, str], Awaitable[Chat]], *, as_json: bool) -> None:
    chat = on_chat(place, name, command)
    if as_json:
        print_json(chat)
    else:
        tell(place, chat)
