"""The client: the methods of `Engine`, for the chats of a service."""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncGenerator, AsyncIterable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any, Final, Self, TypeVar, cast
from urllib.parse import quote, urlsplit

import anyio
import httpx
from pydantic import Field, InstanceOf, SkipValidation

from turnwise.client.connection import Connection, Request, pieces_of
from turnwise.client.errors import ServiceUnreachable
from turnwise.client.events import EventReader, has_arrived
from turnwise.client.files import decoded, lines_in, lines_out
from turnwise.client.settings import ClientSettings
from turnwise.engine.admin.erase import Erasable, Erasure, wanted
from turnwise.engine.admin.explain import Explanation
from turnwise.engine.agents.agent import Agent, Output
from turnwise.engine.agents.answer_format import format_of
from turnwise.engine.blobs.streams import FileContent, source_of
from turnwise.engine.config.results import (
    Chat,
    Compaction,
    Page,
    SendReceipt,
    SubmissionReceipt,
    TurnResult,
    UsageEntry,
)
from turnwise.engine.prompt.imported_history import History, imported_history
from turnwise.engine.prompt.views import HistoryView
from turnwise.engine.subscriptions.turns import TurnReader, answer_in
from turnwise.engine.unchanged import UNCHANGED, Unchanged, changes_of
from turnwise.persistence.archive.format import is_checkpoint
from turnwise.persistence.audit.checkpoints import published
from turnwise.persistence.audit.record import AuditRecord, export
from turnwise.persistence.audit.signing import SigningKey
from turnwise.persistence.audit.verify import Verdict, verify_export
from turnwise.persistence.blobs.intact import intact
from turnwise.persistence.blobs.protocol import BlobGone
from turnwise.persistence.store_url import without_password
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.calls import ClientTool, ToolResult
from turnwise.states.errors import ChatNotFound, FileNotFound, InvalidArgument, SettingsError, TurnwiseError
from turnwise.states.events import Event, StatusEvent
from turnwise.states.files import is_digest
from turnwise.states.messages import Content, FilePart, Message, QueuedMessage, parts_of
from turnwise.states.names import RESTING, Answerer, ChatState, WhenBusy
from turnwise.states.transcript import Transcript
from turnwise.states.usage import Usage
from turnwise.states.values.checked import checked
from turnwise.states.values.limits import JsonObject, Key, Label, Name, Ordinal, PageSize, Seconds
from turnwise.states.values.plain import shown

Result = TypeVar("Result")
Item = TypeVar("Item")

_PAGE: Final = 1000
"""The most that a service gives at once."""
_LONGEST_WAIT: Final = 25
"""Seconds that a service is asked to wait for an answer; then it is asked again."""


