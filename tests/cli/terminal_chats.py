"""Chats for commands: one for printing, and some in the store of a terminal, at rest or stuck."""

import json
from typing import Any

import anyio

from support.audit_records import AT
from support.terminal import Terminal
from turnwise import ClientTool, Engine, Settings, tool
from turnwise.engine.config.results import Chat
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.states.names import ChatState, StopReason
from turnwise.states.usage import Usage

ASK = ClientTool("ask", "Ask.", {"type": "object"})
CHAT = Chat(
    id="c1",
    agent="default",
    state=ChatState.waiting,
    version=3,
    history_version=2,
    last_seq=9,
    turn=1,
    step=2,
    attempt=1,
    owner=None,
    title="A title",
    metadata={},
    archived=False,
    last_error=None,
    stop_reason=StopReason.end_turn,
    usage=Usage(input_tokens=1, output_tokens=2),
    open_calls=[],
    queued=0,
    settled=True,
    parent=None,
    created_at=AT,
    updated_at=AT,
)


@tool(policy="ask")
async def pay() -> str:
    """Pay."""
    return "paid"


def url_of(terminal: Terminal) -> str:
    return f"sqlite:///{terminal.folder}/turnwise.db"


def chat_with(terminal: Terminal, *replies: str | Reply, run_worker: bool = True) -> str:
    """Create a chat in the terminal's store, send a message for each reply, and return its id."""

    async def create() -> str:
        model, settings = ScriptedModel(list(replies)), Settings(run_worker=run_worker)
        async with Engine(url_of(terminal), model=model, tools=[pay], settings=settings) as engine:
            chat = await engine.create_chat(client_tools=[ASK], title="the-title")
            for _ in replies:
                await (engine.ask if run_worker else engine.send_message)(chat.id, "the-question")
            return chat.id

    return anyio.run(create)


def chat_of(terminal: Terminal, chat_id: str) -> Any:
    return json.loads(terminal.run("show", chat_id, "--json").out)["chat"]


def last_record(terminal: Terminal, chat_id: str) -> Any:
    return json.loads(terminal.run("audit", chat_id, "--json").out)[-1]
