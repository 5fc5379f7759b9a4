"""The act with three processes: one watches, one is killed in mid-turn, one finishes the turn."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
from anyio.abc import Process

from turnwise.cli.audit import short_actor
from turnwise.cli.demo.acts import Play, added, succeeded
from turnwise.cli.demo.cast import LEASE
from turnwise.cli.demo.worker_process import command
from turnwise.states.events import Event
from turnwise.states.names import ChatState

SLOW: Final = 0.12
"""Seconds between two words of the process that is killed."""
KILLED_AFTER: Final = 4
"""Words after the tool has run."""
NOTE: Final = "a turn outlives its process"


async def outlives_its_process(play: Play, pace: float) -> None:
    """A process is killed with SIGKILL while its model speaks; another one finishes the turn."""
    stage, engine, chat_id = play.stage, play.engine, play.chat_id
    stage.act(
        "kill -9",
        "This process only watches now. Another process runs the turn and is killed in mid-sentence, so the database "
        "still names it as the holder. A third process sees that it is dead (on another machine it would wait until "
        f"the lease expires, {LEASE:g} s here), takes the chat over and finishes the turn.",
    )
    await engine.send_message(chat_id, f"Please take_note “{NOTE}”.")
    async with _process(play, SLOW, ends=False) as victim:
        stage.note("▶", f"process {victim.pid} runs the turn")
        await play.show_until(_speaks_after_tools())
        victim.kill()
        await victim.wait()
    stage.note("☠", f"process {victim.pid} is dead: signal {-(victim.returncode or 0)}", "bold red")
    stage.note("·", (await engine.explain(chat_id)).reason, "yellow")
    async with _process(play, pace, ends=True) as heir:
        stage.note("▶", f"process {heir.pid} looks for work")
        chat = await play.rest()
        heir.terminate()
        await heir.wait()
    actors = {short_actor(record.actor) for record in await engine.audit(chat_id) if record.turn == chat.turn}
    stage.promise(
        "a turn survives kill -9 of its process",
        f"{victim.pid} was killed, {heir.pid} finished turn {chat.turn}: {chat.stop_reason}",
        kept=(victim.returncode, heir.returncode, chat.state, actors)
        == (-signal.SIGKILL, 0, ChatState.waiting, {"client", f"worker {victim.pid}", f"worker {heir.pid}"}),
    )
    written = [line for line in play.scene.notes.read_text(encoding="utf-8").splitlines() if line.startswith(chat_id)]
    stage.promise(
        "a tool that ran is not run again",
        f"take_note ran once: {len(written)} line in {play.scene.notes.name}",
        kept=(len(written), succeeded(await play.past(), "take_note")) == (1, 1),
    )


@asynccontextmanager
async def _process(play: Play, pace: float, *, ends: bool) -> AsyncIterator[Process]:
    """Start a process that runs the store's chats; it outlives neither the block nor this process."""
    async with await anyio.open_process(
        command(play.scene, pace=pace, ends=ends), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=None
    ) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()


def _speaks_after_tools() -> Callable[[Event], bool]:
    tools_ran = False
    text = ""

    def seen(event: Event) -> bool:
        nonlocal tools_ran, text
        tools_ran = tools_ran or event.kind == "tool_result"
        if tools_ran:
            text += added(event, "text", "reasoning")
        return len(text.split()) >= KILLED_AFTER

    return seen
