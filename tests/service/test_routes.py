"""Every route does the same as its method of the engine."""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from support.served import GENEROUS, Served, answered, created, served, stream_of
from support.sql_by_hand import poison_facts
from turnwise import Engine
from turnwise.client import Client
from turnwise.persistence.reading import PAGE_BYTES
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.service import pages
from turnwise.service.routes import front_ends
from turnwise.service.routes.table import ROUTES

PICK = {"name": "pick_date", "description": "Ask for a date.", "input_schema": {"type": "object"}}
RESULT = {"call_id": "c", "output": 7}


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "/chats", {"client_tools": [PICK | {"deadline": "5"}]}, "client_tools.0.deadline"),
        ("PATCH", "/chats/{}", {"archived": 1}, "archived"),
        ("POST", "/chats/{}/fork", {"at_version": True}, "at_version"),
        ("POST", "/chats/{}/tool-results", {"results": [RESULT | {"is_error": "no"}]}, "results.0.is_error"),
    ],
)
async def test_bodies_are_strict(
    ada: httpx.AsyncClient, method: str, path: str, body: dict[str, Any], field: str
) -> None:
    chat = await created(ada)
    refused = await ada.request(method, path.format(chat), json=body)
    assert refused.status_code == 400
    assert [problem["field"] for problem in refused.json()["problems"]] == [f"body.{field}"]


async def test_empty_idempotency_key_is_refused(ada: httpx.AsyncClient) -> None:
    """All senders with an unset key would share one chat."""
    chat = f"/chats/{await created(ada)}"
    for path, body in (("/chats", {}), (f"{chat}/messages", {"content": "Hi!"}), (f"{chat}/ask", {"content": "Hi!"})):
        refused = await ada.post(path, json=body, headers={"Idempotency-Key": ""})
        assert refused.status_code == 400
        assert [problem["field"] for problem in refused.json()["problems"]] == ["header.Idempotency-Key"]
    assert (await ada.get(f"{chat}/messages")).json() == []


async def test_ask_answers_now_or_on_retry_with_its_key() -> None:
    model = ScriptedModel([Reply("Friday.", first_delay=1, usage=(3, 4))])
    async with served(Engine("sqlite://", model=model)) as service, service.client() as ada:
        chat = await created(ada)
        path, key = f"/chats/{chat}/ask", {"Idempotency-Key": "q1"}
        early = await ada.post(path, params={"within": 0}, json={"content": "When?"}, headers=key)
        answer = await ada.post(path, json={"content": "When?"}, headers=key)
        again = await ada.post(path, params={"within": 0}, json={"content": "When?"}, headers=key)
        keyless = await ada.post(path, json={"content": "When?"})
        messages = (await ada.get(f"/chats/{chat}/messages")).json()

    assert (early.status_code, early.json()["message_id"]) == (202, messages[0]["id"])
    assert (answer.status_code, answer.json()["text"], answer.json()["stop_reason"]) == (200, "Friday.", "end_turn")
    assert (again.status_code, again.json()) == (200, answer.json())
    assert answer.json()["messages"] == messages
    assert (keyless.status_code, keyless.json()["problems"][0]["field"]) == (400, "header.Idempotency-Key")
    assert len(messages) == 2


async def test_reports_for_operators_and_auditors(demo: Served, ada: httpx.AsyncClient) -> None:
    chat = await created(ada)
    await answered(ada, chat, "Hello!")
    path = f"/chats/{chat}"
    await ada.post(f"{path}/compact")
    await stream_of(ada, chat, until_rest=True)
    async with demo.client("operator") as operator, demo.client("auditor") as auditor:
        folded = [await who.get(f"{path}/compactions") for who in (operator, auditor, ada)]
        repaired = [await who.post(f"{path}/repair") for who in (operator, auditor, ada)]
        standing = [await who.get(f"{path}/tombstone") for who in (operator, ada)]
        usage = await ada.get(f"{path}/family-usage")
        family = await ada.get(f"{path}/verify", params={"family": True, "files": True})
        gone = (await ada.delete(path)).json()
        left = [await who.get(f"{path}/tombstone") for who in (operator, auditor, ada)]
        left.append(await ada.get(path))

    assert [(one.status_code, len(one.json())) for one in folded] == [(200, 1)] * 3
    assert all(one["summary"].endswith(one["raw"]) and one["raw"] for one in folded[2].json())
    assert [one.status_code for one in repaired] == [409, 403, 403]
    assert [one.json() for one in standing] == [None, None]
    assert (usage.json()["input_tokens"] > 0, family.json()["ok"]) == (True, True)
    assert [one.status_code for one in left] == [200, 200, 404, 404]
    assert (left[0].json()["head"], left[0].json()["actor"]) == (gone["head"], "user:ada")


