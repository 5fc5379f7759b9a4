"""Webhooks: a receiver's requests and their signatures, and addresses that get none."""

import base64
import hashlib
import hmac
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpcore
import pytest
from starlette.requests import Request
from starlette.responses import Response

from support.served import GENEROUS, TOKENS, listening
from support.terminal import Terminal
from turnwise import Engine, InvalidArgument, SettingsError
from turnwise.client import Client
from turnwise.service import ServiceSettings, Webhook, create_app, deliver_webhooks
from turnwise.service import webhooks as tested
from turnwise.service.webhooks import (
    NotDelivered,
    PublicNetwork,
    WebhookSender,
    is_public,
    signature,
)

KEY = base64.b64encode(b"k" * 32).decode()
SECRET = f"whsec_{KEY}"


class Receiver:
    """A webhook receiver that answers with scripted statuses; the last one repeats."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = [*statuses]
        self.got: list[tuple[dict[str, str], bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Take a request, as an ASGI application."""
        if scope["type"] == "http":
            request = Request(scope, receive)
            self.got.append((dict(request.headers), await request.body()))
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            await Response(status_code=status, headers={"location": "/elsewhere", "retry-after": "7"})(
                scope, receive, send
            )

    async def _has(self, count: int) -> bool:
        return len(self.got) >= count

    async def until(self, count: int) -> list[dict[str, Any]]:
        """Wait for that many requests; return their contents."""
        await eventually(partial(self._has, count))
        return [json.loads(body) for _, body in self.got]


@asynccontextmanager
async def sending(receiver: Receiver, path: Path, **options: Any) -> AsyncIterator[tuple[str, Engine]]:
    """Serve an engine that sends its chats' events to a receiver."""
    engine = Engine(f"sqlite:///{path / 'chats.db'}", model="demo")
    async with listening(receiver) as url:  # type: ignore[arg-type]
        hook = Webhook(url=f"{url}/hook", secret=SECRET, name="all", allow_private=True, **options)
        settings = replace(GENEROUS, webhooks=[hook])
        async with listening(create_app(engine, auth=TOKENS, settings=settings)) as service:
            await eventually(engine.consumers)  # it gets what happens from now on
            yield service, engine


async def eventually(found: Callable[[], Awaitable[Any]]) -> Any:
    """Poll until the value is true; return it."""
    with anyio.fail_after(120):
        while not (there := await found()):  # noqa: ASYNC110 - no event
            await anyio.sleep(0.01)
    return there


async def test_receiver_can_check_who_sent_an_event(tmp_path: Path) -> None:
    """By the specification of Standard Webhooks, written out here."""
    receiver = Receiver(204)
    async with sending(receiver, tmp_path, kinds=["turn_finished"]) as (service, engine):
        chat = await engine.create_chat(message="Hi.")
        (payload,) = await receiver.until(1)
        assert (payload["type"], payload["data"]["chat_id"], payload["data"]["stop_reason"]) == (
            "chat.turn_finished",
            chat.id,
            "end_turn",
        )
        headers, body = receiver.got[0]
        identity, timestamp = headers["webhook-id"], headers["webhook-timestamp"]
        signed = hmac.new(b"k" * 32, f"{identity}.{timestamp}.".encode() + body, hashlib.sha256).digest()
        assert headers["webhook-signature"] == f"v1,{base64.b64encode(signed).decode()}"
        assert abs(int(timestamp) - time.time()) < 60
        assert (headers["content-type"], payload["timestamp"]) == ("application/json", payload["data"]["at"])
        async with Client(service, token="operator-token") as client:  # noqa: S106 - of a test
            assert [(one.name, one.undelivered) for one in await client.consumers()] == [("webhook:all", 0)]


