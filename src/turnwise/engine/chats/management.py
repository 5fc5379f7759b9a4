"""Chats as a whole: create, find, label, configure, fork, erase, repair and delete them."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence

from turnwise.engine.admin.erase import Erasable, Erasure
from turnwise.engine.chats.declaration import UNCHANGED, Commanded, Unchanged, command
from turnwise.engine.config.results import Chat, ChatChange, ChatCounts, InboxItem, OwnerErasure, Page, WorkerInfo
from turnwise.engine.prompt.imported_history import History
from turnwise.persistence.reading import Consumer, Undelivered
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.calls import ClientTool
from turnwise.states.messages import Content
from turnwise.states.names import Answerer, ChatState
from turnwise.states.values.limits import JsonObject, Key, Label, Moment, Name, Ordinal, PageSize


class ChatManagement(Commanded):
    """What can be done with chats as a whole."""

    @command("POST", "/chats", 201)
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
        message: Content | None = None,
        message_client_id: Name | None = None,
        client_id: Name | None = None,
    ) -> Chat:
        """Create a chat, in `waiting`, or send its first `message` in the same transaction.

        Args:
            system: the system prompt, instead of the agent's.
            client_tools: tools that only the client can run.
            owner: the user to whom the chat belongs.
            title: a title for users.
            metadata: JSON values that the application keeps with the chat.
            parent: the id of another chat, for the application's own use.
            agent: the agent that answers; by default the engine's only agent, or `default`.
            model: the name of a model to use instead of the agent's. Never pass a user's choice: a name may hold
                an address, and the server there gets the provider's key and the agent's prompt.
            parameters: parameters of model calls; each replaces the agent's own of that name. Never pass a user's
                `provider_options`: they are sent as they are, and may replace the key, the prompt and the model.
            active_tools: the tools to offer, as in `Settings.active_tools`.
            history: messages from elsewhere, of the roles `user`, `assistant` and `tool`, as `Message`s or as
                mappings with the fields of one. They are marked as `imported` and get new numbers; a
                provider's signatures and metadata are left out.
            message: the user's first message, as in `send_message`. Give its files as bytes or addresses.
            message_client_id: the `client_id` of the first message, as in `send_message`; that of the chat by default.
            client_id: the client's own id of the chat and its first message: the same `owner` and `client_id` create
                and send nothing again, and return the existing chat.

        Raises:
            ChatDeleted: the chat of that `client_id` was deleted.
            ConflictingReplay: it was created with another message, or with none.
            SettingsError: a client tool is invalid, or there is no such agent, model, parameter or tool.
            InvalidContent: a message of the history cannot stand there, or the first message cannot be sent. The text
                names it.
            ChatNotFound: there is no chat `parent`.
            StoreError: a large file cannot be stored.
        """

    @command("GET", "/chats")
    async def list_chats(  # noqa: PLR0913 - the contract
        self,
        *,
        owner: Key | None = None,
        state: ChatState | str | None = None,
        awaiting: Answerer | None = None,
        agent: Name | None = None,
        title: Label | None = None,
        metadata: JsonObject | None = None,
        created_after: Moment | None = None,
        created_before: Moment | None = None,
        archived: bool | None = None,
        limit: PageSize = 50,
        after: str | None = None,
    ) -> Page[Chat]:
        """Return chats, newest first, a page at a time: those that fit all that is given.

        `agent` is who answers. The title contains `title`, in whatever case ASCII letters are. Each entry of `metadata`
        is one of the chat's. They were created at `created_after` or later, and before `created_before`. `archived`
        wants only archived chats, or only others. Owner, state and `awaiting` are found by indexes; for the
        other conditions, chats are read until the page is full.

        `awaiting="client"` returns the chats whose open calls wait for the client, `awaiting="subagents"` those that
        wait for subagents. A chat may be in both lists, an archived one is in neither.

        A chat that cannot be read is included: `unreadable` says why, and the rest is what could be read.

        Raises:
            InvalidArgument: there is no chat `after`, and never was; one that was deleted keeps its place.
        """

    @command("GET", "/chat-counts", operation="count_chats")
    async def count_chats(self, *, owner: Key | None = None) -> ChatCounts:
        """Return how many chats are in each state, and how many are archived: of all chats, or of an owner."""

    @command("GET", "/events", operation="watch_chats")
    def watch(
        self,
        *,
        owner: Key | None = None,
        agent: Name | None = None,
        after: Ordinal = 0,
        follow: bool = True,
    ) -> AsyncGenerator[ChatChange, None]:
        """Yield the chats that have changed since a number, each as it stands, then every chat that changes.

        With `after=0` it yields all existing chats first. Changes that follow each other quickly are joined. To
        continue, pass the last number: each chat that changed since then comes once, and each deleted one as gone.

        Args:
            owner: only chats of this owner.
            agent: only chats that this agent answers.
            after: the `number` of the last change that was seen.
            follow: whether it goes on with new changes, or ends at the present.

        Raises:
            EngineClosed: the engine was closed, or released its subscribers.
        """

    @command("GET", "/inbox", operation="read_inbox")
    async def inbox(self, *, owner: Key | None = None) -> list[InboxItem]:
        """Return the calls that wait for a person, chat by chat, newest chat first; those of subagents, too.

        A chat that cannot be read, or is archived, takes no answer and is left out.
        """

    @command("GET", "/chat-ids", operation="list_ids")
    async def chat_ids(self, prefix: str = "", *, owner: Key | None = None, limit: PageSize = 50) -> list[str]:
        """Return the ids that begin with `prefix`, the most recent change of state first, unreadable chats included."""

    @command("GET", "/workers", operation="list_workers")
    async def workers(self) -> list[WorkerInfo]:
        """Return the workers of the store, by name: which agents they run, and which chats they hold.

        A worker reports itself every `Settings.lease` seconds, and is gone from the list once it has stopped in order.
        One that died stays for a day, or as long as it holds chats, with `is_alive` false.
        """

    @command("GET", "/consumers", operation="list_consumers")
    async def consumers(self) -> list[Consumer]:
        """Return the durable consumers of events, by name, each with the number of events it did not accept."""

    @command("GET", "/consumers/{name}/undelivered", operation="list_undelivered")
    async def undelivered(self, name: Name) -> list[Undelivered]:
        """Return up to 1,000 events that a consumer's handler did not accept, by chat and number."""

    @command("POST", "/consumers/{name}/deliver", 202, repeatable=True)
    async def deliver_again(self, name: Name, *, about: str | None = None, seq: Ordinal | None = None) -> int:
        """Deliver again the events that a consumer did not accept, and return how many.

        Args:
            name: of the consumer.
            about: the chat whose events it gets; all by default.
            seq: the number of the only event that it gets.
        """

    @command("DELETE", "/consumers/{name}")
    async def drop_consumer(self, name: Name) -> bool:
        """Remove a consumer that no process serves, with its undelivered events; return whether it existed."""

    @command("GET", "/chats/{chat_id}/subagents", operation="list_subagents")
    async def subagents(self, chat_id: str) -> list[Chat]:
        """Return the subagents of a chat, in the order of its calls, without deleted ones.

        Raises:
            ChatNotFound: there is no such chat.
        """

    @command("PATCH", "/chats/{chat_id}")
    async def update_chat(
        self,
        chat_id: str,
        *,
        title: Label | Unchanged | None = UNCHANGED,
        metadata: JsonObject | Unchanged = UNCHANGED,
        archived: bool | Unchanged = UNCHANGED,
        if_version: Ordinal | None = None,
    ) -> Chat:
        """Change title, metadata and whether a chat is archived, in one transaction. Fields that are not given stay.

        Only a resting chat can be archived. An archived one is changed only if it is unarchived as well.

        Args:
            chat_id: the chat.
            title: a title for users.
            metadata: replaces all metadata of the chat.
            archived: an archived chat accepts no more messages.
            if_version: the version that the caller has seen.

        Raises:
            VersionMismatch: the chat has changed since `if_version`.
            SettingsError: nothing to change was given.
        """

    async def rename(self, chat_id: str, title: Label | None) -> Chat:
        """Set the title of a chat; nothing changes if it has this title."""
        return await self.update_chat(chat_id, title=title)

    async def set_metadata(self, chat_id: str, metadata: JsonObject) -> Chat:
        """Replace the metadata of a chat; nothing changes if it has these."""
        return await self.update_chat(chat_id, metadata=metadata)

    async def archive(self, chat_id: str) -> Chat:
        """Archive a resting chat: it accepts only `unarchive`. Nothing changes if it is archived."""
        return await self.update_chat(chat_id, archived=True)

    async def unarchive(self, chat_id: str) -> Chat:
        """Unarchive a chat; nothing changes if it is not archived."""
        return await self.update_chat(chat_id, archived=False)

    @command("POST", "/chats/{chat_id}/read", operation="mark_read", repeatable=True)
    async def mark_read(self, chat_id: str, *, turn: Ordinal | None = None) -> Chat:
        """Note that the end of a chat's last turn was read: it is `unread` no more. If it is read, nothing is changed.

        Args:
            chat_id: the chat.
            turn: the last turn that was shown; if a later one has ended meanwhile, the chat stays unread.

        Raises:
            ChatArchived: the chat is archived, and unread.
        """

    @command("POST", "/chats/{chat_id}/configure", 202)
    async def configure(  # noqa: PLR0913 - the contract
        self,
        chat_id: str,
        *,
        agent: Name | Unchanged = UNCHANGED,
        model: Name | Unchanged | None = UNCHANGED,
        parameters: JsonObject | Unchanged | None = UNCHANGED,
        active_tools: Sequence[str] | Unchanged | None = UNCHANGED,
        system: str | Unchanged | None = UNCHANGED,
        client_tools: Sequence[ClientTool] | Unchanged = UNCHANGED,
        if_version: Ordinal | None = None,
    ) -> Chat:
        """Change the agent, model, parameters, tools or system prompt, from the next model call on.

        Fields that are not given stay; `None` restores the agent's own. Another agent takes over with
        its own prompt, model, parameters and tools, unless these are given, too.
        The client's tools stay whoever answers: `client_tools` replaces them all.

        Args:
            chat_id: the chat.
            agent: the agent that answers.
            model: the name of a model.
            parameters: of model calls, each instead of the agent's of that name.
            active_tools: the tools to offer, as in `Settings.active_tools`.
            system: the system prompt.
            client_tools: all tools that only the client can run.
            if_version: the version that the caller has seen; another one is refused.

        Raises:
            VersionMismatch: the chat has changed since `if_version`.
            SettingsError: there is no such agent, model, parameter or tool, the agent has a tool with the name of one
                of the client's, or nothing to change was given.
        """

    @command("POST", "/chats/{chat_id}/fork", 201)
    async def fork(self, chat_id: str, *, at_version: Ordinal) -> Chat:
        """Create a chat with the history of another chat as of a version; the other chat does not change.

        Calls that were open then are closed. The new chat's audit log names the parent, the version and its hash.

        Args:
            chat_id: the chat whose history is copied.
            at_version: the version, from 1 to the chat's own.

        Raises:
            SettingsError: the chat has no such version.
        """

    @command("DELETE", "/chats/{chat_id}")
    async def delete_chat(self, chat_id: str, *, if_version: Ordinal | None = None) -> Tombstone:
        """Delete a resting chat for good, also an archived or unreadable one, and return its tombstone.

        Only the tombstone stays. Every method then raises `ChatDeleted` for the chat, and so do the iterators of its
        subscribers. Deleting it again changes nothing and returns the same tombstone. Forks and
        children are chats of their own and stay.

        Raises:
            NotResting: the chat works; interrupt it first. Nothing was deleted.
            VersionMismatch: the chat has changed since `if_version`. Nothing was deleted.
            ChatNotFound: there never was such a chat.
        """

    @command("POST", "/owners/erase", repeatable=True)
    async def erase_owner(self, owner: Key) -> OwnerErasure:
        """Delete every chat of an owner for good, subagents included, and remove the owner's budget.

        Chats that work are interrupted first. After a crash, or where something is `left`, call it again: it goes on
        with what is there. Forget the owner's tokens first, or new chats may be made meanwhile.
        """

    @command("GET", "/chats/{chat_id}/tombstone", operation="read_tombstone")
    async def tombstone(self, chat_id: str) -> Tombstone | None:
        """Return what is left of a deleted chat; `None` if the chat is still there.

        Raises:
            ChatNotFound: there never was such a chat.
        """

    @command("POST", "/chats/{chat_id}/erase")
    async def erase(
        self,
        chat_id: str,
        *,
        messages: Sequence[str] = (),
        what: Collection[Erasable] = (),
    ) -> Erasure:
        """Erase messages by id, or whole kinds of content, and return what was erased and where copies may remain.

        Of a chat that cannot be read only `everything` can be erased: a repair brings it to `error` first.

        Args:
            chat_id: the chat.
            messages: the ids of messages.
            what: kinds of content, such as `title`, or `everything`.

        Raises:
            MessageNotFound: the chat never had one of the messages.
            InvalidArgument: neither `messages` nor `what` names anything.
            ChatUnreadable: a stored value cannot be read, and `everything` was not asked for; nothing was erased.
        """

    async def erase_message(self, chat_id: str, message_id: str) -> Chat:
        """Blank a message for good, wherever it is stored. The audit log still verifies.

        Any message can be erased: also one that an edit has cut, a summary, one that is queued or was deleted from the
        queue, and any message of an archived chat. `erase` does the same, and returns what was erased.

        Raises:
            MessageNotFound: the chat never had such a message.
        """
        return (await self.erase(chat_id, messages=[message_id])).chat

    @command("POST", "/chats/{chat_id}/repair", 202)
    async def repair(self, chat_id: str) -> Chat:
        """Repair a chat that is unreadable or breaks an invariant: keep what can be read, and set its state to `error`.

        Rows that cannot be read are kept in the table `quarantine`. The audit log records the repair and is otherwise
        left as it is.

        Raises:
            IllegalTransition: nothing is wrong with the chat.
        """
