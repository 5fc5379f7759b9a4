"""Who sends a request, and which chats are there for them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from fastapi import FastAPI
from starlette.requests import Request

from support.clock import StillClock
from support.served import GENEROUS, TOKENS, served
from turnwise import Engine
from turnwise.service import Principal, ServiceSettings, add_problem_handlers, caller, router
from turnwise.service.caller import Caller
from turnwise.service.service import Service
from turnwise.states.errors import ChatNotFound


def damage(path: Path, chat_id: str) -> None:
    with closing(sqlite3.connect(path)) as on, on:
        on.execute("UPDATE chats SET facts = 'poison' WHERE id = ?", (chat_id,))


@pytest.mark.parametrize("page", [None, 2], ids=["all at once", "two at a time"])
async def test_a_chat_that_cannot_be_read_is_told_its_owner_and_whoever_sees_all(
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


async def test_what_can_be_done_to_a_chat_that_cannot_be_read_can_be_done_by_whoever_sees_it(tmp_path: Path) -> None:
    """The engine checks, tells, erases and deletes it; an owner must be able to, too, and nobody else learns of it."""
    path = tmp_path / "chats.db"
    async with (
        served(Engine(f"sqlite:///{path}", model="demo")) as service,
        service.client("ada") as ada,
        service.client("bob") as bob,
        service.client("operator") as operator,
    ):
        for who in (ada, operator):
            chat_id = (await ada.post("/chats", json={})).json()["id"]
            file = (await ada.post(f"/files?chat={chat_id}", content=b"hi", headers={"Content-Type": "a/b"})).json()
            damage(path, chat_id)
            reads = ("verify", "helpers", "tombstone", "events?follow=false", "events?follow=false&after=9")
            for place in (*(f"/chats/{chat_id}/{read}" for read in reads), f"/files/{file['blob']}?chat={chat_id}"):
                assert [(await one.get(place)).status_code for one in (who, bob)] == [200, 404], place
            assert not (await who.get(f"/chats/{chat_id}/verify")).json()["ok"]
            assert "event: status\n" in (await who.get(f"/chats/{chat_id}/events?follow=false")).text
            everything = {"what": ["everything"]}
            for one, status in ((bob, 404), (who, 200)):
                assert (await one.post(f"/chats/{chat_id}/erase", json=everything)).status_code == status
            damage(path, chat_id)
            for one, status in ((bob, 404), (who, 200)):
                assert (await one.delete(f"/chats/{chat_id}")).status_code == status


async def test_of_a_chat_that_was_deleted_only_whoever_sees_all_is_told() -> None:
    """Nobody knows any more whose it was."""
    async with (
        served(Engine("sqlite://", model="demo")) as service,
        service.client("ada") as ada,
        service.client("bob") as bob,
        service.client("operator") as operator,
        service.client("auditor") as auditor,
    ):
        chat_id = (await ada.post("/chats", json={})).json()["id"]
        await ada.delete(f"/chats/{chat_id}")
        told = [await who.get(f"/chats/{chat_id}") for who in (ada, bob, operator, auditor)]
        none = await bob.get(f"/chats/c{'0' * 25}")
    assert [answer.status_code for answer in told] == [404] * 4
    assert {answer.text.replace(chat_id, "...") for answer in told[:2]} == {none.text.replace(f"c{'0' * 25}", "...")}
    assert ["deleted" in answer.json()["detail"] for answer in told] == [False, False, True, True]


@pytest.mark.parametrize(
    ("passed", "waited"),
    [
        # of seconds since the request came, those until it has taken two, or twice as long, or three times
        (0, 2),
        (0.5, 1.5),
        (1.75, 0.25),
        (2, 2),
        (3.5, 0.5),
        (5, 1),
    ],
)
async def test_a_404_takes_a_whole_number_of_times_as_long(
    passed: float, waited: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(caller, "time", StillClock(64 + passed))
    monkeypatch.setattr(caller.anyio, "sleep", sleep)
    async with Engine("sqlite://", model="demo") as engine:
        hers = await engine.create_chat(owner="ada")
        service = Service(engine, TOKENS, ServiceSettings(not_found_seconds=2))
        bob = Caller(service, Principal("bob"), since=64)
        for chat_id in ("c1", hers.id):
            with pytest.raises(ChatNotFound):
                await bob.chat(chat_id)
        assert (await Caller(service, Principal("ada"), since=64).chat(hers.id)).id == hers.id
    assert slept == [waited, waited]


async def test_whoever_tells_callers_apart_otherwise_needs_no_bearer_token() -> None:
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
        assert answers[0].json() == {"name": "ada", "role": "owner"}


@pytest.mark.parametrize(
    ("auth", "problem"),
    [
        (lambda _: "ada", "TypeError: auth returned 'str'; it has to return a Principal, or None"),
        (
            lambda _: {"name": "ada"},
            "TypeError: auth returned 'dict'; it has to return a Principal, or None for nobody",
        ),
        (lambda _: False, "TypeError: auth returned 'bool'; it has to return a Principal, or None"),
        (lambda _: Principal(""), "RuntimeError: auth failed: name: must be text of 1 to 512 bytes; it was ''; "),
        (lambda _: Principal(user="ada"), "RuntimeError: auth failed: user: "),  # type: ignore[call-arg]
        (lambda _: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
async def test_who_says_neither_who_calls_nor_that_nobody_does_is_told_in_the_log(auth: Any, problem: str) -> None:
    """It is no fault of the request: its sender is told that the service failed, and is let in by none of it."""
    async with Engine("sqlite://", model="demo") as engine:
        app = FastAPI()
        add_problem_handlers(app)
        app.include_router(router(engine, auth=auth))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        structlog.reset_defaults()
        with structlog.testing.capture_logs() as logs:
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                answer = await client.get("/chats")
        structlog.reset_defaults()
    assert (answer.status_code, answer.json()["detail"]) == (500, "the service's log says what happened")
    (failed,) = [log["error"] for log in logs if log["event"] == "request_failed"]
    assert failed.startswith(problem)
