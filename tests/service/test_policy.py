"""The policy: actions of each role by the table of SECURITY.md, and an application's own rules."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from fastapi import FastAPI

from support.served import STRICT, TOKENS, listening, served
from turnwise import Chat, Engine, SettingsError
from turnwise.service import OWNERS_MAY, Principal, create_app, describe, router

PAGE: Final = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
TABLE: Final = re.findall(r"^\| `(\w+)`(?:: (.+?))? \| (yes|no) \| (yes|no) \| (yes|no) \|$", PAGE, re.MULTILINE)
ROLES: Final = ("owner", "auditor", "operator")
WHO: Final = {"owner": "ada", "auditor": "auditor", "operator": "operator"}
RUN: Final = {"threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {}}
SAID: Final = [{"id": "u1", "role": "user", "content": "Hello!"}]
HELLO: Final = [{"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Hello!"}]}]


def allowed_to(role: str) -> dict[str, bool]:
    """Return the table's column of a role: by operation, and by `operation.field` where a field differs."""
    column = 2 + ROLES.index(role)
    return {
        name: row[column] == "yes"
        for row in TABLE
        for name in ([f"{row[0]}.{field}" for field in re.findall(r"`(\w+)`", row[1])] or [row[0]])
    }


def optional_fields(document: dict[str, Any], way: dict[str, Any]) -> list[str]:
    """Return the optional fields of an operation's JSON body."""
    schema = way.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    refs = [one["$ref"] for one in [schema, *schema.get("anyOf", ())] if "$ref" in one]
    schemas = [document["components"]["schemas"][ref.rpartition("/")[2]] for ref in refs]
    return [name for one in schemas for name in one["properties"] if name not in one.get("required", ())]


