"""What an older turnwise is let live before its store is dumped: chats in every state, killed, and looked at.

`make_dumps.py` runs this file with the code of that time, which is why it asks what that code can do. It is given a
word and the URL of a store. `live` lives, and ends by killing itself with chats in the middle of everything; `leave` is
the process after it, without a worker, which prints what its version sees.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio

import turnwise
from turnwise import ClientTool, CompactionPolicy, Engine, ModelError, RetryPolicy, Settings, ToolResult, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

KEY = b"the key of these lives"
LOGS = ("edited", "erased", "compacted", "interrupted", "answered")
EXPORTS = ("waiting", "compacted", "queue", "with files")
"""The chats whose log, and all of whose lines, are kept to be read by later versions."""
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = ClientTool("weather", "Say what the weather is like.", CITY)


@tool(parallel_safe=True)
async def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} is a word"


@tool
async def act_once(what: str) -> str:
    """Do it, and never again."""
    await anyio.sleep_forever()
    return what


@tool(crash="at_least_once")
async def act_again(what: str) -> str:
    """Do it as often as it takes."""
    await anyio.sleep_forever()
    return what


@tool(policy="ask")
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


ANSWERS: dict[str, Reply] = {
    "look": Reply(
        "Let me see.", reasoning="A word?", signature="s", calls=[Call("look_up", {"word": "Köln"})], usage=(9, 4)
    ),
    "talk": Reply("I talk and talk and then", chunks=4, stall_after=3),
    "again": Reply(error=ModelError("overloaded", retryable=True, message="come back later")),
    "fail": Reply("Well,", error=ModelError("bad_request", retryable=False, message="no"), error_after=1),
    "once": Reply(calls=[Call("look_up", {"word": "a"}), Call("act_once", {"what": "x"})]),
    "repeatable": Reply(calls=[Call("act_again", {"what": "y"})]),
    "ask the client": Reply("One moment.", calls=[Call("weather", {"city": "Köln"}), Call("look_up", {"word": "b"})]),
    "both": Reply(calls=[Call("weather", {"city": "Bonn"}), Call("act_again", {"what": "z"})]),
    "pay": Reply(calls=[Call("pay", {"cents": 5})]),
    "delegate": Reply(calls=[Call("ask_researcher", {"task": "talk"})]),
    "delegate and get": Reply(calls=[Call("ask_researcher", {"task": "look"})]),
    "in the background": Reply(calls=[Call("start_researcher", {"task": "talk"})]),
}


def answer(request: Any) -> Reply:
    """Answer what was said last; a result is answered in words."""
    said = request.messages[-1]
    if said.role == "user":
        return ANSWERS.get(said.text, Reply(f"You said: {said.text}", usage=(7, 3)))
    return Reply("That is what I found.", usage=(20, 5))


class Model(ScriptedModel):
    """Answers by rules; a summary of what ends with `fold for ever` never comes."""

    def __init__(self) -> None:
        super().__init__(answer, summary=lambda _: Reply("They spoke.", usage=(30, 6)), context_limit=100_000)

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        """Stream, unless it is a summary that never comes."""
        if request.purpose == "summary" and any("fold for ever" in message.text for message in request.messages):
            await anyio.sleep_forever()
        async for part in super().stream(request):
            yield part


def engine_on(url: str, *, worker: bool) -> Engine:
    """Return an engine of this version, with all that it can have."""
    settings = Settings(
        run_worker=worker,
        lease=60,
        renew_every=20,
        retry=RetryPolicy(first_delay=60, max_delay=60),
        compaction=CompactionPolicy(timeout=3600),
    )
    tools: list[Any] = [look_up, act_once, act_again, pay]
    if not hasattr(turnwise, "Agent"):
        return Engine(url, model=Model(), tools=tools, settings=settings)
    agents = [turnwise.Agent("terse", model=Model(), system="Be terse.", tools=tools, version="7")]
    if hasattr(turnwise, "delegate"):
        researcher = turnwise.Agent("researcher", model=Model(), tools=[look_up])
        tools = [*tools, turnwise.delegate(researcher), turnwise.delegate(researcher, background=True)]
        agents.append(researcher)
    agents.append(turnwise.Agent("default", model=Model(), tools=tools))
    return Engine(url, agents=agents, settings=settings)


class Lives:
    """Begins chats, each under the title by which it is known."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.ids: dict[str, str] = {}

    async def begin(self, title: str, *said: str, rest: bool = True, **given: Any) -> str:
        """Begin a chat, say something, and wait after each of it for the chat to rest, or not after the last."""
        chat = await self.engine.create_chat(title=title, system="Answer.", metadata={"title": title}, **given)
        self.ids[title] = chat.id
        for number, text in enumerate(said, 1):
            await self.engine.send_message(chat.id, text, client_id=f"{title} {number}")
            if rest or number < len(said):
                await self.engine.wait(chat.id, timeout=30)
        return chat.id

    async def at_rest(self) -> None:
        """Live whatever comes to rest."""
        engine = self.engine
        talked = await self.begin("waiting", "look", "and so on", owner="ada")
        fork = await engine.fork(talked, at_version=(await engine.get_chat(talked)).version)
        await engine.rename(fork.id, "forked")
        edited = await self.begin("edited", "one", "two", "three", owner="ada")
        await engine.edit_message(edited, (await users(engine, edited))[1], "zwei")
        await engine.wait(edited, timeout=30)
        erased = await self.begin("erased", "my PIN is 1234", "and more")
        await engine.erase_message(erased, (await users(engine, erased))[0])
        folded = await self.begin("compacted", "one", "look", "two")
        await engine.request_compaction(folded)
        await engine.wait(folded, timeout=30)
        await engine.ask(folded, "after that")
        cleared = await self.begin("cleared", "one")
        await engine.clear_context(cleared)
        await engine.ask(cleared, "anew")
        await self.begin("requires action", "ask the client", client_tools=[WEATHER])
        answered = await self.begin("answered", "ask the client", client_tools=[WEATHER], owner="bob")
        await self.answer(answered, "rain")
        await engine.wait(answered, timeout=30)
        soon = [ClientTool("weather", "Say what the weather is like.", CITY, deadline=60)]
        await self.begin("too late", "ask the client", client_tools=soon)
        await self.begin("approval", "pay")
        stopped = await self.begin("interrupted", "talk", rest=False)
        await shown(engine, stopped)
        await engine.interrupt(stopped, reason="enough")
        await engine.wait(stopped, timeout=30)
        await self.begin("error", "fail")
        archived = await self.begin("archived", "one")
        await engine.archive(archived)
        await self.begin("answered too late to be seen", "ask the client", client_tools=[WEATHER])
        await self.newer()

    async def newer(self) -> None:
        """Live what versions after the first can live."""
        engine = self.engine
        if hasattr(engine, "delete_chat"):
            await engine.delete_chat(await self.begin("deleted", "one"))
            del self.ids["deleted"]
        if hasattr(turnwise, "Agent"):
            own = await self.begin("of an agent", "look", agent="terse", parameters={"temperature": 0.5})
            await engine.configure(own, active_tools=["look_up"])
            await engine.ask(own, "and now?")
        if hasattr(turnwise, "delegate"):
            await self.begin("had a helper", "delegate and get")
        if hasattr(engine, "put_file"):
            await self.with_files()

    async def with_files(self) -> None:
        """Put files beside a chat, sent and unsent."""
        from turnwise import TextPart  # noqa: PLC0415 - the file is run by versions that have no files

        chat = await self.begin("with files", "one")
        sent = await self.engine.put_file(chat, b"a,b\n" * 1000, media_type="text/csv", name="sent.csv")
        await self.engine.ask(chat, [TextPart(text="Read this."), sent])
        await self.engine.put_file(chat, b"never sent", media_type="text/plain", name="unsent.txt")

    async def answer(self, chat_id: str, weather: str) -> None:
        """Answer the open call of a chat."""
        (call,) = (await self.engine.get_chat(chat_id)).open_calls
        await self.engine.submit_tool_results(chat_id, [ToolResult(call.call_id, weather)])

    async def at_work(self) -> None:
        """Bring every chat that is to be cut off to where it is cut off, and kill this process."""
        engine = self.engine
        for title, said, state in (
            *(("streaming", "talk", "streaming"), ("queue", "talk", "streaming")),
            *(("stopped by nobody", "talk", "streaming"), ("retrying", "again", "streaming")),
            *(("once", "once", "executing_tools"), ("repeatable", "repeatable", "executing_tools")),
            ("both", "both", "executing_tools"),
        ):
            chat = await self.begin(title, "hello", said, rest=False, owner="ada", client_tools=[WEATHER])
            if said == "talk":
                await shown(engine, chat)
            await engine.wait(chat, until=[state], timeout=30)
        async for event in engine.events(self.ids["retrying"]):
            if event.kind == "retry":
                break
        async for event in engine.events(self.ids["once"]):
            if event.kind == "tool_result":
                break
        for number in range(2):
            await engine.send_message(self.ids["queue"], f"queued {number}", client_id=f"queued {number}")
        folded = await self.begin("compacting", "one", "fold for ever", "look")
        await engine.request_compaction(folded)
        await engine.wait(folded, until=["compacting"], timeout=30)
        if hasattr(turnwise, "delegate"):
            await self.families_at_work()

    async def families_at_work(self) -> None:
        """Bring helpers to where they are cut off: one that is waited for, and one in the background."""
        for title, said, state in (
            ("awaits its helper", "delegate", "requires_action"),
            ("has a helper", "in the background", "waiting"),
        ):
            parent = await self.begin(title, said, rest=False)
            await self.engine.wait(parent, until=[state], timeout=30)
            while not (helpers := await self.engine.helpers(parent)):  # noqa: ASYNC110 - nothing tells of it
                await anyio.sleep(0.01)
            await shown(self.engine, helpers[0].id)

    async def without_worker(self) -> None:
        """Leave what nobody has taken up yet."""
        await self.begin("pending", "look", rest=False)
        queued = await self.begin("pending with a queue", "one", rest=False)
        await self.engine.send_message(queued, "two")
        await self.begin("never spoken to", owner="ada")
        await self.engine.interrupt(self.ids["stopped by nobody"])
        await self.answer(self.ids["answered too late to be seen"], "snow")

    async def seen(self) -> dict[str, Any]:
        """Return what this version sees of every chat."""
        chats = (await self.engine.list_chats(limit=100)).items
        return {chat.id: await self.seen_of(chat) for chat in chats}

    async def seen_of(self, chat: Any) -> dict[str, Any]:
        """Return what this version sees of one chat."""
        verdict = await self.engine.verify(chat.id)
        assert verdict.ok, (chat.title, verdict)
        facts = {
            name: getattr(chat, name)
            for name in ("title", "owner", "state", "version", "turn", "step", "archived", "queued")
        }
        views: Sequence[Any] = ("user", "raw")  # what the model is shown may change
        return facts | {
            "messages": {
                view: [spoken(one) for one in await self.engine.messages(chat.id, view=view)] for view in views
            },
            "events": [event.seq async for event in self.engine.events(chat.id, follow=False)],
            "log": await self.engine.export_audit(chat.id, key=KEY) if chat.title in LOGS else None,
            "export": await exported(self.engine, chat.id) if chat.title in EXPORTS else None,
        }


