"""One suite over `Engine` and over a client of a real service, on both stores."""

import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from support.processes.service_process import TOKEN
from support.processes.talkative import engine_on
from support.processes.talkative_service import ServiceProcess
from turnwise import (
    ChatArchived,
    ChatBusy,
    ChatDeleted,
    ChatExists,
    ChatState,
    ClientTool,
    ConflictingReplay,
    Engine,
    FileNotFound,
    FilePart,
    IllegalTransition,
    ImportRefused,
    InvalidArgument,
    InvalidContent,
    MessageNotFound,
    NothingToCompact,
    QueueFull,
    SettingsError,
    SigningKey,
    TextPart,
    ToolResult,
    ToolResultMismatch,
    TurnwiseError,
    VersionMismatch,
    fold,
    verify_export,
)
from turnwise.client import Client
from turnwise.persistence.audit.checkpoints import Head, checkpoint_line
from turnwise.persistence.audit.record import GENESIS

Chats = Engine | Client
PICK = ClientTool("pick_date", "Ask for a date.", {"type": "object"})


async def test_chat_is_created_read_and_listed(chats: Chats) -> None:
    parent = await chats.create_chat()
    chat = await chats.create_chat(
        title="A parcel", metadata={"tier": ["gold", None]}, owner="ada", system="Be brief.", parent=parent.id
    )
    page = await chats.list_chats(owner="ada", limit=1)
    rest = await chats.list_chats(limit=1, after=chat.id)

    assert (chat.state, chat.title, chat.metadata, chat.owner) == (
        ChatState.waiting, "A parcel", {"tier": ["gold", None]}, "ada"
    )  # fmt: skip
    assert await chats.get_chat(chat.id) == chat
    assert page.items[0] == chat
    assert (rest.items[0], len(rest.items)) == (parent, 1)
    assert (await chats.chat_ids(chat.id[:-1]))[0] == chat.id


async def test_message_is_answered(chats: Chats) -> None:
    chat = await chats.create_chat(message="Hello", client_id="tab")
    result = await chats.ask(chat.id, "Hello", client_id="tab")
    messages = await chats.messages(chat.id)
    created, sent = [(record.trigger, record.at) for record in (await chats.audit(chat.id))[:2]]

    assert (result.text, result.stop_reason, result.message_state) == ("You said: Hello", "end_turn", "taken")
    assert (created, sent) == (("create", sent[1]), ("send_message", created[1])), "one commit"
    assert result.messages == messages
    assert result.chat == await chats.get_chat(chat.id)
    assert (result.usage.input_tokens, result.usage.output_tokens) == (3, 2)


async def test_turn_is_streamed_to_its_end(chats: Chats) -> None:
    chat = await chats.create_chat()
    async with aclosing(chats.stream(chat.id, "Hello")) as stream:
        events = [event async for event in stream]
    stored = [event async for event in chats.events(chat.id, follow=False)]

    assert events[-1].kind == "turn_finished"
    assert [event for event in stored if events[0].seq <= event.seq <= events[-1].seq] == events
    assert [event.seq for event in stored] == list(range(1, len(stored) + 1))
    assert fold(stored).messages == await chats.messages(chat.id)


async def test_repeated_message_is_accepted_once(chats: Chats) -> None:
    chat = await chats.create_chat()
    first = await chats.send_message(chat.id, "Hello", client_id="tab")
    again = await chats.send_message(chat.id, "Hello", client_id="tab")
    result = await chats.ask(chat.id, "Hello", client_id="tab")
    with pytest.raises(ConflictingReplay) as conflict:
        await chats.send_message(chat.id, "Bye", client_id="tab")

    assert (first.replayed, again.replayed, first.message_id) == (False, True, again.message_id)
    assert result.messages[0].id == first.message_id
    assert len(await chats.messages(chat.id)) == 2
    assert (conflict.value.client_id, conflict.value.call_id, conflict.value.outcome) == ("tab", None, None)


async def test_wait_ends_at_the_state(chats: Chats) -> None:
    chat = await chats.create_chat()
    await chats.send_message(chat.id, "hang")
    streaming = await chats.wait(chat.id, until={"streaming"}, timeout=120)
    with pytest.raises(TimeoutError):
        await chats.wait(chat.id, timeout=0.05)
    await chats.interrupt(chat.id)
    settled = await chats.wait(chat.id, timeout=120)

    assert streaming.state is ChatState.streaming
    assert (settled.state, settled.settled) == (ChatState.interrupted, True)
    with pytest.raises(SettingsError, match="must be one of"):
        await chats.wait(chat.id, until={"nowhere"})


