"""Commands for an operator whose chat is stuck, or waits for its client: each is one command of the engine.

The audit log records the actor. A worker of the store runs the chat.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic_core import from_json
from rich.text import Text

from turnwise.cli.connect import Chats, ChatSource
from turnwise.cli.event_view import NOTE
from turnwise.cli.files import read_file
from turnwise.cli.options import ChatArgument, with_source
from turnwise.cli.show import summary
from turnwise.cli.style import Report, clean, console
from turnwise.engine.config.results import Chat, SendReceipt, SubmissionReceipt
from turnwise.states.calls import ToolResult
from turnwise.states.errors import SettingsError
from turnwise.states.names import WhenBusy


@with_source("actor")
def send(
    chat: ChatArgument,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The text of the message.")],
    *,
    when_busy: Annotated[WhenBusy, typer.Option(help="What to do while the chat works.")] = "queue",
    client_id: Annotated[str | None, typer.Option(help="An id: a message with the same id is accepted once.")] = None,
    source: ChatSource,
) -> Report:
    """Send a message to a chat, as its user would."""

    async def sent(chats: Chats, chat_id: str) -> SendReceipt:
        return await chats.send_message(chat_id, message, when_busy=when_busy, client_id=client_id)

    receipt = source.on_chat(chat, sent)
    waits = "steers the turn" if when_busy == "steer" else "waits in the queue"
    done = "was accepted before" if receipt.replayed else waits if receipt.queued else "is accepted"
    return Report(receipt, partial(report, source, receipt.chat, f"message {receipt.message_id} {done}"))


@with_source("actor")
def interrupt(
    chat: ChatArgument,
    *,
    reason: Annotated[str | None, typer.Option(help="The reason, for the audit log.")] = None,
    source: ChatSource,
) -> Report:
    """Stop a chat. The text so far is kept, open calls are closed, the queue waits."""
    return _change(source, chat, lambda chats, chat_id: chats.interrupt(chat_id, reason=reason))


def _operation(method: Literal["resume", "archive", "unarchive", "mark_read"], purpose: str) -> Callable[..., None]:
    """Return the command for a method that takes only the chat and the actor."""

    @with_source("actor")
    def operate(chat: ChatArgument, *, source: ChatSource) -> Report:
        return _change(source, chat, lambda chats, chat_id: getattr(chats, method)(chat_id))

    operate.__name__, operate.__doc__ = method, purpose
    return operate


resume = _operation("resume", "Continue a chat after an interrupt or an error.")
archive = _operation("archive", "Archive a resting chat: it accepts only `unarchive`.")
unarchive = _operation("unarchive", "Unarchive a chat.")
mark_read = _operation("mark_read", "Mark the end of a chat's last turn as read.")


def report(source: ChatSource, chat: Chat, done: str | None = None) -> None:
    """Print what was done, the state of the chat, and why it waits."""
    if done is not None:
        console.print(Text.assemble(("✓ ", "green"), clean(done)))
    console.print(summary(chat))
    explained = source.on_chat(chat.id, lambda chats, chat_id: chats.explain(chat_id))
    console.print(Text(clean(explained.reason), style=NOTE))


def _change(source: ChatSource, name: str, command: Callable[[Chats, str], Awaitable[Chat]]) -> Report:
    chat = source.on_chat(name, command)
    return Report(chat, partial(report, source, chat))


@with_source("actor")
def submit(
    chat: ChatArgument,
    answers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CALL=]ANSWER...",
            help="An answer for each open call, as JSON or text. If only one call is open, leave its id out.",
        ),
    ] = None,
    *,
    failed: Annotated[
        bool,
        typer.Option("--error", help="Mark the answers as failures; in a file, those without `is_error`."),
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(
            "--results",
            metavar="FILE",
            help='Take the answers from a file, or - for standard input: [{"call_id": ..., "output": ...}, ...].',
        ),
    ] = None,
    source: ChatSource,
) -> Report:
    """Answer a chat's open client calls: all of them, each once. An approval is answered with true or false."""
    if bool(answers) == (results is not None):
        raise SettingsError("[CALL=]ANSWER", "give the answers, or --results FILE that holds them")
    from_file = _read(results, failed=failed) if results is not None else None

    async def submitted(chats: Chats, chat_id: str) -> SubmissionReceipt:
        if from_file is not None:
            return await chats.submit_tool_results(chat_id, from_file)
        chat = await chats.get_chat(chat_id)
        open_ids = [call.call_id for call in chat.open_calls if call.is_client]
        # `a=b` may answer the one open call, or repeat an answer to an earlier call `a`.
        is_ambiguous = len(open_ids) == 1 and any("=" in answer for answer in answers or ())
        history = await chats.messages(chat_id) if is_ambiguous else []
        all_ids = [*open_ids, *(call.call_id for message in history for call in message.calls)]
        named = [_result(answer, open_ids, all_ids, failed=failed) for answer in answers or ()]
        return await chats.submit_tool_results(chat_id, named)

    receipt = source.on_chat(chat, submitted)
    done = "was given before" if receipt.replayed else "is given"
    return Report(receipt, partial(report, source, receipt.chat, f"the answer {done}: receipt {receipt.receipt_id}"))


def _result(answer: str, open_ids: Sequence[str], all_ids: Sequence[str], *, failed: bool) -> ToolResult:
    named, equals, rest = answer.partition("=")
    for call_id in sorted(all_ids, key=len, reverse=True):  # an id may hold a `=`, and begin as another does
        if answer.startswith(f"{call_id}="):
            return ToolResult(call_id, _value(answer.removeprefix(f"{call_id}=")), failed)
    # With one open call, `a=b` may be its answer; else `a` names one that was answered before.
    if equals and len(open_ids) != 1:
        return ToolResult(named, _value(rest), failed)
    if len(open_ids) == 1:
        return ToolResult(open_ids[0], _value(answer), failed)
    raise SettingsError("[CALL=]ANSWER", f"{answer!r} names no call; open are: {', '.join(open_ids) or 'none'}")


def _value(text: str) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except (ValueError, TypeError):  # TypeError: the text is not well-formed
        return text


def _read(file: Path, *, failed: bool) -> list[ToolResult]:
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - takes long to import

    content = read_file("--results", file)
    try:
        answers = TypeAdapter(list[ToolResult]).validate_json(content)
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        example = '[{"call_id": "c1", "output": "yes"}]'
        raise SettingsError("--results", f"must hold JSON such as {example}: {problem}") from error
    if not failed:
        return answers
    silent = ["is_error" not in entry for entry in from_json(content)]
    return [replace(answer, is_error=answer.is_error or on) for answer, on in zip(answers, silent, strict=True)]
