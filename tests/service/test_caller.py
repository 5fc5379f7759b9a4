"""Who sends a request, and which chats are there for them."""

from __future__ import annotations

import sqlite3
from contextlib import closing, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import structlog
from fastapi import FastAPI
from starlette.requests import Request

from support.clock import StillClock
from support.gated_model import GatedModel
from support.served import GENEROUS, TOKENS, Served, served
from turnwise import Engine
from turnwise.service import Principal, ServiceSettings, add_problem_handlers, caller, router
from turnwise.service.caller import Caller
from turnwise.service.problems import NotAuthenticated
from turnwise.service.router import policy_of
from turnwise.service.service import Service
from turnwise.states.errors import ChatNotFound
from turnwise.states.events import Event


def damage(path: Path, chat_id: str) -> None:
    with closing(sqlite3.connect(path)) as on, on:
        on.execute("UPDATE chats SET facts = 'poison' WHERE id = ?", (chat_id,))


@pytest.mark.parametrize("page", [None, 2], ids=["all at once", "two at a time"])
async def test_unreadable_chat_is_shown_to_its_owner(
    tmp_path: Path, page: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are told what they are told of none, though nobody can ask the chat whose it is."""
    if page is not None:
        monkeypatch.setattr(caller, "_PAGE", page)
    path = tmp_path / "chats.db"
    async with (
        served(Engine(f"sqlite:///{path}", model="demo")) as service,
        service.client("ada") as ada,
        service.client("bob") as bob,
        service.client("operator") as operator,
        service.client("auditor") as auditor,
    ):
        chats = [(await ada.post("/chats", json={})).json()["id"] for _ in range(5)]
        await bob.post("/chats", json={})
        for place in (0, 2, 4):
            damage(path, chats[place])
            told = [await who.get(f"/chats/{chats[place]}") for who in (ada, bob, operator, auditor)]
            none = await bob.get(f"/chats/c{'0' * 25}")
            assert [answer.status_code for answer in told] == [500, 404, 500, 500], place
            assert told[0].json()["type"] == "urn:turnwise:problem:chat-unreadable"
            assert told[1].text.replace(chats[place], "...") == none.text.replace(f"c{'0' * 25}", "...")
            explained = [await who.get(f"/chats/{chats[place]}/explain") for who in (ada, bob, operator, auditor)]
            assert [answer.status_code for answer in explained] == [200, 404, 200, 200], place
            assert "chats.facts" in explained[0].json()["reason"]


@pytest.mark.parametrize(
    ("passed", "waited"),
    [
        # of seconds since the request came, those until it has taken two, or twice as long, or three times
        (0, 2),
        (1.75, 0.25),
        (2, 2),
        (5, 1),
    ],
)
async def test_404_takes_a_multiple_of_the_delay(passed: float, waited: float, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(caller, "time", StillClock(64 + passed))
    monkeypatch.setattr(caller.anyio, "sleep", sleep)
    async with Engine("sqlite://", model="demo") as engine:
        hers = await engine.create_chat(owner="ada")
        settings = ServiceSettings(not_found_seconds=2)
        service = Service(engine, TOKENS, settings, policy_of(settings))
        bob = Caller(service, Principal("bob"), since=64)
        for chat_id in ("c1", hers.id):
            with pytest.raises(ChatNotFound):
                await bob.chat(chat_id)
        assert (await Caller(service, Principal("ada"), since=64).chat(hers.id)).id == hers.id
    assert slept == [waited, waited]


async def test_own_authenticator_may_be_sync_or_async() -> None:
    """A function of your own, which may wait."""
    principals: dict[str | None, Principal] = {"ada": Principal("ada")}

    async def by_header(request: Request) -> Principal | None:
        return principals.get(request.headers.get("x-user"))

    for auth in (by_header, lambda request: principals.get(request.headers.get("x-user"))):
        async with (
            served(Engine("sqlite://", model="demo"), auth=auth, settings=GENEROUS) as service,
            httpx.AsyncClient(base_url=service.url) as client,
        ):
            answers = [await client.get("/principal", headers={"X-User": name}) for name in ("ada", "bob")]
        assert [answer.status_code for answer in answers] == [200, 401]
        assert answers[0].json().items() >= {"name": "ada", "role": "owner", "until": None}.items()


@pytest.mark.parametrize(
    ("auth", "problem"),
    [
        (lambda _: "ada", "TypeError: auth returned 'str'; it has to return a Principal, or None"),
        (lambda _: Principal(""), "RuntimeError: auth failed: name: must be text of 1 to 512 bytes; it was ''; "),
        (lambda _: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
async def test_broken_authenticator_is_an_internal_error(auth: Any, problem: str) -> None:
    """It is no fault of the request: its sender is told that the service failed, and is let in by none of it."""
    async with Engine("sqlite://", model="demo") as engine:
        app = FastAPI()
        add_problem_handlers(app)
        app.include_router(router(engine, auth=auth))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        with structlog.testing.capture_logs() as logs:
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                answer = await client.get("/chats")
    assert (answer.status_code, answer.json()["detail"]) == (500, "the service's log says what happened")
    (failed,) = [log["error"] for log in logs if log["event"] == "request_failed"]
    assert failed.startswith(problem)


class ShortPasses:
    """Names ada for a second after the first request, and then nobody."""

    def __init__(self) -> None:
        self.until: datetime | None = None

    def __call__(self, _request: Request) -> Principal:
        self.until = self.until or datetime.now(UTC) + timedelta(seconds=1.5)
        return Principal("ada", until=self.until)


RUN = {"threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {}}
HELLO = {"id": "u1", "role": "user", "content": "Hello!"}


@pytest.mark.parametrize(
    ("method", "path", "body", "last"),
    [
        ("GET", "/chats/{chat}/events", None, 'event: reconnect\ndata: {{"after": {seq}}}'),
        pytest.param("GET", "/ai-sdk/chat/{chat}/stream", None, "{expired}data: [DONE]", marks=pytest.mark.deep),
        pytest.param("POST", "/agui", {**RUN, "messages": [HELLO]}, "{agui}", marks=pytest.mark.deep),
    ],
)
async def test_stream_ends_when_the_token_expires(
    method: str, path: str, body: dict[str, Any] | None, last: str
) -> None:
    """The chat is at work all the time, so nothing else would end it; and what comes later is told to nobody."""
    words = "your token has expired; come back with another"
    expired = f'data: {{"type": "error", "errorText": "{words}"}}\n\n'
    agui = f'data: {{"type": "RUN_ERROR", "message": "{words}", "code": "reconnect"}}'
    model = GatedModel("Too late.")
    async with served(Engine("sqlite://", model=model), auth=ShortPasses()) as service, service.client() as ada:
        chat = await service.engine.create_chat(owner="ada")
        await service.engine.send_message(chat.id, "Hello!")
        with anyio.fail_after(60):
            await service.engine.wait(chat.id, until={"streaming"})
            answer = await ada.request(method, path.format(chat=chat.id), json=body)
            seq = (await service.engine.transcript(chat.id)).seq
            model.gate.set()
            await service.engine.wait(chat.id)
            again = await ada.request(method, path.format(chat=chat.id), json=body)
    assert answer.status_code == 200
    assert answer.text.rstrip().endswith(last.format(seq=seq, expired=expired, agui=agui)), answer.text
    assert "Too late." not in answer.text
    assert (again.status_code, again.json()["type"]) == (401, "urn:turnwise:problem:not-authenticated")


async def test_expired_token_reads_no_stored_events(demo: Served) -> None:
    chat = await demo.engine.create_chat(owner="ada")
    await demo.engine.ask(chat.id, "Hello!")
    service = Service(demo.engine, TOKENS, ServiceSettings(), policy_of(ServiceSettings()))
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    for until, told in ((None, chat.id), (now + hour, chat.id), (now - hour, None)):
        ada = Caller(service, Principal("ada", until=until), 0.0)
        events: list[Event] = []
        with suppress(NotAuthenticated) if told is None else nullcontext():
            events += [event async for event in ada.events(chat.id, follow=False)]
        assert events == ([] if told is None else [one async for one in demo.engine.events(chat.id, follow=False)])
