"""What an operator types at a chat that is stuck: each one command of the engine, on record under a name.

None of them runs the chat: a worker of the store does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, TypeVar

import anyio
import typer
from rich.text import Text

from turnwise.cli.chat_argument import attached, chosen_id
from turnwise.cli.event_view import NOTE
from turnwise.cli.options import DEFAULT_STORE, ActorOption, ChatArgument, JsonOption, StoreOption
from turnwise.cli.show import summary
from turnwise.cli.style import clean, console, print_json
from turnwise.engine.engine import Engine
from turnwise.engine.results import Chat

_T = TypeVar("_T")

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
    receipt = _on(
        store,
        chat,
        lambda engine, chat_id: engine.send_message(
            chat_id, message, when_busy=when_busy, client_id=client_id, actor=actor
        ),
    )
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
    _change(store, chat, lambda engine, chat_id: engine.interrupt(chat_id, reason=reason, actor=actor), as_json=as_json)


def resume(
    chat: ChatArgument,
    *,
    store: StoreOption = DEFAULT_STORE,
    actor: ActorOption = OPERATOR,
    as_json: JsonOption = False,
) -> None:
    """Let a chat go on after an interrupt or an error."""
    _change(store, chat, lambda engine, chat_id: engine.resume(chat_id, actor=actor), as_json=as_json)


def archive(
    chat: ChatArgument,
    *,
    store: StoreOption = DEFAULT_STORE,
    actor: ActorOption = OPERATOR,
    as_json: JsonOption = False,
) -> None:
    """Close a resting chat to everything but `unarchive`."""
    _change(store, chat, lambda engine, chat_id: engine.archive(chat_id, actor=actor), as_json=as_json)


def unarchive(
    chat: ChatArgument,
    *,
    store: StoreOption = DEFAULT_STORE,
    actor: ActorOption = OPERATOR,
    as_json: JsonOption = False,
) -> None:
    """Open an archived chat again."""
    _change(store, chat, lambda engine, chat_id: engine.unarchive(chat_id, actor=actor), as_json=as_json)


def tell(store: str, chat: Chat, done: str | None = None) -> None:
    """Print what was done, where the chat stands now, and why it goes no further."""
    if done is not None:
        console.print(Text.assemble(("✓ ", "green"), clean(done)))
    console.print(summary(chat))
    explanation = _on(store, chat.id, lambda engine, chat_id: engine.explain(chat_id))
    console.print(Text(clean(explanation.reason), style=NOTE))


def _change(store: str, name: str, command: Callable[[Engine, str], Awaitable[Chat]], *, as_json: bool) -> None:
    chat = _on(store, name, command)
    if as_json:
        print_json(chat)
    else:
        tell(store, chat)


def _on(store: str, name: str, command: Callable[[Engine, str], Awaitable[_T]]) -> _T:
    """Return what a command on the chat that was meant gives."""

    async def acted() -> Any:
        async with attached(store) as engine:
            return await command(engine, await chosen_id(engine, name))

    result: _T = anyio.run(acted)
    return result
