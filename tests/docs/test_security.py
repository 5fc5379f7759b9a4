"""The threat model names every role, and every route that strangers may take; what owners may not do is so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

import httpx
import pytest

from support.served import GENEROUS, served
from turnwise import Engine, tool
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.service import Role
from turnwise.service.routes.table import OPEN_ROUTES

MODEL = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", MODEL.split("## What a thief gets")[0], re.MULTILINE)


def test_strangers_may_take_the_open_routes_and_no_others() -> None:
    (may,) = (row[1] for row in ROWS if row[0] == "nobody's")
    assert set(re.findall(r"`(/[\w.]+)`", may)) == {row.path for row in OPEN_ROUTES} | {"/inspector", "/openapi.json"}


@pytest.mark.parametrize("role", get_args(Role))
def test_every_role_has_its_row(role: str) -> None:
    assert [row[0] for row in ROWS if re.fullmatch(rf"an {role}'s token", row[0])]


def paying(paid: list[int], replies: Sequence[Reply | str] = ()) -> Engine:
    """Return an engine whose agent asks first, and pays whatever somebody allows."""

    @tool(policy="ask")
    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    def answer(request: ModelRequest) -> Reply:
        is_asked = request.messages[-1].text == "Pay!"
        return Reply(calls=[Call("pay", {"cents": 5}, id="p")]) if is_asked else Reply("Done.")

    return Engine("sqlite://", model=ScriptedModel(replies or answer), tools=[pay])


async def test_the_owner_of_a_chat_may_approve_its_calls_and_nobody_elses_token_may_see_them() -> None:
    """The page says it in bold, because it surprises: approving is part of answering."""
    paid: list[int] = []
    engine = paying(paid)
    async with (
        served(engine) as service,
        service.client("ada") as ada,
        service.client("bob") as bob,
        service.client("auditor") as auditor,
    ):
        chat = (await ada.post("/chats", json={})).json()["id"]
        await ada.post(f"/chats/{chat}/messages", json={"content": "Pay!"})
        await engine.wait(chat)
        answer = {"results": [{"call_id": "p", "output": {"approved": True}}]}
        refused = [
            (await other.post(f"/chats/{chat}/tool-results", json=answer)).status_code for other in (bob, auditor)
        ]
        assert (refused, paid) == ([404, 403], [])
        assert (await ada.post(f"/chats/{chat}/tool-results", json=answer)).status_code == 202
        await engine.wait(chat)
    assert paid == [5]


ALLOWED: Final = {"call_id": "p", "output": {"approved": True}}
PICK_DATE: Final = {"name": "pick_date", "description": "Ask for a date.", "input_schema": {"type": "object"}}
ON_PAGE: Final = {
    "id": "a",
    "role": "assistant",
    "parts": [
        {
            "type": "tool-pay",
            "toolCallId": "p",
            "state": "approval-responded",
            "approval": {"id": "p", "approved": True},
        }
    ],
}
RUN: Final = {"runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {}}


async def allow(client: httpx.AsyncClient, chat: str) -> list[httpx.Response]:
    """Allow a call by every route that takes answers."""
    call = {"id": "p", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    resumed = {"interruptId": "p", "status": "resolved", "payload": True}
    answered = {
        "threadId": chat,
        "messages": [{"id": "a", "role": "assistant", "toolCalls": [call]}],
        "resume": [resumed],
    }
    return [
        await client.post(f"/chats/{chat}/tool-results", json={"results": [ALLOWED]}),
        await client.post("/agui", json=RUN | answered),
        await client.post("/ai-sdk/chat?version=7", json={"id": chat, "messages": [ON_PAGE]}),
    ]


async def test_owners_approve_by_no_route_if_they_may_not() -> None:
    assert {"`ServiceSettings(owners_approve=False)`", "`/agui`"} <= set(re.findall(r"`[^`]+`", MODEL))
    paid: list[int] = []
    engine = paying(paid)
    async with (
        served(engine, settings=replace(GENEROUS, owners_approve=False)) as service,
        service.client("ada") as ada,
        service.client("operator") as operator,
    ):
        chat = (await ada.post("/chats", json={})).json()["id"]
        version = (await engine.ask(chat, "Pay!")).chat.version
        refused = await allow(ada, chat)
        assert [answer.status_code for answer in refused] == [403] * 3
        assert {answer.json()["needed"] for answer in refused} == {"'operator' to answer a call that asks for approval"}
        assert ((await engine.get_chat(chat)).version, paid) == (version, [])
        assert [answer.status_code for answer in await allow(operator, chat)] == [202, 200, 200]
    assert paid == [5]


async def test_who_may_not_approve_is_told_so_if_only_the_approval_is_left_out() -> None:
    """All open calls are answered together, so the owner of a chat cannot answer the page's beside one that asks."""
    paid: list[int] = []
    both = Reply(calls=[Call("pick_date", {}, id="d"), Call("pay", {"cents": 5}, id="p")])
    date = {"call_id": "d", "output": "Friday"}
    settings = replace(GENEROUS, owners_approve=False)
    async with (
        served(paying(paid, [both, "Done."]), settings=settings) as service,
        service.client("ada") as ada,
        service.client("operator") as operator,
    ):
        chat = (await ada.post("/chats", json={"client_tools": [PICK_DATE]})).json()["id"]
        version = (await service.engine.ask(chat, "Pay!")).chat.version
        path = f"/chats/{chat}/tool-results"
        for results in ([date], [date, ALLOWED]):
            refused = await ada.post(path, json={"results": results})
            assert (refused.status_code, refused.json()["type"]) == (403, "urn:turnwise:problem:not-allowed")
        assert ((await service.engine.get_chat(chat)).version, paid) == (version, [])
        assert (await operator.post(path, json={"results": [date, ALLOWED]})).status_code == 202
        await service.engine.wait(chat)
    assert paid == [5]


