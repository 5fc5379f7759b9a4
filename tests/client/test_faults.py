"""Faults between a client and its service: nothing is lost or doubled, and the error names the fault."""

from __future__ import annotations

import json

import pytest

from support.served import served
from turnwise import Engine
from turnwise.client import (
    BodyTooLarge,
    Client,
    ClientSettings,
    NotAllowed,
    NotAuthenticated,
    RateLimited,
    ServiceUnreachable,
)
from turnwise.service import OWNERS_MAY, ServiceSettings
from turnwise.states.errors import ImportRefused

AT_ONCE = ClientSettings(retry_timeout=0, timeout=20)


async def test_unreachable_service_is_named() -> None:
    async with Client("http://127.0.0.1:9", token="t", settings=AT_ONCE) as client:
        with pytest.raises(ServiceUnreachable) as once:
            await client.create_chat()
        with pytest.raises(ServiceUnreachable):
            [event async for event in client.events("c1")]
    assert (once.value.url, once.value.sent) == ("http://127.0.0.1:9", False)
    assert "nothing was written" in str(once.value)


async def test_token_role_and_limits_are_distinct_errors() -> None:
    tight = ServiceSettings(requests_per_second=0, burst=4, body_limit_bytes=1000)
    async with served(Engine("sqlite://", model="demo"), settings=tight) as service:
        async with Client(service.url, token="wrong", settings=AT_ONCE) as stranger:
            with pytest.raises(NotAuthenticated, match="needs a token that the service knows"):
                await stranger.list_chats()
            with pytest.raises(NotAuthenticated):
                [event async for event in stranger.events("c1")]
        async with Client(service.url, token="auditor-token", settings=AT_ONCE) as auditor:
            with pytest.raises(NotAllowed) as role:
                await auditor.create_chat()
        async with Client(service.url, token="ada-token", settings=AT_ONCE) as ada:
            chat = await ada.create_chat()
            with pytest.raises(BodyTooLarge) as large:
                await ada.send_message(chat.id, "x" * 2000)
            with pytest.raises(NotAllowed):
                await ada.delete_chat(chat.id)
            with pytest.raises(NotAllowed, match="it needs 'operator' to act on behalf of others"):
                await ada.acting("operator:ops").send_message(chat.id, "Hello")
            with pytest.raises(RateLimited) as limited:
                await ada.get_chat(chat.id)

    assert (role.value.role, large.value.limit) == ("auditor", 1000)
    assert limited.value.retry_after == 60


async def test_owner_exports_what_it_sees() -> None:
    """An owner's export ends with a count of its lines, and no store imports it."""
    settings = ServiceSettings(owners_may=OWNERS_MAY | {"export_chat"})
    async with (
        served(Engine("sqlite://", model="demo"), settings=settings) as service,
        Client(service.url, token="ada-token") as ada,
        Client(service.url, token="operator-token") as operator,
    ):
        chat = await ada.create_chat()
        await ada.ask(chat.id, "hello")
        lines = [line async for line in ada.export_chat(chat.id)]
        with pytest.raises(ImportRefused):
            await operator.import_chat(lines)

    stored, *messages, end = [json.loads(line) for line in lines]
    assert (stored["id"], [message["role"] for message in messages]) == (chat.id, ["user", "assistant"])
    assert end == {"rows": 3, "head": None}
