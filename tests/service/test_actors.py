"""Every route that changes a chat writes who asked for it into the log."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import httpx

from support.served import served, stream_of
from turnwise import Engine
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.service.routes.table import ROUTES

WHO: Final = "operator:ops"
UNLOGGED: Final = {"POST /files": "a chat's log begins to know a file with the message that it belongs to"}
PICK: Final = {"name": "pick_date", "description": "Ask for a date.", "input_schema": {"type": "object"}}
CHAT: Final = "/chats/{chat_id}"
REPLIES: Final[tuple[Reply, ...]] = (
    Reply("Which day?", calls=[Call("pick_date", {})]),
    Reply("Never said.", first_delay=60),
    Reply("Never said, either.", first_delay=60),
    *[Reply("Done.")] * 9,
)


class Story:
    """A chat of Ada's that an operator drives along its routes, and the routes that have been shown to name them."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.shown: set[str] = set()
        self.id = ""

    async def ask(self, route: str, trigger: str | None, **request: Any) -> Any:
        """Go along a route, and assert that what it appended to the log names the operator.

        Args:
            route: its method and path.
            trigger: of the record; none where the answer itself names who it was.
            request: ids in the path, and httpx's arguments.
        """
        method, path = route.split()
        ids = {name: request.pop(name) for name in ("message_id", "queued_id") if name in request}
        before = await self._log(self.id) if self.id else []
        answer = await self.client.request(method, path.format(chat_id=self.id, **ids), **request)
        assert answer.status_code < 300, (route, answer.text)
        told = answer.json() if answer.headers["content-type"] == "application/json" else {}
        if trigger is None:
            assert told["actor"] == WHO, route
        else:
            chat_id = answer.headers.get("turnwise-chat") or told.get("id", self.id)
            records = await self._log(chat_id)
            new = records[len(before) :] if chat_id == self.id else records
            assert [record["actor"] for record in new if record["trigger"] == trigger] == [WHO], route
        self.shown.add(route)
        return told

    async def rest(self) -> None:
        await stream_of(self.client, self.id, until_rest=True)

    async def _log(self, chat_id: str) -> list[dict[str, Any]]:
        return list((await self.client.get(f"/chats/{chat_id}/audit")).json())


async def test_changing_routes_log_the_actor(tmp_path: Path) -> None:
    """Every route that changes a chat writes the caller's name into the log."""
    path = tmp_path / "chats.db"
    engine = Engine(f"sqlite:///{path}", model=ScriptedModel(REPLIES))
    async with served(engine) as service, service.client("operator") as operator:
        story = Story(operator)
        created = await story.ask("POST /chats", "create", json={"owner": "ada", "client_tools": [PICK]})
        story.id = created["id"]
        await story.ask(f"PATCH {CHAT}", "renamed", json={"title": "A table"})
        await story.ask(f"PATCH {CHAT}", "metadata_changed", json={"metadata": {"tier": "gold"}})
        await story.ask(f"PATCH {CHAT}", "archived", json={"archived": True})
        await story.ask(f"PATCH {CHAT}", "unarchived", json={"archived": False})
        await story.ask(f"POST {CHAT}/configure", "configured", json={"system": "Be brief."})

        sent = await story.ask(f"POST {CHAT}/messages", "send_message", json={"content": "A table!"})
        await story.rest()
        call = (await operator.get(f"/chats/{story.id}")).json()["open_calls"][0]["call_id"]
        results = {"results": [{"call_id": call, "output": "Friday"}]}
        await story.ask(f"POST {CHAT}/tool-results", "submit_tool_results", json=results)
        queued = [
            await story.ask(f"POST {CHAT}/messages", "send_message", json={"content": content})
            for content in ("one", "two", "three")
        ]
        first, second, third = (one["message_id"] for one in queued)
        await story.ask(f"PATCH {CHAT}/queue/{{queued_id}}", "edit_queued", queued_id=first, json={"content": "ONE"})
        await story.ask(f"DELETE {CHAT}/queue/{{queued_id}}", "delete_queued", queued_id=second)
        await story.ask(f"POST {CHAT}/queue/{{queued_id}}/promote", "promote_queued", queued_id=third)
        await engine.wait(story.id, until=["streaming"])
        await story.ask(f"POST {CHAT}/interrupt", "interrupt", json={"reason": "enough"})
        await engine.wait(story.id, until=["interrupted", "waiting"])
        await story.rest()
        await operator.delete(f"/chats/{story.id}/queue/{first}")
        await story.ask(f"POST {CHAT}/resume", "resume")
        await story.rest()

        message = {"message_id": sent["message_id"], "json": {"content": "A table, please!"}}
        await story.ask(f"PATCH {CHAT}/messages/{{message_id}}", "edit_message", **message)
        await story.rest()
        asked = {"json": {"content": "When?"}, "headers": {"Idempotency-Key": "q1"}}
        await story.ask(f"POST {CHAT}/ask", "send_message", **asked)
        await story.ask(f"POST {CHAT}/compact", "request_compaction")
        await story.rest()
        await story.ask(f"POST {CHAT}/clear", "clear_context")
        await story.ask(f"POST {CHAT}/fork", "create", json={"at_version": 1})
        await story.ask(f"POST {CHAT}/erase", "message_erased", json={"what": ["messages"]})

        for route, body in _runs().items():
            await story.ask(route, "send_message", json=body)
        _damage(path, story.id)
        await story.ask(f"POST {CHAT}/repair", "repaired")
        exported = (await operator.get(f"/chats/{story.id}/export")).content
        await story.ask(f"DELETE {CHAT}", None)
        async with served(Engine("sqlite://", model="demo")) as there, there.client("operator") as other:
            elsewhere = Story(other)
            await elsewhere.ask("POST /chats/import", "imported", content=exported)

    changing = {f"{row.method} {row.path}" for row in ROUTES if row.method != "GET"}
    assert story.shown | elsewhere.shown == changing - set(UNLOGGED)


def _runs() -> dict[str, dict[str, Any]]:
    said = {"id": "u", "role": "user"}
    agui = {"threadId": "t1", "runId": "r", "messages": [said | {"content": "Hello!"}]}
    empty: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
    ai_sdk = {"id": "t2", "messages": [said | {"parts": [{"type": "text", "text": "Hello!"}]}]}
    return {"POST /agui": agui | empty, "POST /ai-sdk/chat": ai_sdk}


def _damage(path: Path, chat_id: str) -> None:
    with closing(sqlite3.connect(path)) as on, on:
        on.execute("UPDATE chats SET facts = 'poison' WHERE id = ?", (chat_id,))
