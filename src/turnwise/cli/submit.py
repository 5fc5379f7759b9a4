"""`turnwise submit`: answer what a chat asks of its client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic_core import from_json

from turnwise.cli.chat_argument import OPERATOR, Chats, acted, on_chat
from turnwise.cli.connected import place_of
from turnwise.cli.input import read_file
from turnwise.cli.operating import tell
from turnwise.cli.options import DEFAULT_STORE, ActorOption, ChatArgument, JsonOption, ServerOption, StoreOption
from turnwise.cli.style import print_json
from turnwise.engine.config.results import SubmissionReceipt
from turnwise.states.calls import ToolResult
from turnwise.states.errors import SettingsError


def submit(  # noqa: PLR0913 - the options of a command
    chat: ChatArgument,
    answers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CALL=]ANSWER...",
            help="An answer for each open call: JSON, or else text. Where one call is open it need not be named.",
        ),
    ] = None,
    *,
    failed: Annotated[
        bool,
        typer.Option(
            "--error", help="The answers say that the calls failed; in a file, those that have no `is_error`."
        ),
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(
            "--results",
            metavar="FILE",
            help='Take the answers from a file, or - for standard input: [{"call_id": ..., "output": ...}, ...].',
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    server: ServerOption = None,
    actor: ActorOption = OPERATOR,
    as_json: JsonOption = False,
) -> None:
    """Answer a chat's open client calls: all of them, each once. An approval is answered with true or false."""
    if bool(answers) == (results is not None):
        raise SettingsError("[CALL=]ANSWER", "give the answers, or --results FILE that holds them")
    from_file = _read(results, failed=failed) if results is not None else None

    async def submitted(chats: Chats, chat_id: str) -> SubmissionReceipt:
        if from_file is not None:
            return await acted(chats.submit_tool_results, chat_id, from_file, actor=actor)
        chat = await chats.get_chat(chat_id)
        open_ids = [call.call_id for call in chat.open_calls if call.is_client]
        # What looks like an answer of the one open call may be given to another one again.
        may_be_again = len(open_ids) == 1 and any("=" in answer for answer in answers or ())
        said = await chats.messages(chat_id) if may_be_again else []
        all_ids = [*open_ids, *(call.call_id for message in said for call in message.calls)]
        named = [_result(answer, open_ids, all_ids, failed=failed) for answer in answers or ()]
        return await acted(chats.submit_tool_results, chat_id, named, actor=actor)

    place = place_of(store, server)
    receipt = on_chat(place, chat, submitted)
    if as_json:
        print_json(receipt)
        return
    done = "was given before" if receipt.replayed else "is given"
    tell(place, receipt.chat, f"the answer {done}: receipt {receipt.receipt_id}")


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
    except (ValueError, TypeError):  # the latter says that it is no well-formed text
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