def spoken(message: Any) -> list[Any]:
    """Return of a message what every version must tell alike."""
    return [message.id, message.role, message.turn, message.step, message.text, [part.type for part in message.parts]]


async def exported(engine: Engine, chat_id: str) -> list[str] | None:
    """Return the lines of a whole chat, where this version can write them."""
    if not hasattr(engine, "export_chat"):
        return None
    return [line async for line in engine.export_chat(chat_id, key=KEY)]


async def users(engine: Engine, chat_id: str) -> list[str]:
    """Return the ids of what users said."""
    return [message.id for message in await engine.messages(chat_id) if message.role == "user"]


async def shown(engine: Engine, chat_id: str) -> None:
    """Wait until text of a reply that is under way was shown."""
    step = (await engine.get_chat(chat_id)).step
    async for event in engine.events(chat_id):
        if (
            event.kind == "part"
            and event.part.type == "text"
            and event.part.delta.startswith("I ta")
            and event.step >= step
        ):
            return


async def live(url: str) -> None:
    async with engine_on(url, worker=True) as engine:
        lives = Lives(engine)
        await lives.at_rest()
        await lives.at_work()
        os.kill(os.getpid(), signal.SIGKILL)


async def leave(url: str) -> None:
    async with engine_on(url, worker=False) as engine:
        lives = Lives(engine)
        lives.ids = {chat.title: chat.id for chat in (await engine.list_chats(limit=100)).items if chat.title}
        await lives.without_worker()
        print(json.dumps(await lives.seen(), default=str))  # noqa: T201 - what it is for


def anonymous() -> None:
    """Let workers not be named after the machine that makes the dumps."""
    socket.gethostname = lambda: "elsewhere"
    for name in ("turnwise.engine.identity", "turnwise.engine.worker.identity"):
        try:
            import_module(name)._BOOT_ID = Path("/nowhere")
        except ModuleNotFoundError:
            continue


if __name__ == "__main__":
    anonymous()
    anyio.run({"live": live, "leave": leave}[sys.argv[1]], sys.argv[2])
