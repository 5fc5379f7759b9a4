"""The caller of a request: who it is, and which chats it may see and change."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Annotated, Final, TypeVar

import anyio
import msgspec
from fastapi import Depends, Header, Path, Security
from fastapi.security import HTTPBearer
from msgspec.structs import replace
from starlette.requests import Request

from turnwise.engine.chats.chats import LocalChats
from turnwise.engine.commands.acting import ActingChats
from turnwise.engine.config.results import Chat, ChatChange, SubmissionReceipt
from turnwise.engine.engine import Engine
from turnwise.foreign import text_of
from turnwise.http_problems import ON_BEHALF_OF, NotAllowed, NotAuthenticated
from turnwise.service.auth import Principal, is_known_by_token
from turnwise.service.policy import Operation
from turnwise.service.service import Service
from turnwise.states.calls import ToolResult
from turnwise.states.errors import ChatNotFound, ChatUnreadable, SettingsError, VersionMismatch
from turnwise.states.events import Event
from turnwise.states.values.plain import type_name

SERVICE: Final = "turnwise.service"
"""The key of the `Service` in a request's scope."""
CALLER: Final = "turnwise.caller"
OPERATION: Final = "turnwise.operation"
_PAGE: Final = 1000
Outcome = TypeVar("Outcome")
Shown = TypeVar("Shown")

CHAT_ID: Final = "c019b2d0c5e41f3a97c2b1d8e64"
"""An example for the OpenAPI document."""
ChatId = Annotated[str, Path(description="The chat's id.", examples=[CHAT_ID])]
bearer = HTTPBearer(auto_error=False, description="A token of a principal: an owner, an operator or an auditor.")