async def test_refused_event_is_sent_again_and_then_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same message id each time; a redirect is a failure. The terminal lists it, and redelivers it."""
    monkeypatch.setattr(tested, "DELAYS_S", (0.01,))
    receiver = Receiver(500, 302, 204)
    async with sending(receiver, tmp_path, kinds=["turn_finished"]) as (service, engine):
        await engine.create_chat(message="Hi.")
        await receiver.until(2)
        await eventually(partial(engine.undelivered, "webhook:all"))
        terminal, server = Terminal(tmp_path), ("--server", service)
        monkeypatch.setenv("TURNWISE_TOKEN", "operator-token")
        listed = await anyio.to_thread.run_sync(terminal.run, "undelivered", *server)
        assert "webhook:all" in listed.words, listed.words
        assert "127.0.0.1 answered with status 302" in listed.words
        again = await anyio.to_thread.run_sync(terminal.run, "undelivered", "webhook:all", "--again", *server)
        assert "1 event(s) will be delivered again" in again.words
        await receiver.until(3)
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1


async def test_receiver_that_is_gone_gets_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged and listed at once; later events wait for a process restart."""
    receiver = Receiver(410)
    async with sending(receiver, tmp_path, kinds=["turn_finished"]) as (_, engine):
        await engine.create_chat(message="Hi.")
        (left,) = await eventually(partial(engine.undelivered, "webhook:all"))
        assert left.error == "NotDelivered: 127.0.0.1 answered with status 410: it takes no events any more"

        async def stopped() -> bool:
            return not (await engine.consumers())[0].delivering

        await eventually(stopped)
        chat = await engine.create_chat(message="Hi again.")
        await engine.wait(chat.id)
        assert len(receiver.got) == 1
    assert "webhook_disabled" in caplog.text
    receiver.statuses = [204]
    async with sending(receiver, tmp_path, kinds=["turn_finished"]):
        await receiver.until(2)


async def test_receiver_says_when_to_try_again(free_tcp_port: int) -> None:
    async with listening(Receiver(503)) as url, Engine("sqlite://", model="demo") as engine:  # type: ignore[arg-type]
        chat = await engine.create_chat()
        event = await anext(engine.events(chat.id, follow=False))
        for address, problem, wait in (
            (url, "127.0.0.1 answered with status 503", 7),
            (f"http://127.0.0.1:{free_tcp_port}", "127.0.0.1 did not answer: .+", None),
        ):
            hook = Webhook(url=address, secret=SECRET, name="all", allow_private=True)
            with pytest.raises(NotDelivered, match=problem) as refused:
                await WebhookSender(hook).send(event)
            assert (refused.value.retry_after, refused.value.ends) == (wait, False)


async def test_silent_receiver_is_told_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time-out has no text of its own."""
    monkeypatch.setattr(tested, "TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with Engine("sqlite://", model="demo") as engine:
            event = await anext(engine.events((await engine.create_chat()).id, follow=False))
        hook = Webhook(url=f"http://127.0.0.1:{silent.getsockname()[1]}", secret=SECRET, name="all", allow_private=True)
        with pytest.raises(NotDelivered, match=r"127\.0\.0\.1 did not answer: \w*Timeout"):
            await WebhookSender(hook).send(event)


async def test_webhook_goes_on_after_any_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that ends its deliveries is logged, and they start again."""
    consume, calls = Engine.consume, []

    async def broken_at_first(self: Engine, *args: Any, **options: Any) -> None:
        calls.append(args)
        if len(calls) == 1:
            raise ValueError("broken")
        await consume(self, *args, **options)

    monkeypatch.setattr(Engine, "consume", broken_at_first)
    monkeypatch.setattr(tested, "_RESTART_S", 0)
    receiver = Receiver(204)
    async with sending(receiver, tmp_path, kinds=["turn_finished"]) as (_, engine):
        await engine.create_chat(message="Hi.")
        await receiver.until(1)


async def test_deliveries_end_with_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    """It is no failure, also where the application closes the engine first."""
    hook = Webhook(url="https://example.com/hook", secret=SECRET, name="all")
    async with Engine("sqlite://", model="demo") as engine, anyio.create_task_group() as tasks:
        tasks.start_soon(WebhookSender(hook).deliver, engine)
        await eventually(engine.consumers)
        engine.release_followers()
    assert "webhook_stopped" not in caplog.text


