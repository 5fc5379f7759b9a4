"""Drawn lives of files: a blob exists exactly as long as a chat refers to it, for any crash."""

from typing import Any, Final

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from support.exploring import examples
from support.files import digest_of, whole
from turnwise import Engine, FilePart, Settings, StoreError
from turnwise.engine.blobs.files import Files
from turnwise.persistence.blobs.protocol import FileStore, IsUnreferenced
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.scripted import ScriptedModel

CONTENTS: Final = [bytes([65 + number]) * 70_000 for number in range(3)]
"""Large enough to be stored apart from messages, if they come inline."""
IDLE: Final = Settings(run_worker=False)


class Crashing:
    """A file store whose process dies before or after a removal; the test continues with it."""

    def __init__(self, files: FileStore) -> None:
        self._files = files
        self.crash: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    async def remove(self, digest: str, is_unreferenced: IsUnreferenced) -> None:
        if self.crash == "before":
            raise StoreError("dead")
        await self._files.remove(digest, is_unreferenced)
        if self.crash == "after":
            raise StoreError("dead")


class World:
    """Chats by number, and the files of each: referenced by messages, or uploaded and not sent."""

    def __init__(self, engine: Engine, files: Crashing) -> None:
        self.engine = engine
        self.files = files
        self.chats: list[str] = []
        self.sent: dict[str, dict[str, str]] = {}
        self.unsent: dict[str, set[str]] = {}

    async def create(self) -> None:
        chat = await self.engine.create_chat()
        self._note(chat.id)

    def _note(self, chat_id: str) -> None:
        self.chats.append(chat_id)
        self.sent[chat_id], self.unsent[chat_id] = {}, set()

    async def put(self, chat_id: str, content: bytes) -> None:
        file = await self.engine.put_file(chat_id, content, media_type="image/png")
        if file.blob not in self.sent[chat_id].values():
            self.unsent[chat_id].add(file.blob or "")

    async def send(self, chat_id: str, content: bytes) -> None:
        receipt = await self.engine.send_message(chat_id, [FilePart.from_bytes(content, "image/png")])
        self.sent[chat_id][receipt.message_id] = digest_of(content)
        self.unsent[chat_id].discard(digest_of(content))
        await self.engine.interrupt(chat_id)

    async def fork(self, chat_id: str) -> None:
        version = (await self.engine.get_chat(chat_id)).version
        history = {message.id for message in await self.engine.messages(chat_id, view="raw")}
        fork = await self.engine.fork(chat_id, at_version=version)
        self._note(fork.id)
        self.sent[fork.id] = {name: blob for name, blob in self.sent[chat_id].items() if name in history}

    async def erase(self, chat_id: str, which: int) -> None:
        names = sorted(self.sent[chat_id])
        if names:
            name = names[which % len(names)]
            await self.engine.erase_message(chat_id, name)
            del self.sent[chat_id][name]

    async def erase_everything(self, chat_id: str) -> None:
        await self.engine.erase(chat_id, what=["everything"])
        self.sent[chat_id], self.unsent[chat_id] = {}, set()

    async def delete(self, chat_id: str) -> None:
        await self.engine.delete_chat(chat_id)
        self.chats.remove(chat_id)
        del self.sent[chat_id], self.unsent[chat_id]

    async def check(self) -> None:
        """Sweep, then compare the stored files with the referenced ones."""
        self.files.crash = None
        await self.engine._files.sweep()
        held = {chat_id: {*self.sent[chat_id].values()} | self.unsent[chat_id] for chat_id in self.chats}
        for content in CONTENTS:
            wanted = any(digest_of(content) in digests for digests in held.values())
            assert (await self.files.size(digest_of(content)) is not None) == wanted
        for chat_id, digests in held.items():
            assert {*await self.engine._store.held_files(chat_id)} == digests
            for digest in digests:
                assert digest_of(await whole(self.engine, chat_id, digest)) == digest
        assert await self.engine._store.unreferenced_files(limit=10) == []


Move = tuple[str, int, int]
MOVES: Final = st.lists(
    st.tuples(
        st.sampled_from(["put", "send", "send", "fork", "erase", "erase_everything", "delete", "create", "crash"]),
        st.integers(0, 5),
        st.integers(0, 2),
    ),
    min_size=3,
    max_size=14,
)


async def live(moves: list[Move]) -> None:
    store = SQLiteStore(None)
    async with Engine(store, model=ScriptedModel([]), settings=IDLE) as engine:
        files = Crashing(store.file_store())
        crashing: Any = files
        taken = Files(engine._store, crashing, engine.settings)
        engine._files = taken
        engine._open_handlers._runtime.files = taken
        world = World(engine, files)
        await world.create()
        for move, chat, which in moves:
            if move == "crash":
                files.crash = (None, "before", "after")[which]
            elif move == "create" or not world.chats:
                await world.create()
            else:
                chat_id = world.chats[chat % len(world.chats)]
                given_more: tuple[Any, ...] = {
                    "put": (CONTENTS[which],),
                    "send": (CONTENTS[which],),
                    "erase": (which,),
                }.get(move, ())
                await getattr(world, move)(chat_id, *given_more)
        await world.check()


@settings(max_examples=examples(40))
@given(MOVES)
def test_a_blob_is_there_as_long_as_a_chat_refers_to_it(moves: list[Move]) -> None:
    anyio.run(live, moves)
