"""Fill the disk under running chats, make room again, and report, as a separate process.

`python -m acceptance.full_disk FOLDER OUTSIDE quota` limits the size of its files; with `ballast` a file fills the
folder's file system, which should be small. The program prints one JSON object: the refusals, and the problems that
remain.
"""

import contextlib
import json
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio

from acceptance.problems import problems_of_all
from acceptance.worker_process import ASK, Doom, Place, engine_on
from turnwise import Engine
from turnwise.states.errors import StoreError
from turnwise.states.events import PartEvent

_CHUNK = 4096


@contextlib.contextmanager
def quota(folder: Path) -> Iterator[None]:
    """Limit every file to the size of the folder's largest file."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(path.stat().st_size for path in folder.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + _CHUNK, most))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


@contextlib.contextmanager
def ballast(folder: Path) -> Iterator[None]:
    heavy = folder / "ballast"
    with heavy.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(_CHUNK)):
            pass
    yield
    heavy.unlink()


async def live(folder: Path, outside: Path, filled: Callable[[Path], contextlib.AbstractContextManager[None]]) -> None:
    """Start chats, fill the disk while they run, make room again, and wait until the chats rest."""
    place = Place(f"sqlite:///{folder}/chats.db", outside)
    async with engine_on(place, Doom(), run_worker=True) as engine:
        accepted = {}
        for text in ["Please: pay note slow"] * 5:
            chat = await engine.create_chat(client_tools=[ASK])
            accepted[chat.id] = [(await engine.send_message(chat.id, text)).message_id]
        async for event in engine.events(chat.id):
            if isinstance(event, PartEvent):
                break
        with filled(folder):
            refusal = await refused(engine, accepted)
            await anyio.sleep(0.3)
            read = [(await engine.get_chat(chat_id)).id for chat_id in accepted]
        for chat_id in accepted:
            with anyio.move_on_after(120):
                resting = await engine.wait(chat_id, until=["waiting", "error"])
                while resting.state == "error" or resting.queued:
                    await engine.resume(chat_id)
                    resting = await engine.wait(chat_id, until=["waiting", "error"])
        states = [(await engine.get_chat(chat_id)).state for chat_id in accepted]
    problems = await problems_of_all(place, accepted)
    found = {"refusal": refusal, "read": read == [*accepted], "states": states, "problems": problems}
    print(json.dumps(found))  # noqa: T201 - what the tests read


async def refused(engine: Engine, accepted: dict[str, list[str]]) -> str:
    """Send to the chats in turn until the store refuses; return the error."""
    while True:
        for chat_id, messages in accepted.items():
            try:
                messages.append((await engine.send_message(chat_id, "x" * _CHUNK)).message_id)
            except StoreError as error:
                return str(error)


if __name__ == "__main__":
    anyio.run(live, Path(sys.argv[1]), Path(sys.argv[2]), {"quota": quota, "ballast": ballast}[sys.argv[3]])
