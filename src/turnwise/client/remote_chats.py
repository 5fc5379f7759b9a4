"""The chats of a service: each method sends a request."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import AsyncGenerator, AsyncIterable, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Annotated, Any, Final, TypeVar, get_origin

import anyio
import httpx
from msgspec.structs import replace
from pydantic import Field, InstanceOf, SkipValidation

from turnwise.client.connection import Connection, read_pieces
from turnwise.client.errors import ServiceUnreachable
from turnwise.client.events import ChangesReader, EventReader, has_arrived
from turnwise.client.requests import Request, build_request, chat_path, decode_file, decode_lines, encode_lines, new_key
from turnwise.engine.admin.owners import OwnerTransfer
from turnwise.engine.agents.agent import Agent, Output
from turnwise.engine.agents.answer_format import format_of
from turnwise.engine.blobs.streams import FileContent, source_of
from turnwise.engine.chats.chats import Chats
from turnwise.engine.chats.declaration import CommandCall
from turnwise.engine.chats.reports import state_of
from turnwise.engine.chats.turns import Question
from turnwise.engine.config.results import Chat, Page, SendReceipt, TurnResult
from turnwise.engine.prompt.imported_history import imported_history
from turnwise.engine.subscriptions.turns import answer_in
from turnwise.persistence.archive.format import is_checkpoint
from turnwise.persistence.audit.checkpoints import published
from turnwise.persistence.audit.verify import Verdict, verify_export
from turnwise.persistence.blobs.protocol import BlobGone, intact
from turnwise.states.errors import FileNotFound, InvalidArgument, TurnwiseError
from turnwise.states.events import StatusEvent
from turnwise.states.files import is_digest
from turnwise.states.messages import FilePart, parts_of
from turnwise.states.names import RESTING, ChatState
from turnwise.states.values.checked import checked
from turnwise.states.values.limits import Label, Name, Seconds
from turnwise.states.values.plain import shown

Result = TypeVar("Result")
Item = TypeVar("Item")

_LONGEST_WAIT: Final = 25
"""Seconds that a service is asked to wait for an answer; then it is asked again."""


@checked
class RemoteChats(Chats, OwnerTransfer):
    """The chats of a service, as its clients see them and change them."""

    def __init__(self, connection: Annotated[Connection, SkipValidation]) -> None:
        self._connection = connection

    # Chats

    async def agents(self) -> dict[str, list[str]]:
        """Return the agents that the service runs, by name, each with the names of its tools."""
        return await self._get("/agents", dict[str, list[str]])

    async def export_chat(self, chat_id: str) -> AsyncGenerator[str, None]:
        """Yield a whole chat as lines of JSON, each with its line feed, see `Engine.export_chat`.

        An owner gets the chat and its messages as the owner sees them, which no store imports.

        Raises:
            ServiceUnreachable: the lines end before the last one of a chat.
        """
        request = Request(method="GET", path=chat_path(chat_id, "export"))
        line = ""
        async with aclosing(decode_lines(read_pieces(self._connection, request))) as lines:
            async for line in lines:
                yield line
        if not is_checkpoint(line):
            raise ServiceUnreachable(self._connection.url, "the export ends early", sent=False)

    async def import_chat(self, lines: Annotated[Iterable[str] | AsyncIterable[str], SkipValidation]) -> Chat:
        """Take in a chat that `export_chat` wrote, see `Engine.import_chat`: for operators.

        The lines are sent to their end, even if the service has refused the first.
        """
        return await self._connection.ask(
            Request(method="POST", path="/chats/import", stream=encode_lines(lines)), Chat
        )

    # Files

    async def put_file(
        self,
        chat_id: str,
        content: Annotated[FileContent, SkipValidation],
        *,
        media_type: Name | None = None,
        name: Label | None = None,
    ) -> FilePart:
        """Keep a file for a chat, and return the part by which messages of it refer to it, see `Engine.put_file`."""
        chat_path(chat_id)  # which no chat may have
        source = await source_of(content)
        async with aclosing(source.pieces) as pieces:
            request = Request(
                method="POST",
                path="/files",
                query={"chat": chat_id, "name": source.name if name is None else name},
                headers={"Content-Type": media_type or source.media_type},
                stream=pieces,
            )
            return await self._connection.ask(request, FilePart)

    async def open_file(
        self, chat_id: str, file: Annotated[FilePart | str, SkipValidation]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file that a chat holds, piece by piece, see `Engine.open_file`."""
        if not isinstance(file, FilePart | str):
            raise InvalidArgument("file", f"must be a FilePart or the digest of a file; it was {shown(file)}")
        if isinstance(file, FilePart) and file.data is not None:
            yield decode_file(file)
            return
        digest = file.blob if isinstance(file, FilePart) else str.__str__(file)
        if digest is None:
            raise InvalidArgument("file", "is given by address; turnwise fetches nothing")
        if not is_digest(digest):
            await self.get_chat(chat_id)
            raise FileNotFound(chat_id, digest)
        request = Request(method="GET", path=f"/files/{digest}", query={"chat": chat_id})
        pieces = read_pieces(self._connection, request)
        async with aclosing(pieces), aclosing(intact(digest, pieces)) as whole:  # type: ignore[type-var]
            try:
                async for piece in whole:
                    yield piece
            except BlobGone as gone:
                raise FileNotFound(chat_id, digest, gone.problem) from gone

    async def wait(
        self,
        chat_id: str,
        *,
        until: Annotated[Collection[ChatState | str], Field(min_length=1)] = RESTING,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the contract's word
    ) -> Chat:
        """Return the chat once its state is in `until`, see `Engine.wait`."""
        states = frozenset(state_of(state, "until") for state in until)
        look = Request(method="GET", path=chat_path(chat_id), repeatable=True, waits_out_limits=True)
        with anyio.fail_after(timeout or None):
            chat = await self.get_chat(chat_id)
            while not has_arrived(states, chat):
                if timeout == 0:
                    raise TimeoutError
                following = self.events(chat_id, after=chat.last_seq, until_rest=not has_arrived(RESTING, chat))
                async with aclosing(following) as events:
                    async for event in events:
                        if isinstance(event, StatusEvent) and event.state in states:
                            break
                chat = await self._connection.ask(look, Chat)
        return chat

    async def verify(
        self,
        chat_id: str,
        *,
        family: bool = False,
        files: bool = False,
        checkpoints: Annotated[str, InstanceOf] | None = None,
        public_key: bytes | None = None,
    ) -> Verdict:
        """Let the service check the log, see `Engine.verify`; `checkpoints` are compared with it here.

        `verify_export` checks an exported log here.
        """
        published(checkpoints, public_key)
        verdict = await self._get(chat_path(chat_id, "verify"), Verdict, family=family, files=files)
        if checkpoints is None or not verdict.ok:
            return verdict
        return verify_export(await self.export_audit(chat_id), checkpoints=checkpoints, public_key=public_key)

    async def _run(self, call: CommandCall) -> Any:
        if (history := call.arguments.get("history")) is not None:
            imported_history(history, limit=sys.maxsize)  # the service knows its own limit
        request = build_request(call)
        if call.command.is_paged:
            return await self._all(request, call.command.result)
        if get_origin(call.command.result) is Page:
            return await self._page(request, **call.arguments)
        return await self._connection.ask(request, call.command.result)

    async def _page(self, request: Request, *, limit: int, after: str | None, **_: Any) -> Page[Chat]:
        """Return a page of chats, which may be longer than those of the service."""
        chats: list[Chat] = []
        while True:
            query = {**request.query, "limit": limit - len(chats), "after": after}
            page = await self._connection.ask(replace(request, query=query), Page[Chat])
            chats += page.items
            after = page.next
            if after is None or len(chats) >= limit:
                return Page(chats, after)

    def _follow(self, call: CommandCall) -> AsyncGenerator[Any, None]:
        arguments = dict(call.arguments)
        if "chat_id" not in arguments:
            after = arguments.pop("after")
            return ChangesReader(self._connection, call.command.path, after, until_rest=False, **arguments).events()
        path, after = chat_path(arguments.pop("chat_id"), "events"), arguments.pop("after")
        return EventReader(self._connection, path, after, **arguments).events()

    async def _answer(self, question: Question[Output]) -> TurnResult[Output]:
        key = question.client_id or new_key()
        await self.send_message(question.chat_id, question.content, client_id=key)
        within = 0 if question.at_once else min(_LONGEST_WAIT, self._connection.settings.timeout / 2)
        request = Request(
            method="POST",
            path=chat_path(question.chat_id, "ask"),
            query={"within": within},
            headers={"Idempotency-Key": key},
            body={"content": parts_of(question.content)},
            repeatable=True,
        )
        while True:
            response = await self._connection.response_to(request, sent=True)
            if response.status_code == 200:  # noqa: PLR2004 - 202 says that it takes longer
                result: TurnResult[Any] = self._connection.read(response, TurnResult[Any])
                return result if question.agent is None else _with_output(result, question.agent)
            if question.at_once:
                raise TimeoutError

    @contextmanager
    def _after(self, receipt: SendReceipt) -> Iterator[None]:  # noqa: ARG002 - the error names the service instead
        try:
            yield
        except TurnwiseError as error:
            if not self._connection.leaves_open(error):
                raise
            raise self._connection.unanswered(error) from error

    async def _all(self, request: Request, answer: type[list[Item]]) -> list[Item]:
        """Return a whole list, of which the service gives a page at a time."""
        items: list[Item] = []
        while True:
            response = await self._connection.response_to(request)
            items += self._connection.read(response, answer)
            following = response.links.get("next")
            if following is None:
                return items
            skip = httpx.URL(following["url"]).params["skip"]
            request = replace(request, query={**request.query, "skip": skip})

    async def _get(self, path: str, answer: type[Result], **query: Any) -> Result:
        return await self._connection.ask(Request(method="GET", path=path, query=query, repeatable=True), answer)


def _with_output(result: TurnResult[Any], agent: Agent[Any, Output]) -> TurnResult[Output]:
    """Return the result with its answer as a value of the agent's type."""
    if agent.output is None or isinstance(agent.output, Mapping) or result.output is None:
        return result
    forms = {agent.name: format_of(agent.name, agent.output)}
    output = answer_in(result.messages, forms.get, agent.name, result.stop_reason)
    return dataclasses.replace(result, output=output)
