"""Many files of a megabyte pass through messages, tools and reads; memory must not grow with them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

FILES: Final = int(os.environ.get("MANY_FILES", "60"))
"""`MANY_FILES=1000 make test TESTS=tests/acceptance/test_many_files.py` checks the full claim."""
ALLOWED: Final = 24 * 1024
"""Kibibytes by which the process may grow after its first turns: a few requests' files, not all."""

_LIFE: Final = """
import os, resource, sys
import anyio
from turnwise import Engine, FolderFiles, Settings, TextPart, ToolContext, ToolOutput, tool
from turnwise.providers.protocol import ModelPart

url, folder, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
SIZE = 1_000_000

async def stream():
    for _ in range(10):
        yield os.urandom(SIZE // 10)

@tool
async def make(context: ToolContext) -> ToolOutput:
    "Make a file."
    return ToolOutput("made", (await context.put_file(stream(), media_type="image/png"),))

class Model:
    name, provider, context_limit = "quick", "test", 1_000_000_000

    async def stream(self, request):
        last = request.messages[-1]
        if last.role == "user":
            yield ModelPart(type="tool_call", id=f"call-{request.step}", name="make", arguments={})
        else:
            assert last.result.attachments[0].data
            yield ModelPart(type="text_delta", text="done")
        yield ModelPart(type="finish")

    async def generate(self, request):
        raise AssertionError

async def main():
    settings = Settings(request_file_bytes=2 * SIZE)
    files = FolderFiles(folder) if folder else None
    async with Engine(url, model=Model(), tools=[make], files=files, settings=settings) as engine:
        chat = await engine.create_chat()
        before = 0
        for number in range(count // 2):
            file = await engine.put_file(chat.id, stream(), media_type="image/png")
            result = await engine.ask(chat.id, [TextPart(text="go"), file])
            assert result.text == "done", result
            made = result.messages[2].result.attachments[0]
            for one in (file, made):
                assert sum([len(piece) async for piece in engine.open_file(chat.id, one)]) == SIZE
            if number == 9:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

anyio.run(main)
"""


@pytest.mark.deep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kept_in", ["database", "folder"])
def test_memory_does_not_grow_with_files(kept_in: str, tmp_path: Path) -> None:
    """Users send half of the files, a tool makes the others; requests and readers load all of them."""
    folder = str(tmp_path / "files") if kept_in == "folder" else ""
    arguments = [f"sqlite:///{tmp_path / 'chats.db'}", folder, str(FILES)]
    done = subprocess.run([sys.executable, "-c", _LIFE, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < ALLOWED
