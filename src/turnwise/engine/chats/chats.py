"""Chats: every method that an engine and a client have in common, and those of an engine alone."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from decimal import Decimal
from typing import Annotated, Final, Literal

from pydantic import Field, SkipValidation

from turnwise.engine.admin.owners import OwnerTransfer
from turnwise.engine.chats.declaration import Commanded, command, commands_of
from turnwise.engine.chats.management import ChatManagement
from turnwise.engine.chats.turns import Turns
from turnwise.engine.config.results import Budget, Chat, SendReceipt
from turnwise.engine.subscriptions.consumer import Handler
from turnwise.engine.subscriptions.turns import after_receipt
from turnwise.states.names import Period
from turnwise.states.transcript import Transcript
from turnwise.states.values.limits import Duration, Key, Name, Ordinal, Positive

_Float = Annotated[float, Field(ge=0, le=10**9, allow_inf_nan=False)]
_Decimal = Annotated[Decimal, Field(ge=0, le=10**9, allow_inf_nan=False, max_digits=40)]


class Budgets(Commanded):
    """What can be done with budgets."""

    @command("POST", "/budgets", repeatable=True)
    async def set_budget(
        self,
        *,
        owner: Key | None = None,
        chat_id: str | None = None,
        tokens: Ordinal | None = None,
        cost: _Float | _Decimal | None = None,
        per: Period | None = None,
        timezone: Name = "UTC",
    ) -> Budget | None:
        """Limit what an owner's chats, or one chat, may spend; without a limit, remove the budget and return `None`.

        A model call reserves its estimate as it starts, and counts what it used once it ends. Where too little is left,
        the turn ends with `token_budget` or `cost_budget`, and messages are refused with `BudgetSpent`. What was spent
        in the period stays counted if the limits are changed.

        Args:
            owner: whose chats, subagents included.
            chat_id: the chat, if it is not an owner's budget.
            tokens: of prompts and replies together.
            cost: US dollars. Calls of unknown price are counted in `unpriced`.
            per: `day` or `month`: the calendar's, in the time zone; without it the budget is for good.
            timezone: its name, such as `Europe/Berlin`.

        Raises:
            InvalidArgument: not exactly one of owner and chat is given, or there is no such time zone.
            ChatNotFound: there is no such chat.
        """

    @command("GET", "/budgets", operation="list_budgets")
    async def budgets(self, *, owner: Key | None = None, chat_id: str | None = None) -> list[Budget]:
        """Return all budgets, or an owner's, or those that a chat spends, with what is spent, reserved and left."""


class Chats(ChatManagement, Turns, Budgets):
    """The chats of an engine in this process, or of a service: write functions for both with this type.

    Methods return what is stored, and raise the same errors on either side.
    """


COMMANDS: Final = commands_of(Chats)
"""The declared methods, by name."""


class LocalChats(Chats, OwnerTransfer):
    """The chats of an engine in this process."""

    def _after(self, receipt: SendReceipt) -> AbstractContextManager[None]:
        return after_receipt(receipt)

    @command()
    def export_chat(self, chat_id: str, *, key: bytes | None = None) -> AsyncGenerator[str, None]:
        """Yield a whole chat as lines of JSON, each with its line feed, signed if a key is given.

        All of it is of one moment, whatever the chat does. The files that its messages refer to come along, but for
        those that are gone. `import_chat` takes the lines in, on a store of any kind.

        Raises:
            ChatUnreadable: its rows are not what its log says, or cannot be read. `export_rows` writes down what is
                stored.
        """

    @command("POST", "/chats/import", 201)
    async def import_chat(
        self,
        lines: Annotated[Iterable[str] | AsyncIterable[str], SkipValidation],
        *,
        key: bytes | None = None,
        permit: Callable[[Chat], object] | None = None,
    ) -> Chat:
        """Take in a chat that `export_chat` wrote, under its own id, and go on with it where it stood.

        Every line is checked, and every row against the chat's audit log, before anything is written; then all of it
        is written in one transaction. The log goes on with a record of the import. A chat that was being worked on
        waits for a worker of this store. With a `key` the lines must be signed with it. Import subagents before their
        parent, or it starts the ones that it waits for again.

        Args:
            lines: what `export_chat` yielded.
            key: with which they have to be signed.
            permit: is called with the chat as it was exported, before anything is written; it may be async. Whatever it
                raises refuses the chat. Untrusted lines may name any owner, agent, model and parameters.

        Raises:
            ImportRefused: the lines are not those of one whole chat, or not signed with the key.
            InvalidArgument: `permit` raised something that is no `TurnwiseError`.
            ChatExists: there is a chat of that id.
            ChatDeleted: there was one.
            StoreError: the store refused, or the temporary folder, where the files of a chat wait until it is checked.
        """

    @command()
    def transcript_pages(self, chat_id: str) -> AsyncGenerator[Transcript, None]:
        """Yield what `transcript` returns in pages of about 1 MiB: each has messages that follow those before it.

        All else is the same in each page, and all of it is of one moment. A chat without messages has one page.

        Raises:
            ChatNotFound: there is no such chat.
        """

    @command()
    async def consume(
        self,
        name: Name,
        handler: Handler,
        *,
        kinds: Collection[str] | None = None,
        delays: Sequence[Duration] = (1, 5, 30, 120),
        parallel: Positive = 10,
        start: Literal["first", "now"] = "first",
    ) -> None:
        """Give the events of all chats to a handler, at least once each, until the engine is closed.

        The events of a chat come in order, one after another; those of several chats at the same time. How far the
        consumer is, is stored: it goes on there after every crash and restart. One process at a time delivers for a
        name; another that calls this waits, and takes over after `Settings.lease` seconds. Events of an imported
        chat's past, and of chats that were deleted meanwhile, are not delivered; nor are parts of replies under way
        and progress of tools.

        Args:
            name: of the consumer.
            handler: a function of the `Event`, async or quick. If it raises, it gets the same event again; the later
                ones of that chat wait. It may get an event twice: after a crash, or a lease that ran out.
            kinds: of events; all by default.
            delays: seconds between the tries of an event. After the last try it is set aside: see `undelivered`.
            parallel: of how many chats events are handled at a time.
            start: where a consumer begins that is new: with the first event that is stored, or with the next one.

        Raises:
            InvalidArgument: there is no such kind of event, or it is none that is delivered.
            EngineClosed: the engine was closed, or released its subscribers.
        """


LOCAL_COMMANDS: Final = commands_of(LocalChats)
"""The declared methods of an engine's chats, by name."""