async def test_tool_results_are_accepted_once(chats: Chats) -> None:
    chat = await chats.create_chat(client_tools=[PICK])
    result = await chats.ask(chat.id, "call")
    call = result.open_calls[0]
    inbox = await chats.list_chats(awaiting="client", limit=1)
    with pytest.raises(ToolResultMismatch) as mismatch:
        await chats.submit_tool_results(chat.id, [ToolResult("nope", 1)])
    first = await chats.submit_tool_results(chat.id, [ToolResult(call.call_id, {"day": "Friday"})])
    again = await chats.submit_tool_results(chat.id, [ToolResult(call.call_id, {"day": "Friday"})])
    with pytest.raises(ConflictingReplay) as conflict:
        await chats.submit_tool_results(chat.id, [ToolResult(call.call_id, "Monday")])
    await chats.wait(chat.id, timeout=120)

    assert (call.name, call.arguments) == ("pick_date", {"month": 5})
    assert inbox.items[0].id == chat.id
    assert (mismatch.value.missing, mismatch.value.extra, mismatch.value.duplicate) == ((call.call_id,), ("nope",), ())
    assert (first.replayed, again.replayed, first.receipt_id) == (False, True, again.receipt_id)
    assert conflict.value.call_id == call.call_id
    assert (await chats.messages(chat.id))[-1].text == "Booked."


async def test_queue_is_edited_deleted_and_promoted(chats: Chats) -> None:
    chat = await chats.create_chat()
    for text in ("hang", "two", "three", "four"):
        await chats.send_message(chat.id, text)
    with pytest.raises(QueueFull) as full:
        await chats.send_message(chat.id, "five")
    with pytest.raises(ChatBusy):
        await chats.send_message(chat.id, "five", when_busy="reject")
    queue = await chats.queued(chat.id)
    await chats.edit_queued(chat.id, queue[0].id, "TWO")
    await chats.delete_queued(chat.id, queue[1].id)
    with pytest.raises(MessageNotFound) as gone:
        await chats.delete_queued(chat.id, queue[1].id)
    await chats.promote_queued(chat.id, queue[2].id)
    await chats.wait(chat.id, timeout=120)

    assert (full.value.limit, str(full.value)) == (3, str(QueueFull(3)))
    assert gone.value.message_id == queue[1].id
    texts = [message.text for message in await chats.messages(chat.id) if message.role == "user"]
    assert texts == ["hang", "four", "TWO"]


async def test_chat_is_interrupted_and_resumed(chats: Chats) -> None:
    chat = await chats.create_chat()
    await chats.send_message(chat.id, "endless")
    async with aclosing(chats.events(chat.id)) as events:
        async for event in events:
            if event.kind == "part":
                break
    await chats.acting("jane").interrupt(chat.id, reason="enough")
    stopped = await chats.wait(chat.id, timeout=120)
    resumed = await chats.resume(chat.id)
    finished = await chats.wait(chat.id, timeout=30)
    with pytest.raises(IllegalTransition) as refused:
        await chats.interrupt(chat.id)

    assert (stopped.state, resumed.state is not ChatState.interrupted) == (ChatState.interrupted, True)
    assert finished.state is ChatState.waiting
    assert (refused.value.state, refused.value.trigger) == ("waiting", "interrupt")
    assert str(refused.value) == str(IllegalTransition("waiting", "interrupt", refused.value.allowed))
    (record,) = [record for record in await chats.audit(chat.id) if record.reason == "enough"]
    assert record.actor in ("jane", "operator:operator on behalf of jane")


async def test_chat_is_forked(chats: Chats) -> None:
    chat = await chats.create_chat(title="first")
    result = await chats.ask(chat.id, "one")
    fork = await chats.fork(chat.id, at_version=result.chat.version)
    await chats.ask(fork.id, "two")

    assert (fork.parent, fork.title) == (chat.id, "first")
    assert [message.text for message in await chats.messages(fork.id)][:3] == ["one", "You said: one", "two"]
    assert len(await chats.messages(chat.id)) == 2
    with pytest.raises(SettingsError, match="at_version"):
        await chats.fork(chat.id, at_version=10_000)
    with pytest.raises(SettingsError, match="at_version"):
        await chats.fork(chat.id, at_version=0)
    with pytest.raises(VersionMismatch):
        await chats.update_chat(chat.id, title="Another", if_version=2**53)