async def test_health_routes_need_no_token(demo: Served) -> None:
    async with httpx.AsyncClient(base_url=demo.url, timeout=60) as stranger:
        alive, ready, metrics = [await stranger.get(path) for path in ("/healthz", "/readyz", "/metrics")]
        demo.engine.release_followers()
        stopping = await stranger.get("/readyz")

    assert (alive.json(), ready.status_code) == ({"status": "ok"}, 200)
    assert "turnwise_open_streams 0" in metrics.text
    assert (stopping.status_code, stopping.headers["retry-after"]) == (503, "1")


async def test_every_route_needs_a_token(demo: Served) -> None:
    async with httpx.AsyncClient(base_url=demo.url, timeout=60) as stranger:
        for row in ROUTES:
            names = {"chat_id": "c1", "message_id": "m1", "queued_id": "m1", "id": "s1", "digest": "0" * 64}
            path = row.path.format(**names, thread_id="tab-1", name="c")
            answers = [
                await stranger.request(row.method, path),
                await stranger.request(row.method, path, headers={"Authorization": "Bearer wrong"}),
                await stranger.request(row.method, path, headers={"Authorization": "Basic ada-token"}),
            ]
            assert [answer.status_code for answer in answers] == [401] * 3, row
            assert answers[0].headers["www-authenticate"] == 'Bearer realm="turnwise"', row
            assert answers[0].headers["content-type"] == "application/problem+json", row


async def test_foreign_chat_is_indistinguishable_from_none() -> None:
    """The answers for another owner's chat equal those for an unknown one, byte for byte."""
    bodies = {
        "POST /chats/{chat_id}/messages": {"content": "x"},
        "POST /chats/{chat_id}/ask": {"content": "x"},
        "PATCH /chats/{chat_id}/messages/{message_id}": {"content": "x"},
        "PATCH /chats/{chat_id}/queue/{queued_id}": {"content": "x"},
        "POST /chats/{chat_id}/schedules": {"content": "x", "every": "* * * * *"},
        "POST /chats/{chat_id}/tool-results": {"results": []},
        "POST /chats/{chat_id}/fork": {"at_version": 1},
    }
    settings = replace(GENEROUS, owners_may={row.name for row in ROUTES})
    async with (
        served(Engine("sqlite://", model="demo"), settings=settings) as service,
        service.client() as ada,
        service.client("bob") as bob,
    ):
        chat = await created(ada, title="private")
        for row in ROUTES:
            name, answers = f"{row.method} {row.path}", []
            for chat_id in (chat, f"c{'0' * 25}"):
                names = {"chat_id": chat_id, "message_id": "m1", "queued_id": "m1", "id": "s1", "digest": "0" * 64}
                path = row.path.format(**names, thread_id="tab-1", name="c")
                body = bodies.get(name, {} if row.method in ("POST", "PATCH") and "/files" not in path else None)
                query = {"chat": chat_id} if "/files" in path else {"follow": "false"} if path == "/events" else None
                answer = await bob.request(row.method, path, json=body, params=query, headers={"Idempotency-Key": "k"})
                answers.append((answer.status_code, answer.text.replace(chat_id, "...")))
            if "{chat_id}" in row.path or "/files" in row.path:
                assert answers[0] == answers[1], name
                assert answers[0][0] == 404, name
            else:
                assert "private" not in answers[0][1], name