class Caller(msgspec.Struct, frozen=True):
    """The sender of a request, and what they may see."""

    service: Service
    principal: Principal
    since: float
    """When the request came, by the monotonic clock."""
    on_behalf_of: str | None = None
    """The person for whom an operator acts."""

    @property
    def engine(self) -> Engine:
        """The engine that is served."""
        return self.service.engine

    @property
    def is_owner(self) -> bool:
        """Whether the caller sees its own chats only."""
        return self.principal.role == "owner"

    @property
    def actor(self) -> str:
        """The name in the audit log; an operator's own comes first."""
        own = self.principal.actor
        return own if self.on_behalf_of is None else f"{own} on behalf of {self.on_behalf_of}"

    @property
    def chats(self) -> LocalChats:
        """The engine's chats, with the caller as the actor in the audit log."""
        return ActingChats(self.engine, self.actor)

    def events(
        self, chat_id: str, *, after: int = 0, follow: bool = True, until_rest: bool = False
    ) -> AsyncGenerator[Event]:
        """Yield a chat's events; raise `NotAuthenticated` once the caller's token expires."""
        events = self.engine.events(chat_id, after=after, follow=follow, until_rest=until_rest)
        return events if self.principal.until is None else _before(self.principal.until, events)

    def watch(self, *, owner: str | None, agent: str | None, after: int, follow: bool) -> AsyncGenerator[ChatChange]:
        """Yield changes of the chats that the caller may see; raise `NotAuthenticated` once its token expires."""
        whose = owner if self.principal.sees_all else self.principal.name
        changes = self.engine.watch(owner=whose, agent=agent, after=after, follow=follow)
        return changes if self.principal.until is None else _before(self.principal.until, changes)

    async def check(self, *names: str, chat_id: str | None = None) -> None:
        """Raise `NotAllowed` unless the policy allows the operations, or fields of them."""
        policy = self.service.policy
        chat = None if policy.restriction is None or chat_id is None else await self._shown(chat_id)
        for name in names:
            await policy.check(self.principal, name, chat)

    async def _shown(self, chat_id: str) -> Chat | None:
        with suppress(ChatUnreadable, ChatNotFound):
            chat = await self._readable(chat_id)
            return chat if self.sees(chat) else None
        return None

    async def chat(self, chat_id: str) -> Chat:
        """Return a chat that the caller may see.

        Raises:
            ChatNotFound: there is none, or it is another owner's: the two are indistinguishable, by time as well.
            ChatUnreadable: it is there for the caller, and cannot be read.
        """
        try:
            chat = await self._readable(chat_id)
        except ChatNotFound:
            await self.wait_for_not_found()
            if self.principal.sees_all:
                raise
            raise ChatNotFound(chat_id) from None  # the owner of a deleted chat is not known any more
        if not self.sees(chat):
            await self.wait_for_not_found()
            raise ChatNotFound(chat_id)
        return chat

    async def check_sees(self, chat_id: str) -> None:
        """Raise `ChatNotFound` if `chat` would; a chat that cannot be read is there for those who may see it."""
        with suppress(ChatUnreadable):  # raised only if the caller may see the chat
            await self.chat(chat_id)

    async def filter_visible(self, chat_ids: Sequence[str]) -> tuple[str, ...]:
        """Return the ids of the chats that the caller may see."""
        if self.principal.sees_all:
            return tuple(chat_ids)
        return tuple([chat_id for chat_id in chat_ids if await self._sees(chat_id)])

    async def _sees(self, chat_id: str) -> bool:
        try:
            return self.sees(await self._readable(chat_id))
        except ChatUnreadable:  # raised only if the caller may see the chat
            return True
        except ChatNotFound:
            return False

    async def _readable(self, chat_id: str) -> Chat:
        try:
            return await self.engine.get_chat(chat_id)
        except ChatUnreadable:
            if self.principal.sees_all or await self._is_listed(chat_id):
                raise
            raise ChatNotFound(chat_id) from None

    async def _is_listed(self, chat_id: str) -> bool:
        """Whether a chat that cannot be read is the caller's, by what could be read of it."""
        after: str | None = None
        while True:
            page = await self.engine.list_chats(owner=self.principal.name, limit=_PAGE, after=after)
            if any(chat.id == chat_id for chat in page.items):
                return True
            if page.next is None:
                return False
            after = page.next

    def sees(self, chat: Chat) -> bool:
        """Whether the caller may see a chat."""
        return self.principal.sees_all or chat.owner == self.principal.name

    def may_give(self, results: Sequence[ToolResult], chat: Chat) -> bool:
        """Whether the caller may give the chat these results: a tool says who allows its calls.

        If an operator has to allow one, all open calls are an operator's, because they are answered together. Results
        of others are no approval: they came before.
        """
        if self.principal.role != "owner":
            return True
        if all(call.approval != "asked" or call.approver == "owner" for call in chat.open_calls):
            return True
        return {call.call_id for call in chat.open_calls}.isdisjoint(one.call_id for one in results)

    async def submit(
        self, chat: Chat, results: Sequence[ToolResult], *, if_version: int | None = None
    ) -> SubmissionReceipt:
        """Answer the open calls of a chat that the caller sees, unless an operator has to approve one."""

        async def submitted(seen: Chat, version: int) -> SubmissionReceipt:
            if not self.may_give(results, seen):
                raise NotAllowed(self.principal.role, "'operator' to answer a call that an operator has to allow")
            return await self.chats.submit_tool_results(chat.id, results, if_version=version)

        return await self.as_seen(chat, submitted, if_version=if_version)

    async def as_seen(
        self, chat: Chat, act: Callable[[Chat, int], Awaitable[Outcome]], *, if_version: int | None
    ) -> Outcome:
        """Call `act` with a chat and its version, which `act` has to require: a later version may forbid the change.

        Without the client's own `if_version`, read the chat again and retry after each `VersionMismatch`.
        """
        while True:
            version = chat.version if if_version is None else if_version
            if version > chat.version:
                raise VersionMismatch(chat.id, version, chat.version)
            try:
                return await act(chat, version)
            except VersionMismatch:
                if if_version is not None:
                    raise
                chat = await self.chat(chat.id)

    async def wait_for_not_found(self) -> None:
        """Wait until the request has taken a multiple of `not_found_seconds`."""
        unit = self.service.settings.not_found_seconds
        if unit:
            await anyio.sleep(unit - (time.monotonic() - self.since) % unit)