async def test_chat_is_compacted_and_cleared(chats: Chats) -> None:
    chat = await chats.create_chat()
    with pytest.raises(NothingToCompact):
        await chats.request_compaction(chat.id)
    await chats.ask(chat.id, "one")
    await chats.request_compaction(chat.id)
    await chats.wait(chat.id, timeout=120)
    (compaction,) = await chats.compactions(chat.id)
    await chats.clear_context(chat.id)

    assert compaction.summary
    assert await chats.messages(chat.id, view="model") == []
    assert [message.text for message in await chats.messages(chat.id) if message.role == "user"] == ["one"]
    assert len(await chats.messages(chat.id, view="raw")) >= 2


async def test_chat_is_renamed_and_archived(chats: Chats) -> None:
    chat = await chats.create_chat()
    await chats.rename(chat.id, "named")
    await chats.set_metadata(chat.id, {"a": 1})
    archived = await chats.archive(chat.id)
    with pytest.raises(ChatArchived) as closed:
        await chats.send_message(chat.id, "x")
    opened = await chats.unarchive(chat.id)
    changed = await chats.update_chat(chat.id, title=None, metadata={}, if_version=opened.version)
    with pytest.raises(VersionMismatch):
        await chats.update_chat(chat.id, title="again", if_version=opened.version)
    with pytest.raises(SettingsError, match="needs one of"):
        await chats.update_chat(chat.id)

    assert (archived.title, archived.metadata, archived.archived, opened.archived) == ("named", {"a": 1}, True, False)
    assert (changed.title, changed.metadata) == (None, {})
    assert (closed.value.chat_id, str(closed.value)) == (chat.id, str(ChatArchived(chat.id)))


async def test_files_are_stored_and_read(chats: Chats, tmp_path: Any) -> None:
    chat, other = await chats.create_chat(), await chats.create_chat()
    (tmp_path / "a.txt").write_bytes(b"so much " * 100_000)
    part = await chats.put_file(chat.id, tmp_path / "a.txt")
    await chats.ask(chat.id, [TextPart(text="Read!"), part])
    content = b"".join([piece async for piece in chats.open_file(chat.id, part)])
    with pytest.raises(FileNotFound) as elsewhere:
        [piece async for piece in chats.open_file(other.id, part)]
    with pytest.raises(FileNotFound) as nonsense:
        [piece async for piece in chats.open_file(chat.id, "nonsense")]
    with pytest.raises(InvalidContent):
        await chats.put_file(chat.id, b"", media_type="text/plain")

    assert (part.name, part.media_type, part.size) == ("a.txt", "text/plain", 800_000)
    assert content == b"so much " * 100_000
    assert str(elsewhere.value) == str(FileNotFound(other.id, part.blob or ""))
    assert elsewhere.value.problem == nonsense.value.problem.replace("nonsense", part.blob or "")
    assert (await chats.messages(chat.id))[0].parts[1] == part


async def test_chat_is_exported_and_deleted(chats: Chats) -> None:
    chat = await chats.create_chat(title="goes")
    await chats.ask(chat.id, "one")
    lines = [line async for line in chats.export_chat(chat.id)]
    with pytest.raises(ChatExists) as exists:
        await chats.import_chat(lines)
    with pytest.raises(ImportRefused):
        await chats.import_chat(lines[:-1])
    assert await chats.tombstone(chat.id) is None
    tombstone = await chats.delete_chat(chat.id)
    with pytest.raises(ChatDeleted) as deleted:
        await chats.get_chat(chat.id)

    assert all(line.endswith("\n") for line in lines)
    assert exists.value.chat_id == chat.id
    assert await chats.tombstone(chat.id) == tombstone == await chats.delete_chat(chat.id)
    assert (deleted.value.chat_id, deleted.value.deleted_at) == (chat.id, tombstone.deleted_at)
    with pytest.raises(ChatDeleted):
        await chats.import_chat(lines)
    with pytest.raises(ChatDeleted):
        [event async for event in chats.events(chat.id)]