async def test_long_lists_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer exceeds a page by much, `Link` leads to the rest, and the client joins the pages."""
    monkeypatch.setattr(pages, "ANSWER_BYTES", 2_000)
    async with (
        served(Engine("sqlite://", model=ScriptedModel(["Hm. " * 100] * 4))) as service,
        service.client() as ada,
        Client(service.url, token="ada-token") as client,  # noqa: S106 - of a service of the test's own
    ):
        chat = await created(ada, metadata={"kind": "x" * 900})
        await created(ada, metadata={"kind": "y" * 900})
        await created(ada, metadata={"kind": "z" * 900})
        for text in "abcd":
            await client.ask(chat, text * 400)
        for what in ("messages", "audit", "usage"):
            answer = await ada.get(f"/chats/{chat}/{what}")
            assert len(answer.content) < 4_000, what
            assert (answer.links["next"]["rel"] == "next") if what != "usage" else "next" not in answer.links
        whole = await service.engine.messages(chat)
        assert [one.id for one in await client.messages(chat)] == [one.id for one in whole]
        assert len(await client.audit(chat)) == (await client.get_chat(chat)).version
        first = (await ada.get("/chats")).json()
        assert (len(first["items"]), first["next"] is None) == (2, False)
        assert len((await client.list_chats()).items) == 3


@pytest.mark.deep
async def test_large_chats_are_read_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chat is 24 MiB; neither the service nor the reader, in this process, holds more than a few pages of it."""
    monkeypatch.setattr(pages, "ANSWER_BYTES", PAGE_BYTES)
    monkeypatch.setattr(front_ends, "ANSWER_BYTES", PAGE_BYTES)
    async with served(Engine("sqlite://", model=ScriptedModel([]))) as service, service.client() as ada:
        history = [{"role": role, "content": "x" * PAGE_BYTES} for role in ("user", "assistant") * 12]
        chat_id = (await service.engine.create_chat(owner="ada", history=history)).id
        del history
        run = {"threadId": chat_id, "runId": "r", "messages": [], "tools": [], "context": [], "state": {}}
        whole = {"transcript", "export", "ai-sdk", "events"}
        peaks: dict[str, int] = {}
        tracemalloc.start()
        for name, method, path, body in (
            ("messages", "GET", f"/chats/{chat_id}/messages", None),
            ("transcript", "GET", f"/chats/{chat_id}/transcript", None),
            ("export", "GET", f"/chats/{chat_id}/export", None),
            ("events", "GET", f"/chats/{chat_id}/events?follow=false", None),
            ("ai-sdk", "GET", f"/ai-sdk/chat/{chat_id}/messages", None),
            ("agui", "POST", "/agui", {**run, "forwardedProps": {}}),
        ):
            tracemalloc.reset_peak()
            before, size, end = tracemalloc.get_traced_memory()[0], 0, b""
            async with ada.stream(method, path, json=body) as answer:
                assert answer.status_code == 200, name
                async for piece in answer.aiter_bytes():
                    size, end = size + len(piece), piece[-2:]
            peaks[name] = (tracemalloc.get_traced_memory()[1] - before) // PAGE_BYTES
            assert (size > 24 * PAGE_BYTES) is (name in whole), name
            assert end.strip()[-1:] in b"]}", name
        tracemalloc.stop()
    assert {name: peak for name, peak in peaks.items() if peak > 14} == {}


# Who acted


WHO: Final = "operator:ops on behalf of jane"
UNLOGGED: Final = {
    "POST /consumers/{name}/deliver": "of a consumer, not of a chat",
    "DELETE /consumers/{name}": "the same",
    "POST /files": "a chat's log begins to know a file with the message that it belongs to",
    "POST /owners/erase": "the logs go with the chats; each tombstone says who deleted it",
    "POST /budgets": "a budget crosses chats, and says itself who set it",
}
CHAT: Final = "/chats/{chat_id}"
REPLIES: Final[tuple[Reply, ...]] = (
    Reply("Which day?", calls=[Call("pick_date", {})]),
    Reply("Never said.", first_delay=60),
    Reply("Never said, either.", first_delay=60),
    *[Reply("Done.")] * 9,
)


