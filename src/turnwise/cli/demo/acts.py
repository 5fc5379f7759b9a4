"""The acts of the demo: tools, the client's turn, an interrupt, a compaction, a process that is killed."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Final

import anyio
import msgspec
from anyio.abc import Process

from turnwise.cli.audit import short_actor
from turnwise.cli.chat import ASK_USER
from turnwise.cli.demo.cast import CONTEXT_LIMIT, FILES, LEASE, PACKAGE, Presenter, Scene, Speaker, command
from turnwise.cli.event_view import EventView, show_until_rest
from turnwise.cli.style import plain_table
from turnwise.engine.config.results import Chat
from turnwise.engine.engine import Engine
from turnwise.states.calls import ToolResult
from turnwise.states.events import Event, PartEvent
from turnwise.states.names import CallStatus, ChatState

INTERRUPTED_AFTER: Final = 8
"""Words."""
UNHURRIED: Final = 0.06
"""Seconds between two words where the demo has to act between them."""


class Play(msgspec.Struct):
    """A chat on its stage."""

    scene: Scene
    stage: Presenter
    view: EventView
    engine: Engine
    chat_id: str

    async def say(self, words: str) -> Chat:
        """Send a message and show the turn."""
        await self.engine.send_message(self.chat_id, words)
        return await self.rest()

    async def rest(self) -> Chat:
        """Show what happens until the chat rests."""
        chat = await show_until_rest(self.engine, self.chat_id, self.view)
        self.view.print_states()
        return chat

    async def show_until(self, seen: Callable[[Event], bool]) -> None:
        """Show events until one of them is `seen`."""
        with self.view.scroll:
            async with aclosing(self.engine.events(self.chat_id, after=self.view.after)) as events:
                async for event in events:
                    self.view.show(event)
                    if seen(event):
                        return

    async def past(self, *, after: int = 0) -> list[Event]:
        """Return the events so far."""
        return [event async for event in self.engine.events(self.chat_id, after=after, follow=False)]


async def reads_real_files(play: Play) -> None:
    """The model asks for two tools, and gets what is on the disk."""
    play.stage.act(
        "Real tools, real files",
        "A message makes a turn. The declared table says what comes next: ask the model, run its tools, ask again. "
        "The reply that asks for tools is on disk before the first of them starts.",
    )
    first = FILES[0]
    chat = await play.say(f"Please list_files, and read_file {first}.")
    outputs = [message.result.output for message in await play.engine.messages(chat.id) if message.result]
    beginning = (PACKAGE / first).read_text(encoding="utf-8")[:200]
    play.stage.promise(
        "tools run on what is really there",
        f"2 local tools ran; the model read {first} as it is on disk",
        holds=([str(output)[:200] for output in outputs[1:]], chat.state) == ([beginning], ChatState.waiting),
    )


async def asks_the_client(play: Play) -> None:
    """The model calls a tool that only the client can run; the answer is posted twice."""
    play.stage.act(
        "The client's turn",
        "ask_user is the client's tool. The chat rests in the database: no process holds it and none waits. The "
        "client answers when it likes - and may answer twice, for networks fail.",
    )
    chat = await play.say("Ask the user “What should a chat survive?”")
    explanation = await play.engine.explain(chat.id)
    play.stage.note("·", explanation.reason, "yellow")
    play.stage.promise(
        "waiting for a client costs nothing",
        "it rests in requires_action, and no worker holds it",
        holds=(chat.state, explanation.lease_worker) == (ChatState.requires_action, None),
    )
    results = [ToolResult(call.call_id, "Its own process.") for call in chat.open_calls]
    table = plain_table("POST tool results", "receipt", "replayed")
    receipts = [await play.engine.submit_tool_results(chat.id, results) for _ in range(2)]
    for number, receipt in enumerate(receipts, start=1):
        table.add_row(f"{number}. “Its own process.”", receipt.receipt_id, "yes" if receipt.replayed else "no")
    play.stage.show(table)
    chat = await play.rest()
    stored = [m.result for m in await play.engine.messages(chat.id) if m.result and m.result.name == ASK_USER.name]
    replayed = [receipt.replayed for receipt in receipts]
    play.stage.promise(
        "results count once, however often they are posted",
        "the second post was a replay: the same receipt, one stored result",
        holds=(replayed, len({receipt.receipt_id for receipt in receipts}), len(stored)) == ([False, True], 1, 1),
    )


async def is_interrupted(play: Play, model: Speaker) -> None:
    """The user says stop in mid-sentence."""
    play.stage.act(
        "Stop!",
        "An interrupt is a transition like any other. The chat keeps what was shown to the word, marked partial, and "
        "the history stays valid for the next request.",
    )
    pace, model.pace, model.ends = model.pace, max(model.pace, UNHURRIED), False
    before = play.view.after
    await play.engine.send_message(
        play.chat_id, "Tell me at length why text that a person has seen must never be lost, come what may?"
    )
    await play.show_until(lambda _: len(play.view.live_text.split()) >= INTERRUPTED_AFTER)
    await play.engine.interrupt(play.chat_id, reason="the reader has seen enough")
    chat = await play.rest()
    model.pace, model.ends = pace, True
    text = "".join([added(event, "text") for event in await play.past(after=before)])
    message = (await play.engine.messages(chat.id))[-1]
    play.stage.promise(
        "an interrupt keeps what was shown",
        f"{len(message.text.split())} words were shown, and the chat keeps exactly these",
        holds=(chat.state, message.partial, message.text, text != "") == (ChatState.interrupted, True, text, True),
    )


async def compacts(play: Play) -> None:
    """Two more files do not fit into the context."""
    play.stage.act(
        "Growing past the limit",
        f"The model's window is {CONTEXT_LIMIT:,} tokens here. Two more files fill it past 80 %, so the history is "
        "folded into a summary, and the turn goes on from it. You still see every message; the model does not.",
    )
    _, *more = FILES
    chat = await play.say(f"Now read_file {' and '.join(more)}.")
    compactions = sum(event.kind == "compaction" and event.phase == "finished" for event in await play.past())
    everything, sent = (await play.engine.messages(chat.id), await play.engine.messages(chat.id, view="model"))
    play.stage.promise(
        "a chat that outgrows its context goes on",
        f"compacted once: {len(everything)} messages for you, {len(sent)} for the model",
        holds=(compactions, len(sent) < len(everything), chat.state) == (1, True, ChatState.waiting),
    )


def added(event: Event, *kinds: str) -> str:
    """Return the text that an event adds to parts of some kinds, such as `text`."""
    return (event.part.delta or "") if isinstance(event, PartEvent) and event.part.type in kinds else ""


def succeeded(events: list[Event], tool: str) -> int:
    """Count the successful calls of a tool."""
    results = [event for event in events if event.kind == "tool_result" and event.name == tool]
    return [result.outcome for result in results].count(CallStatus.succeeded)


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
        holds=(victim.returncode, heir.returncode, chat.state, actors)
        == (-signal.SIGKILL, 0, ChatState.waiting, {"client", f"worker {victim.pid}", f"worker {heir.pid}"}),
    )
    written = [line for line in play.scene.notes.read_text(encoding="utf-8").splitlines() if line.startswith(chat_id)]
    stage.promise(
        "a tool that ran is not run again",
        f"take_note ran once: {len(written)} line in {play.scene.notes.name}",
        holds=(len(written), succeeded(await play.past(), "take_note")) == (1, 1),
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