async def test_messages_and_title_are_erased(chats: Chats) -> None:
    chat = await chats.create_chat(title="secret")
    message = (await chats.ask(chat.id, "a secret")).messages[0]
    blank = await chats.erase_message(chat.id, message.id)
    erasure = await chats.erase(chat.id, what=["title"])
    with pytest.raises(InvalidArgument):
        await chats.erase(chat.id)

    assert blank.id == chat.id
    assert (erasure.labels, erasure.chat.title, erasure.messages) == (("title",), None, ())
    assert "secret" not in (await chats.messages(chat.id))[0].text
    assert (await chats.verify(chat.id)).ok


async def test_audit_is_exported_and_verified(chats: Chats) -> None:
    chat = await chats.create_chat()
    await chats.ask(chat.id, "one")
    records = await chats.audit(chat.id)
    signed = await chats.export_audit(chat.id, key=b"k")

    assert [record.version for record in records] == list(range(1, len(records) + 1))
    assert verify_export(await chats.export_audit(chat.id)).ok
    assert verify_export(signed, key=b"k").ok
    assert not verify_export(signed, key=b"other").ok
    assert (await chats.verify(chat.id, family=True, files=True)).ok
    signer = SigningKey.generate()
    signed = await chats.export_audit(chat.id, signer=signer)
    assert verify_export(signed, public_key=signer.public_pem).ok
    stands = Head(chat.id, 1, json.loads(signed.splitlines()[1])["hash"])
    for head, ok in ((stands, True), (replace(stands, head="0" * 64), False)):
        line = checkpoint_line(head, at=datetime.now(UTC), prev=GENESIS, key=signer)
        verdict = await chats.verify(chat.id, checkpoints=f"{line}\n", public_key=signer.public_pem)
        assert (verdict.ok, verdict.covered if ok else verdict.position) == (ok, 1)
    assert (await chats.explain(chat.id)).reason.startswith("Nothing to do")
    usage = await chats.usage(chat.id)
    assert [(entry.purpose, entry.usage.input_tokens) for entry in usage] == [("step", 3)]
    assert (await chats.family_usage(chat.id)).output_tokens == 2
    assert await chats.subagents(chat.id) == []


REFUSALS: tuple[Callable[[Any, str], Awaitable[Any]], ...] = (
    lambda c, _: c.get_chat("none"),
    lambda c, _: c.list_chats(limit=0),
    lambda c, _: c.list_chats(state="asleep"),
    lambda c, _: c.create_chat(agent="nobody"),
    lambda c, _: c.create_chat(parent="none"),
    lambda c, _: c.create_chat(message=" "),
    lambda c, _: c.create_chat(message=[FilePart("image/png", blob="0" * 64)]),
    lambda c, i: c.send_message(i, " "),
    lambda c, i: c.send_message(i, 7),
    lambda c, i: c.send_message(i, "Hi!", when_busy="later"),
    lambda c, i: c.send_message(i),
    lambda c, i: c.edit_message(i, "m99", "x"),
    lambda c, i: c.edit_queued(i, "m99", "x"),
    lambda c, i: c.edit_queued(i, "m99", "x", if_version=True),
    lambda c, i: c.submit_tool_results(i, [ToolResult("call_2", 1)]),
    lambda c, i: c.submit_tool_results(i, "call_1"),
    lambda c, i: c.configure(i),
    lambda c, i: c.configure(i, agent=None),
    lambda c, i: c.configure(i, parameters={"t": object()}),
    lambda c, i: c.update_chat(i, title="x", if_version=99),
    lambda c, i: c.fork(i, at_version=99),
    lambda c, i: c.fork(i, at_versoin=3),
    lambda c, i: c.erase(i),
    lambda c, i: c.resume(i),
    lambda c, i: c.repair(i),
    lambda c, i: c.wait(i, until=[]),
    lambda c, i: c.acting("x" * 1025).get_chat(i),
)


async def test_both_refuse_in_the_same_words(tmp_path: Path) -> None:
    """The same refusals raise the same errors with the same texts."""
    async with engine_on(f"sqlite:///{tmp_path}/engine.db") as engine:
        with ServiceProcess.running(f"sqlite:///{tmp_path}/service.db") as service:
            async with Client(service.url, token=TOKEN) as client:
                ours, theirs = await refusals_of(engine), await refusals_of(client)
    assert ours == theirs


async def refusals_of(chats: Chats) -> list[str]:
    chat, texts = await chats.create_chat(), []
    for act in REFUSALS:
        with pytest.raises((TurnwiseError, TypeError)) as refusal:
            await act(chats, chat.id)
        texts.append(f"{refusal.type.__name__}: {refusal.value}".replace(chat.id, "CHAT"))
    return texts