YEARLY = {"content": "Again?", "every": "0 0 1 1 *", "id": "yearly"}
SCHEDULING = {"schedule": f"POST {CHAT}/schedules", "unschedule": f"DELETE {CHAT}/schedules/{{id}}"}


class Story:
    """A chat of Ada's that an operator changes through its routes, and the routes whose records name them."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        client.headers["On-Behalf-Of"] = "jane"
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
        ids = {name: request.pop(name) for name in ("message_id", "queued_id", "id") if name in request}
        before = await self._log(self.id) if self.id else []
        answer = await self.client.request(method, path.format(chat_id=self.id, **ids), **request)
        assert answer.status_code < 300, (route, answer.text)
        body = answer.json() if answer.headers.get("content-type") == "application/json" else {}
        if trigger is None:
            assert body["actor"] == WHO, route
        else:
            chat_id = answer.headers.get("turnwise-chat") or (body["id"] if "state" in body else self.id)
            records = await self._log(chat_id)
            new = records[len(before) :] if chat_id == self.id else records
            assert [record["actor"] for record in new if record["trigger"] == trigger] == [WHO], route
        self.shown.add(route)
        return body

    async def rest(self) -> None:
        await stream_of(self.client, self.id, until_rest=True)

    async def _log(self, chat_id: str) -> list[dict[str, Any]]:
        return list((await self.client.get(f"/chats/{chat_id}/audit")).json())


async def test_changing_routes_log_the_actor(tmp_path: Path) -> None:
    """Every route that changes a chat logs its caller, and on whose behalf."""
    path = tmp_path / "chats.db"
    engine = Engine(f"sqlite:///{path}", model=ScriptedModel(REPLIES))
    async with served(engine) as service, service.client("operator") as operator:
        story = Story(operator)
        chat = await story.ask("POST /chats", "create", json={"owner": "ada", "client_tools": [PICK]})
        story.id = chat["id"]
        await story.ask(f"PATCH {CHAT}", "renamed", json={"title": "A table"})
        await story.ask(f"PATCH {CHAT}", "metadata_changed", json={"metadata": {"tier": "gold"}})
        for trigger, request in (("schedule", {"json": YEARLY}), ("unschedule", {"id": "yearly"})):
            await story.ask(SCHEDULING[trigger], trigger, **request)
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
        for name, trigger in (("read", "marked_read"), ("compact", "request_compaction"), ("clear", "clear_context")):
            await story.ask(f"POST {CHAT}/{name}", trigger)
            await story.rest()
        await story.ask(f"POST {CHAT}/fork", "create", json={"at_version": 1})
        await story.ask(f"POST {CHAT}/erase", "message_erased", json={"what": ["messages"]})

        for route, body in _runs().items():
            await story.ask(route, "send_message", json=body)
        poison_facts(path, story.id)
        await story.ask(f"POST {CHAT}/repair", "repaired")
        exported = (await operator.get(f"/chats/{story.id}/export")).content
        await story.ask(f"DELETE {CHAT}", None)
        async with served(Engine("sqlite://", model="demo")) as there, there.client("operator") as other:
            elsewhere = Story(other)
            await elsewhere.ask("POST /chats/import", "imported", content=exported)

    changing = {f"{row.method} {row.path}" for row in ROUTES if row.method != "GET"}
    assert story.shown | elsewhere.shown == changing - set(UNLOGGED)


def _runs() -> dict[str, dict[str, Any]]:
    user = {"id": "u", "role": "user"}
    agui = {"threadId": "t1", "runId": "r", "messages": [user | {"content": "Hello!"}]}
    empty: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
    ai_sdk = {"id": "t2", "messages": [user | {"parts": [{"type": "text", "text": "Hello!"}]}]}
    return {"POST /agui": agui | empty, "POST /ai-sdk/chat": ai_sdk}
