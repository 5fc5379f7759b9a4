"""The context of a tool's call, and the output with attachments that a tool may return."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Generic, Protocol

import msgspec
from pydantic import SkipValidation

from turnwise.engine.blobs.streams import FileContent, source_of
from turnwise.engine.config.results import Chat, chat_of
from turnwise.states.errors import ToolFailed
from turnwise.states.facts import Facts, Profile
from turnwise.states.messages import Content, FilePart, ScheduledMessage
from turnwise.states.names import WhenDue
from turnwise.states.values.values import CheckedCall, Json, Value

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Deps = TypeVar("Deps", default=Any)
else:
    from typing import TypeVar

    Deps = TypeVar("Deps")


class ToolOutput(Value, metaclass=CheckedCall, frozen=True):
    """An output with attached files."""

    output: Annotated[Json, SkipValidation]
    attachments: tuple[FilePart, ...] = ()


class PutFile(Protocol):
    """Keeps a file for a chat."""

    async def __call__(
        self, content: FileContent, *, media_type: str | None = None, name: str | None = None
    ) -> FilePart:
        """Return the part by which the chat refers to the file; see `Engine.put_file`."""
        ...


class ScheduleMessage(Protocol):
    """Schedules a message to a chat."""

    async def __call__(
        self,
        content: Content,
        *,
        at: datetime | None = None,
        every: str | None = None,
        timezone: str | None = None,
        when_busy: WhenDue = "queue",
        id: str | None = None,  # noqa: A002 - the contract
    ) -> ScheduledMessage:
        """Return the scheduled message; see `Engine.schedule`."""
        ...


async def _schedule_nothing(*_: Any, **__: Any) -> ScheduledMessage:
    raise ToolFailed("this call runs outside of an engine: nothing can be scheduled")


class ToolContext(msgspec.Struct, Generic[Deps]):
    """The context of a call. A tool gets it in a parameter annotated with this class.

    `ToolContext[MyDeps]` declares the type of `deps`.
    """

    chat_id: str
    call_id: str
    step: int
    attempt: int
    idempotency_key: str
    """The same for every run of this call, before and after a crash."""
    report: Callable[[Json], None]
    """Shows progress to subscribers."""
    chat: Chat
    """The chat as it stood when the calls of this step began: its id, owner, metadata and agent, among others."""
    put_file: PutFile
    """Keeps a file for the chat, as `Engine.put_file` does, and returns the part to attach; for a path, bytes, or
    something that yields bytes. A blocking tool calls `anyio.from_thread.run(context.put_file, content)`."""
    deps: Deps
    """The engine's `deps`, or the value that they made for this chat."""
    cancelled: bool = False
    """Turns true when the call is interrupted: for tools that run in a thread and have to look."""
    schedule: ScheduleMessage = _schedule_nothing
    """Has the clock send a message to the chat, as `Engine.schedule` does, on behalf of `agent:` and its name."""

    @property
    def key(self) -> str:
        """The idempotency key, under its short name."""
        return self.idempotency_key

    @classmethod
    def for_tests(cls, *, deps: Any = None, **fields: Any) -> ToolContext[Any]:
        """Return the context of a call outside of any engine, with which a test calls a tool by itself.

        It is of the first call of an empty chat. Progress is dropped, and `put_file` keeps bytes in the part itself.

        Args:
            deps: the value of `deps`.
            fields: other fields of the context.
        """
        now = datetime.now(UTC)
        chat = chat_of(Facts(chat_id="chat", profile=Profile(created_at=now), updated_at=now))
        made: ToolContext[Any] = cls(
            chat_id=chat.id,
            call_id="call_1",
            step=1,
            attempt=1,
            idempotency_key=f"{chat.id}:call_1",
            report=lambda _progress: None,
            chat=chat,
            put_file=_put_inline,
            deps=deps,
        )
        return msgspec.structs.replace(made, **fields)


async def _put_inline(content: FileContent, *, media_type: str | None = None, name: str | None = None) -> FilePart:
    source = await source_of(content)
    whole = b"".join([piece async for piece in source.pieces])
    guessed = media_type or source.media_type or "application/octet-stream"
    return FilePart.from_bytes(whole, guessed, name=name or source.name)