async def test_an_answer_of_the_page_that_comes_again_is_no_approval_of_what_the_chat_asks_by_now() -> None:
    """Its answer was lost on the way: the client sends it again, and is told that it was taken."""
    paid: list[int] = []
    date = {"call_id": "d", "output": "Friday"}
    replies = [Reply(calls=[Call("pick_date", {}, id="d")]), Reply(calls=[Call("pay", {"cents": 5}, id="p")]), "Done."]
    engine = paying(paid, replies)
    async with served(engine, settings=replace(GENEROUS, owners_approve=False)) as service, service.client() as ada:
        created = await ada.post("/chats", json={"client_tools": [PICK_DATE]})
        chat = created.json()["id"]
        await engine.ask(chat, "Pay!")
        path = f"/chats/{chat}/tool-results"
        first = await ada.post(path, json={"results": [date]})
        version = (await engine.wait(chat)).version
        again = await ada.post(path, json={"results": [date]})
        assert [(one.status_code, one.json()["replayed"]) for one in (first, again)] == [(202, False), (202, True)]
        for results in ([ALLOWED], [date, ALLOWED]):
            assert (await ada.post(path, json={"results": results})).status_code == 403
        assert ((await engine.get_chat(chat)).version, paid) == (version, [])


async def test_an_approval_is_refused_however_late_the_call_comes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner knows its id from the stream, before the chat asks: what is done is what was looked at."""
    paid: list[int] = []
    engine = paying(paid)
    take = Engine.submit_tool_results

    async def asked_meanwhile(engine: Engine, chat: str, *given: Any, **named: Any) -> Any:
        monkeypatch.setattr(Engine, "submit_tool_results", take)
        await engine.ask(chat, "Pay!")
        return await take(engine, chat, *given, **named)

    async with served(engine, settings=replace(GENEROUS, owners_approve=False)) as service, service.client() as ada:
        seen: dict[str, str] = {}
        for status in (403, 412):
            chat = (await ada.post("/chats", json={})).json()["id"]
            monkeypatch.setattr(Engine, "submit_tool_results", asked_meanwhile)
            path, body = f"/chats/{chat}/tool-results", {"results": [ALLOWED]}
            assert (await ada.post(path, json=body, headers=seen)).status_code == status
            seen = {"If-Match": f'"{(await engine.get_chat(chat)).version}"'}  # the next chat will be at it, too
    assert paid == []


async def test_who_may_not_approve_may_say_something_instead() -> None:
    """A page keeps the approval that was refused in its messages, and sends it with every other one."""
    paid: list[int] = []
    said = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "Never mind."}]}
    engine = paying(paid)
    async with served(engine, settings=replace(GENEROUS, owners_approve=False)) as service, service.client() as ada:
        chat = (await ada.post("/chats", json={})).json()["id"]
        await engine.ask(chat, "Pay!")
        answer = await ada.post("/ai-sdk/chat?version=7", json={"id": chat, "messages": [ON_PAGE, said]})
        assert (answer.status_code, (await engine.get_chat(chat)).open_calls) == (200, [])
    assert paid == []