@checked
class Client:
    """The chats of a service: every method does what the method of that name of `Engine` does, and raises its errors.

    Use it as an async context manager. One client serves any number of tasks. Who acts is whom the token names.

    Streams and waiting methods come back by themselves, after the last event seen, when the connection or the service
    breaks. Other requests are sent again where doing so twice is the same as once.

    Args:
        url: of the service, as in `https://chats.example.com` or `http://localhost:8080/v1`.
        token: of a principal of the service.
        settings: how long the client waits, and how it comes back.

    Raises:
        InvalidArgument: the URL or the token cannot be one.
    """

    def __init__(self, url: str, *, token: str, settings: ClientSettings | None = None) -> None:
        self._connection = Connection(sound_url(url), _sound_token(token), settings or ClientSettings())

    async def __aenter__(self) -> Self:
        """Make ready to send. Nothing is sent before the first call of a method."""
        await self._connection.open()
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Close every connection; streams that are open end."""
        await self._connection.close()

    # Chats

    async def create_chat(  # noqa: PLR0913 - the contract
        self,
        *,
        system: str | None = None,
        client_tools: Sequence[ClientTool] = (),
        owner: Key | None = None,
        title: Label | None = None,
        metadata: JsonObject | None = None,
        parent: str | None = None,
        agent: Name | None = None,
        model: Name | None = None,
        parameters: JsonObject | None = None,
        active_tools: Sequence[str] | None = None,
        history: History | None = None,
        client_id: Name | None = None,
    ) -> Chat:
        """Create a chat, see `Engine.create_chat`. What an owner creates is its own.

        Without a `client_id` one is made up, so that a chat whose answer is lost on the way is not created twice.
        """
        if history is not None:
            imported_history(history, limit=sys.maxsize)  # the service knows its own limit
        fields = {
            "system": system,
            "client_tools": list(client_tools),
            "owner": owner,
            "title": title,
            "metadata": metadata,
            "parent": parent,
            "agent": agent,
            "model": model,
            "parameters": parameters,
            "active_tools": active_tools,
            "history": None if history is None else list(history),
        }
        body = {name: value for name, value in fields.items() if value is not None}
        return await self._post("/chats", body, Chat, key=_key(client_id))

    async def get_chat(self, chat_id: str) -> Chat:
        """Return a chat as it stands, see `Engine.get_chat`."""
        return await self._get(_of(chat_id), Chat)

    async def list_chats(
        self,
        *,
        owner: Key | None = None,
        state: ChatState | str | None = None,
        awaiting: Answerer | None = None,
        limit: PageSize = 50,
        after: str | None = None,
    ) -> Page[Chat]:
        """Return chats, newest first, a page at a time, see `Engine.list_chats`. An owner sees its own."""
        query = {"owner": owner, "state": None if state is None else _state(state), "awaiting": awaiting}
        chats: list[Chat] = []
        while True:
            most = min(limit - len(chats), _PAGE)
            page = await self._get("/chats", Page[Chat], **query, limit=most, after=after)
            chats += page.items
            after = page.next
            if after is None or len(chats) >= limit:
                return Page(chats, after)

    async def chat_ids(self, prefix: str = "", *, owner: Key | None = None, limit: PageSize = 50) -> list[str]:
        """Return the ids that begin with `prefix`, at most 1,000, see `Engine.chat_ids`. An owner sees its own."""
        return await self._get("/chat-ids", list[str], prefix=prefix, owner=owner, limit=min(limit, _PAGE))

    async def subagents(self, chat_id: str) -> list[Chat]:
        """Return the chats to which a chat has delegated calls, see `Engine.subagents`."""
        return await self._all(_of(chat_id, "subagents"), list[Chat])

    async def agents(self) -> dict[str, list[str]]:
        """Return the agents that the service runs, by name, each with the names of its tools."""
        return await self._get("/agents", dict[str, list[str]])

    async def update_chat(
        self,
        chat_id: str,
        *,
        title: Label | Unchanged | None = UNCHANGED,
        metadata: JsonObject | Unchanged = UNCHANGED,
        archived: bool | Unchanged = UNCHANGED,
        if_version: Ordinal | None = None,
    ) -> Chat:
        """Change title, metadata and whether a chat is archived, in one transaction, see `Engine.update_chat`."""
        body = changes_of(title=title, metadata=metadata, archived=archived)
        return await self._change("PATCH", _of(chat_id), body, if_version=if_version)

    async def rename(self, chat_id: str, title: Label | None) -> Chat:
        """Give a chat another title; if it has that one, nothing is changed."""
        return await self.update_chat(chat_id, title=title)

    async def set_metadata(self, chat_id: str, metadata: JsonObject) -> Chat:
        """Replace a chat's metadata; if it has these, nothing is changed."""
        return await self.update_chat(chat_id, metadata=metadata)

    async def archive(self, chat_id: str) -> Chat:
        """Close a resting chat to everything but `unarchive`; if it is closed, nothing is changed."""
        return await self.update_chat(chat_id, archived=True)

    async def unarchive(self, chat_id: str) -> Chat:
        """Open an archived chat again; if it is open, nothing is changed."""
        return await self.update_chat(chat_id, archived=False)

    async def configure(  # noqa: PLR0913 - the contract
        self,
        chat_id: str,
        *,
        agent: Name | Unchanged = UNCHANGED,
        model: Name | Unchanged | None = UNCHANGED,
        parameters: JsonObject | Unchanged | None = UNCHANGED,
        active_tools: Sequence[str] | Unchanged | None = UNCHANGED,
        system: str | Unchanged | None = UNCHANGED,
        if_version: Ordinal | None = None,
    ) -> Chat:
        """Change who answers, or how, from the next model call on, see `Engine.configure`."""
        body = changes_of(agent=agent, model=model, parameters=parameters, active_tools=active_tools, system=system)
        return await self._change("POST", _of(chat_id, "configure"), body, if_version=if_version)

    async def fork(self, chat_id: str, *, at_version: Ordinal) -> Chat:
        """Create a chat that begins with another's history as of a version, see `Engine.fork`."""
        return await self._post(_of(chat_id, "fork"), {"at_version": at_version}, Chat)

    async def delete_chat(self, chat_id: str, *, if_version: Ordinal | None = None) -> Tombstone:
        """Delete a resting chat for good, see `Engine.delete_chat`.

        To an owner a deleted chat is one that never was; operators may delete it again, and get the same tombstone.
        """
        headers = {"If-Match": _tag(if_version)}
        return await self._request(Tombstone, method="DELETE", path=_of(chat_id), headers=headers)

    async def tombstone(self, chat_id: str) -> Tombstone | None:
        """Return what is left of a deleted chat, see `Engine.tombstone`: for operators and auditors."""
        return await self._get(_of(chat_id, "tombstone"), cast("type[Tombstone | None]", Tombstone | None))

    async def export_chat(self, chat_id: str) -> AsyncGenerator[str, None]:
        """Yield a whole chat as lines of JSON, each with its line feed, see `Engine.export_chat`.

        An owner gets the chat and its messages as the owner sees them, which no store imports.

        Raises:
            ServiceUnreachable: the lines end before the last one of a chat.
        """
        request = Request(method="GET", path=_of(chat_id, "export"))
        line = ""
        async with aclosing(lines_out(pieces_of(self._connection, request))) as lines:
            async for line in lines:
                yield line
        if not is_checkpoint(line):
            raise ServiceUnreachable(self._connection.url, "the export ends early", sent=False)

    async def import_chat(self, lines: Annotated[Iterable[str] | AsyncIterable[str], SkipValidation]) -> Chat:
        """Take in a chat that `export_chat` wrote, see `Engine.import_chat`: for operators.

        The lines are sent to their end, even if the service has refused the first.
        """
        return await self._request(Chat, method="POST", path="/chats/import", stream=lines_in(lines))

    # Turns

    async def send_message(
        self,
        chat_id: str,
        content: Content,
        *,
        when_busy: WhenBusy = "queue",
        client_id: Name | None = None,
    ) -> SendReceipt:
        """Accept a user message, see `Engine.send_message`.

        Without a `client_id` one is made up, so that a message whose receipt is lost on the way can be sent again.
        """
        body = {"content": parts_of(content), "when_busy": when_busy}
        return await self._post(_of(chat_id, "messages"), body, SendReceipt, key=_key(client_id))

    async def ask(
        self,
        chat_id: str,
        content: Content,
        *,
        client_id: Name | None = None,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the contract's word
        agent: Agent[Any, Output] | None = None,
    ) -> TurnResult[Output]:
        """Send a message and wait until the turn that answers it ends, see `Engine.ask`.

        With `agent` the answer is a value of its `output`; without, it is JSON.
        """
        key = _key(client_id)
        with anyio.fail_after(timeout or None):
            if agent is not None:
                actual = (await self.get_chat(chat_id)).agent
                if actual != agent.name:
                    problem = f"{agent.name!r} does not answer in this chat: its agent is {actual!r}"
                    raise SettingsError("agent", problem)
            await self.send_message(chat_id, content, client_id=key)
            result = await self._answer(chat_id, content, key, at_once=timeout == 0)
        return result if agent is None else _with_output(result, agent)

    async def stream(
        self,
        chat_id: str,
        content: Content,
        *,
        when_busy: WhenBusy = "queue",
        client_id: Name | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Send a message and yield the events of the turn that answers it, see `Engine.stream`."""
        receipt = await self.send_message(chat_id, content, when_busy=when_busy, client_id=client_id)
        following = self.events(chat_id, after=receipt.seq, until_rest=True)
        async with aclosing(TurnReader(following, receipt).events()) as events:
            try:
                async for event in events:
                    yield event
            except TurnwiseError as error:
                if not self._connection.leaves_open(error):
                    raise
                raise self._connection.unanswered(error) from error

    async def submit_tool_results(
        self, chat_id: str, results: Sequence[ToolResult], *, if_version: Ordinal | None = None
    ) -> SubmissionReceipt:
        """Answer the open client calls: all of them, each once, see `Engine.submit_tool_results`."""
        path, body = _of(chat_id, "tool-results"), {"results": list(results)}
        headers = {"If-Match": _tag(if_version)}
        return await self._request(
            SubmissionReceipt, method="POST", path=path, body=body, headers=headers, repeatable=True
        )

    async def interrupt(self, chat_id: str, *, reason: Label | None = None) -> Chat:
        """Stop the chat, see `Engine.interrupt`."""
        return await self._post(_of(chat_id, "interrupt"), {"reason": reason}, Chat)

    async def resume(self, chat_id: str) -> Chat:
        """Continue after an interrupt or an error, see `Engine.resume`."""
        return await self._post(_of(chat_id, "resume"), None, Chat)

    async def edit_message(
        self,
        chat_id: str,
        message_id: str,
        content: Content,
        *,
        client_id: Name | None = None,
        if_version: Ordinal | None = None,
    ) -> Chat:
        """Replace a user message; the messages after it and the queue are removed, see `Engine.edit_message`."""
        path, key = _of(chat_id, "messages", message_id), _key(client_id)
        return await self._change("PATCH", path, {"content": parts_of(content)}, if_version=if_version, key=key)

    async def request_compaction(self, chat_id: str) -> Chat:
        """Compact a chat that rests with nothing open or queued, see `Engine.request_compaction`."""
        return await self._post(_of(chat_id, "compact"), None, Chat)

    async def clear_context(self, chat_id: str) -> Chat:
        """Clear the context of a chat that rests with nothing open or queued, see `Engine.clear_context`."""
        return await self._post(_of(chat_id, "clear"), None, Chat)

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
        _of(chat_id)
        source = await source_of(content)
        async with aclosing(source.pieces) as pieces:
            return await self._request(
                FilePart,
                method="POST",
                path="/files",
                query={"chat": chat_id, "name": source.name if name is None else name},
                headers={"Content-Type": media_type or source.media_type},
                stream=pieces,
            )

    async def open_file(
        self, chat_id: str, file: Annotated[FilePart | str, SkipValidation]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file that a chat holds, piece by piece, see `Engine.open_file`."""
        if not isinstance(file, FilePart | str):
            raise InvalidArgument("file", f"must be a FilePart or the digest of a file; it was {shown(file)}")
        if isinstance(file, FilePart) and file.data is not None:
            yield decoded(file)
            return
        digest = file.blob if isinstance(file, FilePart) else str.__str__(file)
        if digest is None:
            raise InvalidArgument("file", "is given by address; turnwise fetches nothing")
        if not is_digest(digest):
            await self.get_chat(chat_id)
            raise FileNotFound(chat_id, digest)
        request = Request(method="GET", path=f"/files/{digest}", query={"chat": chat_id})
        pieces = pieces_of(self._connection, request)
        async with aclosing(pieces), aclosing(intact(digest, pieces)) as whole:  # type: ignore[type-var]
            try:
                async for piece in whole:
                    yield piece
            except BlobGone as gone:
                raise FileNotFound(chat_id, digest, gone.problem) from gone

    # The queue

    async def queued(self, chat_id: str) -> list[QueuedMessage]:
        """Return the queued messages, next one first."""
        return await self._all(_of(chat_id, "queue"), list[QueuedMessage])

    async def edit_queued(
        self, chat_id: str, queued_id: str, content: Content, *, if_version: Ordinal | None = None
    ) -> Chat:
        """Replace a queued message; it keeps its place."""
        path = _of(chat_id, "queue", queued_id)
        return await self._change("PATCH", path, {"content": parts_of(content)}, if_version=if_version)

    async def delete_queued(self, chat_id: str, queued_id: str, *, if_version: Ordinal | None = None) -> Chat:
        """Take a message out of the queue."""
        return await self._change("DELETE", _of(chat_id, "queue", queued_id), None, if_version=if_version)

    async def promote_queued(self, chat_id: str, queued_id: str) -> Chat:
        """Make a queued message the next turn at once, see `Engine.promote_queued`."""
        return await self._post(_of(chat_id, "queue", queued_id, "promote"), None, Chat)

    # Reading

    async def messages(self, chat_id: str, *, view: HistoryView = "user") -> list[Message]:
        """Return the history, see `Engine.messages`. Only operators and auditors see more than the user does."""
        return await self._all(_of(chat_id, "messages"), list[Message], view=view)

    async def transcript(self, chat_id: str) -> Transcript:
        """Return what a person sees of the chat now, see `Engine.transcript`."""
        return await self._get(_of(chat_id, "transcript"), Transcript)

    async def compactions(self, chat_id: str) -> list[Compaction]:
        """Return the compactions of a chat, oldest first, see `Engine.compactions`."""
        return await self._all(_of(chat_id, "compactions"), list[Compaction])

    async def usage(self, chat_id: str) -> list[UsageEntry]:
        """Return what the model calls of a chat used, in order, see `Engine.usage`."""
        return await self._all(_of(chat_id, "usage"), list[UsageEntry])

    async def family_usage(self, chat_id: str) -> Usage:
        """Return what a chat, its subagents and theirs have used until now, see `Engine.family_usage`."""
        return await self._get(_of(chat_id, "family-usage"), Usage)

    async def argument_schemas(self, chat_id: str) -> dict[str, Mapping[str, Any]]:
        """Return the schemas of the arguments of open calls, by tool, see `Engine.argument_schemas`."""
        return await self._get(_of(chat_id, "argument-schemas"), dict[str, Mapping[str, Any]])

    async def erase_message(self, chat_id: str, message_id: str) -> Chat:
        """Blank a message for good, wherever it is stored, see `Engine.erase_message`."""
        return (await self.erase(chat_id, messages=[message_id])).chat

    async def erase(self, chat_id: str, *, messages: Sequence[str] = (), what: Collection[Erasable] = ()) -> Erasure:
        """Erase messages by id, or whole kinds of content, see `Engine.erase`."""
        wanted(messages, what)
        return await self._post(_of(chat_id, "erase"), {"messages": list(messages), "what": list(what)}, Erasure)

    def events(
        self, chat_id: str, *, after: Ordinal = 0, follow: bool = True, until_rest: bool = False
    ) -> AsyncGenerator[Event, None]:
        """Yield the chat's events after number `after`, then new ones as they come, see `Engine.events`.

        When the connection breaks, or the service stops, it goes on after the last event that was yielded: none is
        lost, and none comes twice.

        Raises:
            ServiceUnreachable: there was no answer for as long as `ClientSettings.patience`.
        """
        path = _of(chat_id, "events")
        return EventReader(self._connection, path, after, follow=follow, until_rest=until_rest).events()

    async def wait(
        self,
        chat_id: str,
        *,
        until: Annotated[Collection[ChatState | str], Field(min_length=1)] = RESTING,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the contract's word
    ) -> Chat:
        """Return the chat once its state is in `until`, see `Engine.wait`."""
        states = frozenset(_state(state, "until") for state in until)
        look = Request(method="GET", path=_of(chat_id), repeatable=True, waits_out_limits=True)
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

    async def explain(self, chat_id: str) -> Explanation:
        """Return where the chat stands, and in one sentence why it is not moving."""
        return await self._get(_of(chat_id, "explain"), Explanation)

    async def repair(self, chat_id: str) -> Chat:
        """Bring a chat that cannot be read to `error`, see `Engine.repair`: for operators."""
        return await self._post(_of(chat_id, "repair"), None, Chat)

    # The audit log

    async def audit(self, chat_id: str) -> list[AuditRecord]:
        """Return one record for every transition, in order of version."""
        return await self._all(_of(chat_id, "audit"), list[AuditRecord])

    async def export_audit(self, chat_id: str, *, key: bytes | None = None, signer: SigningKey | None = None) -> str:
        """Return the log as JSON Lines, signed here if a key is given, see `Engine.export_audit`."""
        return export(chat_id, await self.audit(chat_id), key=key, signer=signer)

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
        verdict = await self._get(_of(chat_id, "verify"), Verdict, family=family, files=files)
        if checkpoints is None or not verdict.ok:
            return verdict
        return verify_export(await self.export_audit(chat_id), checkpoints=checkpoints, public_key=public_key)

    async def _answer(self, chat_id: str, content: Content, key: str, *, at_once: bool) -> TurnResult[Any]:
        within = 0 if at_once else min(_LONGEST_WAIT, self._connection.settings.timeout / 2)
        request = Request(
            method="POST",
            path=_of(chat_id, "ask"),
            query={"within": within},
            headers={"Idempotency-Key": key},
            body={"content": parts_of(content)},
            repeatable=True,
        )
        while True:
            response = await self._connection.response_to(request, sent=True)
            if response.status_code == 200:  # noqa: PLR2004 - 202 says that it takes longer
                result: TurnResult[Any] = self._connection.read(response, TurnResult[Any])
                return result
            if at_once:
                raise TimeoutError

    async def _get(self, path: str, answer: type[Result], **query: Any) -> Result:
        return await self._request(answer, method="GET", path=path, query=query, repeatable=True)

    async def _all(self, path: str, answer: type[list[Item]], **query: Any) -> list[Item]:
        """Return a whole list, of which the service gives a page at a time."""
        items: list[Item] = []
        while True:
            request = Request(method="GET", path=path, query=query, repeatable=True)
            response = await self._connection.response_to(request)
            items += self._connection.read(response, answer)
            following = response.links.get("next")
            if following is None:
                return items
            query["skip"] = httpx.URL(following["url"]).params["skip"]

    async def _post(self, path: str, body: Any, answer: type[Result], *, key: str | None = None) -> Result:
        headers = {"Idempotency-Key": key}
        return await self._request(
            answer, method="POST", path=path, body=body, headers=headers, repeatable=key is not None
        )

    async def _change(
        self, method: str, path: str, body: Any, *, if_version: int | None = None, key: str | None = None
    ) -> Chat:
        headers = {"If-Match": _tag(if_version), "Idempotency-Key": key}
        return await self._request(
            Chat, method=method, path=path, body=body, headers=headers, repeatable=key is not None
        )

    async def _request(self, answer: type[Result], **request: Any) -> Result:
        return await self._connection.ask(Request(**request), answer)


def _of(chat_id: str, *rest: str) -> str:
    """Return the path of what belongs to a chat.

    Raises:
        ChatNotFound: no chat can have this id.
        InvalidArgument: nothing in a chat can.
    """
    if not _is_segment(chat_id):
        raise ChatNotFound(chat_id)
    for one in rest:
        if not _is_segment(one):
            raise InvalidArgument("message_id", f"must be the id of a message; it was {shown(one)}")
    return "/".join(("/chats", *(quote(one) for one in (chat_id, *rest))))


def _is_segment(text: str) -> bool:
    return text not in ("", ".", "..") and "/" not in text


def _tag(version: int | None) -> str | None:
    return None if version is None else f'"{version}"'


def _key(client_id: str | None) -> str:
    return f"client-{secrets.token_hex(16)}" if client_id is None else client_id


def _state(state: ChatState | str, argument: str = "state") -> ChatState:
    try:
        return ChatState(state)
    except ValueError:
        raise SettingsError(argument, f"must be one of {', '.join(ChatState)}; it was {state!r}") from None


def _with_output(result: TurnResult[Any], agent: Agent[Any, Output]) -> TurnResult[Output]:
    """Return the result with its answer as a value of the agent's type, read as the engine reads it."""
    if agent.output is None or isinstance(agent.output, Mapping) or result.output is None:
        return result
    forms = {agent.name: format_of(agent.name, agent.output)}
    return replace(result, output=answer_in(result.messages, forms.get, agent.name, result.stop_reason))


def sound_url(url: str) -> str:
    """Return the address of a service, without a slash at its end.

    Raises:
        InvalidArgument: it cannot be one.
    """
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_one &= "@" not in parts.netloc
        httpx.URL(url)  # knows more of addresses, such as that of 256.1.1.1 there is none
    except (ValueError, httpx.InvalidURL):
        is_one = False
    if "@" in url and not is_one:
        problem = "must hold no user and no password, as the token says who asks"
        raise InvalidArgument("url", f"{problem}; it was {shown(without_password(url))}")
    if not is_one or not url.isascii() or not url.isprintable() or " " in url or parts.query or parts.fragment:
        raise InvalidArgument("url", f"must be like https://chats.example.com; it was {shown(url)}")
    return url.rstrip("/")


def _sound_token(token: str) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidArgument("token", "must be text of one word, as the service knows it; it is not shown here")
    return token
