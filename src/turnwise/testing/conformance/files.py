"""What a file store promises, and what a chat store keeps about the files of its chats."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterable, AsyncIterator
from functools import partial

import anyio

from turnwise.persistence.blobs.protocol import Blob, BlobGone, FileStore, Note
from turnwise.persistence.protocol import ChatStore
from turnwise.states import triggers as t
from turnwise.states.arguments import Erasing
from turnwise.states.errors import ChatDeleted, ChatNotFound, StoreError
from turnwise.states.messages import FilePart, Message, TextPart
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.deleting import deleted
from turnwise.testing.conformance.plans import failure_of

_LONG = 1_300_000
"""Bytes that no store keeps in one piece."""


def of(content: bytes, *, at_once: int = 100_000) -> AsyncIterable[bytes]:
    """Return content as a stream."""

    async def stream() -> AsyncIterator[bytes]:
        for first in range(0, len(content), at_once):
            yield content[first : first + at_once]

    return stream()


def blob_of(content: bytes) -> Blob:
    return Blob(hashlib.sha256(content).hexdigest(), len(content))


async def read(files: FileStore, digest: str) -> bytes:
    return b"".join([piece async for piece in files.read(digest)])


def holding(store: ChatStore, chat_id: str) -> Note:
    """Return what lets a chat hold a blob."""
    return partial(store.note_file, chat_id, kept_in="here")


async def collect(store: ChatStore, files: FileStore) -> None:
    """Remove what was let go of."""
    for number, digest in await store.unreferenced_files(limit=100):
        await files.remove(digest, partial(store.is_unreferenced, digest))
        await store.settle_unreferenced(number)


def sends(blob: Blob) -> plans.Move:
    """Say something with a reference."""
    file = FilePart(media_type="image/png", blob=blob.digest, size=blob.size)
    return plans.move(t.SendMessage(parts=(file,), content_digest=blob.digest))


class FilesConformance:
    """Whole blobs under their digests, each for as long as a chat holds it."""

    async def files_beside(self, store: ChatStore) -> FileStore:
        """Return the file store to test, opened: the chat store's own."""
        return store.file_store()

    async def test_what_was_put_is_read_however_it_was_cut(self, store: ChatStore) -> None:
        """And its name is the digest of the content."""
        files = await self.files_beside(store)
        await plans.created(store, "chat")
        content = random.Random(1).randbytes(_LONG)  # noqa: S311 - no secret
        for at_once in (1_000, 524_288, _LONG):
            blob = await files.put(of(content, at_once=at_once), holding(store, "chat"))
            assert blob == blob_of(content)
            assert await read(files, blob.digest) == content
            assert await files.size(blob.digest) == _LONG
        assert await store.held_files("chat") == {blob.digest: _LONG}
        small = await files.put(of(b"x"), holding(store, "chat"))
        assert await read(files, small.digest) == b"x"

    async def test_what_is_not_there_is_gone(self, store: ChatStore) -> None:
        """A reader learns its name."""
        files, missing = await self.files_beside(store), "0" * 64
        assert await files.size(missing) is None
        assert (await failure_of(read(files, missing), BlobGone)).digest == missing

    async def test_nothing_stands_under_its_name_before_a_chat_holds_it(self, store: ChatStore) -> None:
        """Else no process would know of it after a crash."""
        files, seen = await self.files_beside(store), list[int | None]()
        await plans.created(store, "chat")

        async def note(blob: Blob) -> None:
            seen.append(await files.size(blob.digest))
            await store.note_file("chat", blob, kept_in="here")

        await files.put(of(b"content"), note)
        assert seen == [None]

    async def test_a_file_no_chat_can_hold_is_not_stored(self, store: ChatStore) -> None:
        """The error reaches the caller, and nothing is left to tidy."""
        files = await self.files_beside(store)
        await failure_of(files.put(of(b"content"), holding(store, "missing")), ChatNotFound)
        await plans.created(store, "gone")
        await deleted(store, "gone")
        await failure_of(files.put(of(b"content"), holding(store, "gone")), ChatDeleted)
        assert await files.size(blob_of(b"content").digest) is None
        await files.tidy(0)
        assert await store.is_unreferenced(blob_of(b"content").digest)

    async def test_a_stream_that_breaks_leaves_nothing(self, store: ChatStore) -> None:
        """Nor does one that is given up."""
        files = await self.files_beside(store)
        await plans.created(store, "chat")
        content = bytes(_LONG)

        async def broken() -> AsyncIterator[bytes]:
            yield content
            raise ConnectionError

        await failure_of(files.put(broken(), holding(store, "chat")), ConnectionError)

        async def endless(started: anyio.Event) -> AsyncIterator[bytes]:
            yield content
            started.set()
            await anyio.sleep_forever()

        async with anyio.create_task_group() as tasks:
            started = anyio.Event()
            tasks.start_soon(files.put, endless(started), holding(store, "chat"))
            await started.wait()
            tasks.cancel_scope.cancel()
        assert await files.size(blob_of(content).digest) is None
        assert await store.held_files("chat") == {}

    async def test_the_same_content_is_stored_once_for_every_chat(self, store: ChatStore) -> None:
        """Also in the same moment; it goes only with the last that holds it."""
        files, content = await self.files_beside(store), bytes(_LONG)
        digest = blob_of(content).digest
        async with anyio.create_task_group() as tasks:
            for chat_id in "abc":
                await plans.created(store, chat_id)
            for chat_id in "abcab":
                tasks.start_soon(files.put, of(content), holding(store, chat_id))
        for chat_id in "abc":
            assert await read(files, digest) == content
            await deleted(store, chat_id)
            await collect(store, files)
        assert await files.size(digest) is None
        assert await store.unreferenced_files(limit=10) == []

    async def test_a_blob_that_a_chat_has_is_not_removed(self, store: ChatStore) -> None:
        """Even if the caller claims that no chat holds it."""
        files = await self.files_beside(store)
        await plans.created(store, "chat")
        blob = await files.put(of(b"content"), holding(store, "chat"))
        await files.remove(blob.digest, partial(store.is_unreferenced, blob.digest))
        assert await read(files, blob.digest) == b"content"

    async def test_puts_and_removals_of_one_content_leave_what_is_held(self, store: ChatStore) -> None:
        """However closely they follow one another."""
        files, content = await self.files_beside(store), b"content"
        blob = blob_of(content)
        await plans.created(store, "chat")

        async def put(chat_id: str) -> None:
            await plans.created(store, chat_id)
            await files.put(of(content), holding(store, chat_id))
            await deleted(store, chat_id)

        for round_ in range(8):
            async with anyio.create_task_group() as tasks:
                for number in range(3):
                    tasks.start_soon(put, f"{round_}-{number}")
                    tasks.start_soon(files.remove, blob.digest, partial(store.is_unreferenced, blob.digest))
                tasks.start_soon(files.put, of(content), holding(store, "chat"))
            assert await read(files, blob.digest) == content
            assert await store.let_go(seconds=0, limit=10) == 1
            await collect(store, files)
            assert await files.size(blob.digest) is None

    async def test_a_chat_has_what_its_messages_refer_to(self, store: ChatStore) -> None:
        """Sent or queued, from the very transaction on; what was only put is let go of after a while."""
        files = await self.files_beside(store)
        await plans.created(store, "chat")
        sent, queued, unsent = [
            await files.put(of(text), holding(store, "chat")) for text in (b"sent", b"queued", b"unsent")
        ]
        await store.change("chat", plans.plan(sends(sent)))
        await store.change("chat", plans.plan(sends(queued)))
        assert await store.let_go(seconds=3600, limit=10) == 0
        assert await store.held_files("chat", [sent.digest, "0" * 64]) == {sent.digest: 4}
        assert await store.let_go(seconds=0, limit=10, chat_id="another") == 0
        assert await store.let_go(seconds=0, limit=10) == 1
        assert {*await store.held_files("chat")} == {sent.digest, queued.digest}
        assert [digest for _, digest in await store.unreferenced_files(limit=10)] == [unsent.digest]

    async def test_everything_unsent_of_one_chat_goes_whatever_the_limit(self, store: ChatStore) -> None:
        """The limit is for all chats, of which there may be many."""
        for chat_id in "ab":
            await plans.created(store, chat_id)
            for content in (b"one", b"two", b"three"):
                await store.note_file(chat_id, blob_of(content), kept_in="here")
        assert await store.let_go(seconds=0, limit=1, chat_id="a") == 3  # noqa: PLR2004 - as put
        assert await store.held_files("a") == {}
        assert await store.let_go(seconds=0, limit=2) == 2  # noqa: PLR2004 - the limit
        assert len(await store.held_files("b")) == 1

    async def test_what_is_put_again_is_as_new(self, store: ChatStore) -> None:
        """Else it would go in the moment before it is sent. What was put longest ago goes first."""
        await plans.created(store, "chat")
        first, second = blob_of(b"first"), blob_of(b"second")
        for blob in (first, second, first):
            await store.note_file("chat", blob, kept_in="here")
        assert await store.let_go(seconds=0, limit=1) == 1
        assert [*await store.held_files("chat")] == [first.digest]

    async def test_a_message_alone_gives_a_chat_a_blob(self, store: ChatStore) -> None:
        """As it does in a fork, whose messages come from elsewhere."""
        blob = blob_of(b"content")
        await plans.created(store, "chat", sends(blob), sends(blob))
        assert await store.held_files("chat") == {blob.digest: blob.size}
        assert not await store.is_unreferenced(blob.digest)

    async def test_an_erasure_lets_go_of_what_nothing_else_refers_to(self, store: ChatStore) -> None:
        """A blob that stands in another message stays, and so does what is still to be sent."""
        both, once, unsent = blob_of(b"both"), blob_of(b"once"), blob_of(b"unsent")
        await plans.created(store, "chat", sends(both), sends(once), sends(both))
        await store.note_file("chat", unsent, kept_in="here")
        facts = await store.facts("chat")
        queue = [queued.id for queued in facts.queue]
        first = (await store.history("chat"))[0]

        async def erase(*messages: Message, queued: frozenset[str] = frozenset()) -> set[str]:
            blank = tuple(
                Message(
                    **{
                        **{name: getattr(message, name) for name in ("id", "role", "turn", "step", "created_at")},
                        "position": message.position,
                        "parts": (TextPart(text="[erased]"),),
                        "erased": True,
                    }
                )
                for message in messages
            )
            erasing = Erasing(messages=blank, queued=queued)
            await store.change("chat", plans.plan(plans.move(t.MessageErased(erasing=erasing))))
            return {*await store.held_files("chat")}

        assert await erase(first) == {both.digest, once.digest, unsent.digest}
        assert await erase(queued=frozenset(queue[:1])) == {both.digest, unsent.digest}
        assert await erase(queued=frozenset(queue[1:])) == {unsent.digest}
        assert {digest for _, digest in await store.unreferenced_files(limit=10)} == {both.digest, once.digest}

    async def test_a_chat_that_arrives_has_its_blobs_before_it_is_there(self, store: ChatStore) -> None:
        """They belong to no other chat, and are let go of if it never comes."""
        blob = blob_of(b"content")
        await failure_of(store.note_file("coming", blob, kept_in="here"), ChatNotFound)
        await store.note_file("coming", blob, arriving=True, kept_in="here")
        assert await store.orphans() == []
        assert await store.held_files("coming") == {blob.digest: blob.size}
        assert await store.let_go(seconds=0, limit=10) == 1
        assert await store.is_unreferenced(blob.digest)

    async def test_what_was_let_go_of_again_is_noted_again(self, store: ChatStore) -> None:
        """Settling the first note may have looked before the second came."""
        blob = blob_of(b"content")
        for chat_id in "ab":
            await plans.created(store, chat_id)
            await store.note_file(chat_id, blob, kept_in="here")
            await store.let_go(seconds=0, limit=10)
        (first, _), (second, digest) = await store.unreferenced_files(limit=10)
        await store.settle_unreferenced(first)
        assert await store.unreferenced_files(limit=10) == [(second, digest)]
        assert await store.unreferenced_files(limit=0) == []

    async def test_the_files_of_a_store_are_kept_in_one_place(self, store: ChatStore) -> None:
        """Another file store is refused, until the last blob has been removed; else no process would remove that."""
        assert await store.files_kept_in() is None
        await plans.created(store, "chat")
        blob = blob_of(b"content")
        await store.note_file("chat", blob, kept_in="here")
        error = await failure_of(store.note_file("chat", blob, kept_in="there"), StoreError)
        assert "kept in 'here', and this engine was given 'there'" in str(error)
        await store.let_go(seconds=0, limit=10)
        await failure_of(store.note_file("chat", blob, kept_in="there"), StoreError)
        for number, _ in await store.unreferenced_files(limit=10):
            await store.settle_unreferenced(number)
        await store.note_file("chat", blob, kept_in="there")
        assert await store.files_kept_in() == "there"