async def _before(until: datetime, events: AsyncGenerator[Shown]) -> AsyncGenerator[Shown]:
    """Yield events until a time comes; then raise `NotAuthenticated`."""
    deadline = anyio.current_time() + (until - datetime.now(UTC)).total_seconds()
    async with aclosing(events):
        while True:
            with anyio.CancelScope(deadline=deadline) as in_time:
                event = await anext(events, None)
            if in_time.cancel_called:  # whether it had to wait for the event or not
                raise NotAuthenticated
            if event is None:
                return
            yield event


async def authenticate_request(service: Service, request: Request) -> Caller:
    """Authenticate the sender of a request, and count the request against the sender's rate."""
    since = time.monotonic()
    try:
        answer = service.authenticate(request)
        principal: object = await answer if inspect.isawaitable(answer) else answer
    except SettingsError as error:  # a problem of a request to turnwise; here it is one of the application's code
        raise RuntimeError(f"auth failed: {text_of(error, otherwise=type_name(error))}") from error
    if principal is None:
        raise _refusal_of_unknown(service, request)
    if not isinstance(principal, Principal):
        raise TypeError(
            f"auth returned {type(principal).__name__!r}; it has to return a Principal, or None for an unknown sender"
        )
    if principal.until is not None and principal.until <= datetime.now(UTC):
        raise _refusal_of_unknown(service, request)
    service.rates.spend(principal.actor)
    await service.shared_rates.spend(principal)
    return Caller(service, principal, since)


def _refusal_of_unknown(service: Service, request: Request) -> NotAuthenticated:
    """Return the refusal of an unknown sender, or raise `RateLimited` if too many came from its address."""
    service.unknown_rates.spend(request.client.host if request.client is not None else "")
    return NotAuthenticated(by_token=is_known_by_token(request))


_OnBehalfOf = Annotated[
    str | None,
    Header(
        alias=ON_BEHALF_OF,
        min_length=1,
        max_length=1024,
        pattern="^[ -~]+$",
        description="For whom an operator acts: the audit log names both.",
        examples=["jane"],
    ),
]


async def caller(
    request: Request, _token: Annotated[object, Security(bearer)], on_behalf_of: _OnBehalfOf = None
) -> Caller:
    """Return the authenticated sender of a request, once the policy allows the fields of its body."""
    sender: Caller = request.scope[CALLER]
    if on_behalf_of is not None:
        if sender.principal.role != "operator":
            raise NotAllowed(sender.principal.role, f"'operator' to act on behalf of others ({ON_BEHALF_OF})")
        sender = replace(sender, on_behalf_of=on_behalf_of)
    operation: Operation = request.scope[OPERATION]
    body = await _parse_json(request) if operation.fields else None
    if isinstance(body, dict):
        own = {"owner"} if body.get("owner") == sender.principal.name else set()  # they say no more than the token
        used = operation.find_used_fields({key: value for key, value in body.items() if key not in own})
        await sender.check(*used, chat_id=named_chat(request))
    return sender


async def _parse_json(request: Request) -> object:
    try:
        return await request.json()  # FastAPI has read it, and the request keeps it
    except (ValueError, RecursionError):
        return None  # the body's own check reports it


def named_chat(request: Request) -> str | None:
    """Return the id of the chat that a request is about."""
    chat_id: str | None = request.path_params.get("chat_id", request.query_params.get("chat"))
    return chat_id


Sender = Annotated[Caller, Depends(caller)]


async def _opened_stream(sender: Sender) -> AsyncIterator[Caller]:
    with sender.service.streams.opened(sender.principal):
        yield sender


Subscriber = Annotated[Caller, Depends(_opened_stream)]
"""A sender with a stream open, or one who waits for an answer: counted until the response has ended."""