def requests_in(document: dict[str, Any]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield requests of every operation that needs a token, bare and with each field: name, method, path, options."""
    for path, ways in document["paths"].items():
        for method, way in ways.items():
            if "security" not in way:
                continue
            name, where = way["operationId"], re.sub(r"{\w+}", "c0", path).replace("/files/c0", f"/files/{'0' * 64}")
            query: dict[str, Any] = {"chat": "c0"} if where.startswith("/files") else {}
            if where == "/events":
                query = {"follow": False}  # it would not end
            yield name, method, where, {"params": query}
            for field in optional_fields(document, way):
                yield f"{name}.{field}", method, where, {"params": query, "json": {field: "?"}}
            if any(one["name"] == "view" for one in way.get("parameters", ())):
                yield f"{name}.view", method, where, {"params": {"view": "raw"}}


@pytest.mark.parametrize("role", ROLES)
async def test_each_role_may_do_what_the_table_says(role: str) -> None:
    """Every operation and field, on an unknown chat: 403 means refused, any other status comes after the policy."""
    table = allowed_to(role)
    async with served(Engine("sqlite://", model="demo"), settings=STRICT) as service, service.client(WHO[role]) as who:
        document = create_app(Engine("sqlite://", model="demo"), auth=TOKENS).openapi()
        asked = [*requests_in(document)]
        answers = [(name, await who.request(method, path, **options)) for name, method, path, options in asked]
        shown = (await who.get("/openapi.json")).json()
        may = (await who.get("/principal")).json()["may"]
    known = {name.partition(".")[0] for name, *_ in asked}
    assert known | {"metrics"} == {row[0] for row in TABLE}
    for name, answer in answers:
        expected = table.get(name, table[name.partition(".")[0]])
        assert (answer.status_code != 403) is expected, (name, answer.text)
        assert (name in may) is expected or name not in {*may, *table}
    refused = {name for name, answer in answers if answer.status_code == 403}
    assert {name for name, *_ in requests_in(shown)} == {name for name, _ in answers} - refused


async def test_owners_use_what_they_may() -> None:
    """Refused requests write nothing; default values and the sender's own name are always allowed."""
    async with served(Engine("sqlite://", model="demo"), settings=STRICT) as service, service.client() as ada:
        wrong: list[dict[str, Any]] = [
            {"system": "Obey."},
            {"owner": "bob"},
            {"active_tools": []},
            {"metadata": {"a": 1}},
        ]
        refused = [(await ada.post("/chats", json={"title": "A parcel"} | one)).status_code for one in wrong]
        assert (refused, (await service.engine.list_chats()).items) == ([403] * 4, [])
        response = await ada.post(
            "/chats", json={"title": "A parcel", "agent": "default", "owner": "ada", "system": None, "client_tools": []}
        )
        path = f"/chats/{response.json()['id']}"
        replied = await ada.post(f"{path}/ask", json={"content": "Hello!"}, headers={"Idempotency-Key": "1"})
        forked = await ada.post(f"{path}/fork", json={"at_version": 2})
        denied = await ada.patch(path, json={"title": "Mine"})
        pages = [
            await ada.post("/agui", json=RUN | {"messages": SAID}),
            await ada.post("/ai-sdk/chat", json={"id": "page", "messages": HELLO}),
            await ada.post("/ai-sdk/chat", json={"id": "page", "messages": HELLO, "trigger": "regenerate-message"}),
        ]
        logs = [await service.engine.audit(one.headers["turnwise-chat"]) for one in pages[:2]]
        statuses = [one.status_code for one in (response, replied, forked, denied, *pages)]
    assert all(created.at == sent.at for created, sent, *_ in logs), "a chat and its message are one commit"
    assert statuses == [201, 200, 201, 403, 200, 200, 200]
    assert denied.json()["needed"] == "'operator' for 'update_chat'"


async def test_settings_allow_owners_more_or_less() -> None:
    may = OWNERS_MAY - {"send_message", "run_agui.tools"} | {"update_chat.title", "delete_chat"}
    engine = Engine("sqlite://", model="demo")
    async with served(engine, settings=replace(STRICT, owners_may=may)) as service, service.client() as ada:
        path = f"/chats/{(await ada.post('/chats', json={})).json()['id']}"
        tool = {"name": "pick", "description": "Pick.", "parameters": {"type": "object"}}
        answers = [
            await ada.patch(path, json={"title": "Mine"}),
            await ada.patch(path, json={"title": "Mine", "metadata": {}}),
            await ada.post(f"{path}/messages", json={"content": "Hello!"}),
            await ada.post("/chats", json={"message": "Hello!"}),
            await ada.post("/agui", json=RUN | {"messages": SAID}),
            await ada.post("/agui", json=RUN | {"messages": [], "tools": [tool]}),
            await ada.delete(path),
        ]
        assert [one.status_code for one in answers] == [200, 403, 403, 403, 403, 403, 200]
        assert (await engine.list_chats()).items == [], "a page's refused message creates no chat"
    with pytest.raises(SettingsError, match=r"owners_may: must name operations, .*; there is no 'update_chat.name'"):
        router(engine, auth=TOKENS, settings=replace(STRICT, owners_may={"update_chat.name"}))


async def test_function_narrows_what_roles_allow() -> None:
    """It gets each operation and field, with the named chat if the principal may see it."""
    asked: list[tuple[str, str, str | None]] = []

    async def policy(principal: Principal, operation: str, chat: Chat | None) -> Any:
        asked.append((principal.name, operation, None if chat is None else chat.id))
        if operation == "interrupt" and chat is not None:
            return "perhaps"
        return operation not in ("fork", "create_chat.title") and not (
            operation == "send_message" and chat is not None and chat.title == "closed"
        )

    engine = Engine("sqlite://", model="demo")
    settings = replace(STRICT, policy=policy, owners_may=OWNERS_MAY | {"update_chat"})
    async with served(engine, settings=settings) as service, service.client() as ada, service.client("bob") as bob:
        titled = await ada.post("/chats", json={"title": "x"})
        chat = (await ada.post("/chats", json={})).json()["id"]
        await ada.patch(f"/chats/{chat}", json={"title": "closed"})
        asked.clear()
        sent = await ada.post(f"/chats/{chat}/messages", json={"content": "Hello!"})
        others = await bob.post(f"/chats/{chat}/messages", json={"content": "Hello!"})
        page = await ada.post("/ai-sdk/chat", json={"id": chat, "messages": HELLO})
        forked = await ada.post(f"/chats/{chat}/fork", json={"at_version": 1})
        odd = await ada.post(f"/chats/{chat}/interrupt")
        may = (await ada.get("/principal")).json()["may"]
    statuses = [one.status_code for one in (titled, sent, others, page, forked, odd)]
    assert statuses == [403, 403, 404, 403, 403, 500]
    assert asked[:2] == [("ada", "send_message", chat), ("bob", "send_message", None)]
    assert not {"fork", "create_chat.title"} & set(may)
    assert "send_message" in may


async def test_mounted_router_shows_owners_part() -> None:
    """An application's `/docs` and `/openapi.json` are public, and its `/metrics` are for operators."""
    engine = Engine("sqlite://", model="demo")
    app = FastAPI()
    app.include_router(router(engine, auth=TOKENS, operation_prefix="v1_"), prefix="/v1")
    describe(app)
    async with engine, listening(app) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        tokens = [None, "ada-token", "auditor-token", "operator-token"]
        headers = [{} if token is None else {"Authorization": f"Bearer {token}"} for token in tokens]
        metrics = [(await client.get("/v1/metrics", headers=one)).status_code for one in headers]
        document = (await client.get("/openapi.json")).json()
    assert metrics == [401, 403, 200, 200]
    shown = {name.removeprefix("v1_") for name, *_ in requests_in(document)}
    table = allowed_to("owner")
    assert {name for name in shown if not table.get(name, table[name.partition(".")[0]])} == set()
    assert {name for name, allowed in table.items() if allowed} <= shown | {"create_chat.title", "create_chat.agent"}
    assert "x-turnwise" not in str(document)
