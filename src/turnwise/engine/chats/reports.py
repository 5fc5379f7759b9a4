"""Reports: messages, events, usage, the audit log and the files of chats."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import Field, InstanceOf, SkipValidation

from turnwise.engine.admin.explain import Explanation
from turnwise.engine.blobs.streams import FileContent
from turnwise.engine.chats.declaration import Commanded, command
from turnwise.engine.config.results import Chat, Compaction, UsageEntry, UsageSum
from turnwise.engine.isolation.tasks import run_in_thread
from turnwise.engine.prompt.views import HistoryView
from turnwise.persistence.audit.record import AuditRecord, export
from turnwise.persistence.audit.signing import SigningKey
from turnwise.persistence.audit.verify import Verdict
from turnwise.states.errors import SettingsError
from turnwise.states.events import Event
from turnwise.states.messages import FilePart, Message
from turnwise.states.names import RESTING, ChatState, UsageKey
from turnwise.states.transcript import Transcript
from turnwise.states.usage import Usage
from turnwise.states.values.checked import checked
from turnwise.states.values.limits import Key, Label, Moment, Name, Ordinal, Seconds
from turnwise.states.values.plain import shown


class Reports(Commanded):
    """What can be read of a chat."""

    @command("GET", "/chats/{chat_id}")
    async def get_chat(self, chat_id: str) -> Chat:
        """Return a chat as it stands.

        Raises:
            ChatNotFound: there is no such chat.
        """

    @command("GET", "/chats/{chat_id}/messages", operation="list_messages")
    async def messages(self, chat_id: str, *, view: HistoryView = "user") -> list[Message]:
        """Return the history: as the user sees it, as the model's next request holds it, or without synthetic messages.

        Changes that `prepare_messages` and reminders make to a request are not included.
        """

    @command("GET", "/chats/{chat_id}/transcript", operation="read_transcript")
    async def transcript(self, chat_id: str) -> Transcript:
        """Return what a person sees of the chat now, including the reply under way, without reading its events.

        It is consistent: `events(after=transcript.seq)` yields exactly what comes after it.

        Raises:
            ChatNotFound: there is no such chat.
        """

    @command("GET", "/chats/{chat_id}/compactions", operation="list_compactions")
    async def compactions(self, chat_id: str) -> list[Compaction]:
        """Return the compactions of a chat, oldest first, with the summary that each put in place of older messages.

        Summaries are written for the model; no event and no user's view shows them.
        """

    @command("GET", "/chats/{chat_id}/usage", operation="read_usage")
    async def usage(self, chat_id: str) -> list[UsageEntry]:
        """Return what the model calls of a chat used, in order: one entry per attempt of a step, compaction and title.

        The entry of a compaction that called no model has no figures.
        """

    @command("GET", "/usage", operation="report_usage")
    async def usage_report(
        self,
        *,
        by: Sequence[UsageKey] = (),
        since: Moment | None = None,
        until: Moment | None = None,
        owner: Key | None = None,
        timezone: Name = "UTC",
    ) -> list[UsageSum]:
        """Return what model calls used and cost, of all chats: by owner, agent, model and day, or in all.

        They are those from `since` on and before `until`, of all owners or of one. Days are those of the time zone.
        What deleted chats used is gone with them. It reads every ledger: let it run seldom in a large store.
        """

    @command("GET", "/chats/{chat_id}/family-usage", operation="read_family_usage")
    async def family_usage(self, chat_id: str) -> Usage:
        """Return the usage of a chat and its subagents at every depth, including those that still work or were stopped.

        It is `partial` if one of them was deleted or cannot be read.
        """

    @command("GET", "/chats/{chat_id}/argument-schemas", operation="read_argument_schemas")
    async def argument_schemas(self, chat_id: str) -> dict[str, Mapping[str, Any]]:
        """Return the JSON schemas of the arguments of a chat's open calls, by tool, for example to build a form.

        They come from the agent that made the calls. Approvals with changed arguments are checked against them. Tools
        that the agent does not have in this engine are left out.
        """

    @command("GET", "/chats/{chat_id}/events", operation="stream_events")
    def events(
        self, chat_id: str, *, after: Ordinal = 0, follow: bool = True, until_rest: bool = False
    ) -> AsyncGenerator[Event, None]:
        """Yield the chat's stored events after number `after`, then new ones as they come, unless `follow` is false.

        With `until_rest` it ends once the chat rests and all of its events were yielded.
        """

    @command()
    async def wait(
        self,
        chat_id: str,
        *,
        until: Annotated[Collection[ChatState | str], Field(min_length=1)] = RESTING,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the contract's word
    ) -> Chat:
        """Return the chat once its state is in `until`; `interrupted` counts once settled.

        By default it waits until the chat rests. A chat that waits only for subagents does not rest.

        Raises:
            TimeoutError: the chat is not in such a state after `timeout` seconds.
            InvalidArgument: `until` is empty.
        """

    @command("GET", "/chats/{chat_id}/explain")
    async def explain(self, chat_id: str) -> Explanation:
        """Return the state of the chat and, in one sentence, why it does not move.

        For a chat that cannot be read it says which table and column is wrong, and what can be done.
        """

    @command("GET", "/chats/{chat_id}/audit", operation="read_audit")
    async def audit(self, chat_id: str) -> list[AuditRecord]:
        """Return one record for every transition, in order of version."""

    @checked
    async def export_audit(self, chat_id: str, *, key: bytes | None = None, signer: SigningKey | None = None) -> str:
        """Return the log as JSON Lines. `verify_export` checks it without a store.

        Args:
            chat_id: the chat.
            key: signs the log by HMAC: the same key checks the signature.
            signer: signs the log by Ed25519: the public key checks the signature.
        """
        records = await self.audit(chat_id)
        return await run_in_thread(partial(export, chat_id, records, key=key, signer=signer))

    @command("GET", "/chats/{chat_id}/verify")
    async def verify(
        self,
        chat_id: str,
        *,
        family: bool = False,
        files: bool = False,
        checkpoints: Annotated[str, InstanceOf] | None = None,
        public_key: bytes | None = None,
    ) -> Verdict:
        """Check the log's hash chain, each transition and invariant against the table, and each row against the log.

        Args:
            chat_id: the chat.
            family: also check the logs of its subagents, at every depth.
            files: also read every file of the chat and compare it with its digest.
            checkpoints: lines that `Checkpoints` has published: the log must be the one that they name, which finds
                a database that was rewritten as a whole. Those of subagents are not looked at.
            public_key: the Ed25519 keys, as PEM, that the checkpoints must be signed with.

        Raises:
            SettingsError: there are checkpoints and no usable public key, or a public key and no checkpoints.
        """

    @command("POST", "/files", 201)
    async def put_file(
        self,
        chat_id: str,
        content: Annotated[FileContent, SkipValidation],
        *,
        media_type: Name | None = None,
        name: Label | None = None,
    ) -> FilePart:
        """Keep a file for a chat, and return the part by which messages of this chat refer to it.

        The content is streamed and never held as a whole. The same bytes are stored once. What is
        never sent is removed after `Settings.keep_unsent_files`.

        Args:
            chat_id: the chat. In another one the part is worth nothing, but in forks of it from a version that has the
                file in a message.
            content: the path of a file on the disk, bytes, or something that yields bytes.
            media_type: guessed from the name of a file on the disk by default.
            name: the file's own by default, with U+FFFD for what is no UTF-8 in it.

        Raises:
            ChatNotFound: there is no such chat.
            ChatArchived: the chat is archived.
            InvalidContent: the file is too large, empty, of a type that is not allowed, or cannot be read.
        """

    @command()
    def open_file(self, chat_id: str, file: Annotated[FilePart | str, SkipValidation]) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file that a chat holds, piece by piece.

        Args:
            chat_id: the chat.
            file: a part of one of its messages, or the digest of one.

        Raises:
            FileNotFound: the chat holds no such file, or its bytes are gone; if they are damaged, after the last piece.
            ChatNotFound: there is no such chat.
            InvalidArgument: the file is given by address: turnwise fetches nothing.
        """


def state_of(state: ChatState | str, argument: str = "state") -> ChatState:
    """Return the state of that name.

    Raises:
        SettingsError: there is none.
    """
    try:
        return ChatState(state)
    except ValueError:
        raise SettingsError(argument, f"must be one of {', '.join(ChatState)}; it was {shown(state)}") from None