async def test_next_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ["2606:2800:220:1:248:1893:25c8:1946", "93.184.216.34"]
    tried: list[tuple[str, float | None]] = []

    async def look_up(*_: Any, **__: Any) -> list[Any]:
        return [(None, None, None, None, (address, 443)) for address in addresses]

    async def connect(_: Any, host: str, port: int, timeout: float | None, *rest: Any) -> Any:  # noqa: ASYNC109
        tried.append((host, timeout))
        if len(tried) == 1:
            raise httpcore.ConnectError("no route")
        return "connected"

    monkeypatch.setattr(anyio, "getaddrinfo", look_up)
    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect)
    assert await PublicNetwork().connect_tcp("example.org", 443, 10) == "connected"
    assert tried == [(address, 5) for address in addresses]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),  # noqa: S104 - no address to listen on
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::5db8:d822", True),
        ("2002:7f00:1::", False),
        ("2002:5db8:d822::", True),
        ("2001:0:5db8:d822::a24b:27dd", False),  # Teredo
        ("ff0e::1", False),
        ("::ffff:224.0.0.1", False),
    ],
)
def test_private_addresses_are_known(address: str, public: bool) -> None:
    assert is_public(address) is public


async def test_host_that_resolves_to_a_private_address_is_refused() -> None:
    """The checked address is the one that is connected to: no second look-up can return another."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(httpcore.ConnectError, match=r"localhost is .*, which is no public address"):
            await PublicNetwork().connect_tcp("localhost", port)
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_webhooks_of_one_name_are_refused() -> None:
    """They would share a consumer: only one of them would get events."""
    hooks = [Webhook(url=f"https://{host}.example/", secret=SECRET, name="all") for host in ("a", "b")]
    with pytest.raises(SettingsError, match="each must have a name of its own; two are named 'all'"):
        ServiceSettings(webhooks=hooks)
    async with Engine("sqlite://", model="demo") as engine:
        with pytest.raises(SettingsError, match="each must have a name of its own"):
            async with deliver_webhooks(engine, hooks):
                pass


def test_webhook_is_checked_when_it_is_made(tmp_path: Path) -> None:
    for wrong in ("k", "whsec_c2hvcnQ=", KEY, f"{SECRET} k", f"{SECRET}!", f"{SECRET}é"):
        with pytest.raises(InvalidArgument, match=r"webhook\.secret: must be `whsec_`") as refused:
            Webhook(url="https://example.com/hook", secret=wrong, name="all")
        assert wrong == "k" or wrong not in str(refused.value)
    numbers = ("https://[::1/", "https://a.example:99999/", "https://a.example:x/", "https://a.example:0/")
    texts = ("https://bücher.example/", "https://a.example/ä", "https://a.example/a b", "https://a.example/\r\nX: y")
    for url in ("http://example.com", "https://", "https://me@example.com/", "ftp://example.com", *numbers, *texts):
        with pytest.raises(SettingsError, match="its url must be https://HOST/PATH"):
            Webhook(url=url, secret=SECRET, name="all")
    for kinds, problem in ([], "must name a kind"), (["turn_finish"], "must be among .* one was 'turn_finish'"):
        with pytest.raises(SettingsError, match=problem):
            Webhook(url="https://example.com", secret=SECRET, name="all", kinds=kinds)
    assert signature(f"{SECRET} {SECRET}", "m", 1, b"{}").count("v1,") == 2
    entry = '[[webhooks]]\nurl = "https://example.com/hook"\nname = "all"\nkinds = ["error"]\n'
    (tmp_path / "hooks.toml").write_text(f'{entry}secret = "{SECRET}"\n')
    (hook,) = Webhook.from_file(tmp_path / "hooks.toml")
    assert (hook.name, hook.kinds, SECRET in repr(hook)) == ("all", ("error",), False)
    tables = r"must hold tables named \[\[webhooks\]\]"
    for text, problem in (("", tables), ("webhooks = [1]", tables), ("=", "cannot be read: TOMLDecodeError")):
        (tmp_path / "wrong.toml").write_text(text)
        with pytest.raises(SettingsError, match=problem):
            Webhook.from_file(tmp_path / "wrong.toml")
