"""DBOS: a turn is a workflow, its model calls and its tool call are steps; SQLite, switched to WAL beforehand.

Deltas reach the caller through memory, as DBOS's users do it; storing them too (`write_stream`) costs a commit each.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from typing import Any

from dbos import DBOS, DBOSConfig, SetWorkflowID
from workload import CALLS, DELTA, DELTAS, TOOL_ARGUMENTS, TOOL_NAME, USER, Contestant, run_tool

_deltas = DELTAS
_streamed: Counter[str] = Counter()


async def fake_model(messages: list[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    """Ask for the tool after a user message, else answer."""
    CALLS["model"] += 1
    if messages[-1]["role"] == "user":
        yield {"call": {"id": f"call-{len(messages)}", "name": TOOL_NAME, "arguments": TOOL_ARGUMENTS}}
        return
    for _ in range(_deltas):
        yield {"text": DELTA}


@DBOS.step()
async def call_model(chat: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Stream a reply to the caller, and return it whole."""
    text, call = "", None
    async for part in fake_model(messages):
        call = part.get("call", call)
        text += part.get("text", "")
        _streamed[chat] += len(part.get("text", ""))
    return {"role": "assistant", "content": text, "call": call}


@DBOS.step()
async def call_tool(call: dict[str, Any]) -> dict[str, Any]:
    """Run the tool."""
    return {"role": "tool", "id": call["id"], "content": await run_tool()}


@DBOS.workflow()
async def chat_turn(chat: str, history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run a turn; return the messages it added."""
    new: list[dict[str, Any]] = [{"role": "user", "content": USER}]
    while True:
        reply = await call_model(chat, history + new)
        new.append(reply)
        if not reply["call"]:
            return new
        new.append(await call_tool(reply["call"]))


class Dbos(Contestant):
    """A workflow per turn; the history is its argument."""

    title = "DBOS (WAL)"
    keeps = "finished steps"
    distributions = ("dbos", "SQLAlchemy")
    imports = "from dbos import DBOS"

    async def open(self) -> None:
        """Launch DBOS."""
        path = self.directory / "dbos.sqlite"
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.close()
        DBOS(
            config=DBOSConfig(
                name="race",
                system_database_url=f"sqlite:///{path}",
                log_level="ERROR",
                application_version="1",
                executor_id="1",
            )
        )
        DBOS.launch()
        self._history: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)

    async def close(self) -> None:
        """Stop it."""
        DBOS.destroy()

    async def turn(self, chat: str) -> int:
        """Run the workflow."""
        global _deltas  # noqa: PLW0603 - steps are functions of the module
        _deltas = self.deltas
        history = self._history[chat]
        with SetWorkflowID(f"{chat}/{len(history)}"):
            history += await chat_turn(chat, list(history))
        return _streamed.pop(chat)

    async def model_alone(self) -> None:
        """Iterate the answer."""
        global _deltas  # noqa: PLW0603 - as above
        _deltas = self.deltas
        async for _ in fake_model([{"role": "tool"}]):
            pass
