"""Webhooks: events of all chats, posted to other services and signed as Standard Webhooks has it.

Each webhook is a durable consumer of the engine: at least once, in order within a chat, tried again with back-off. What
was not taken then is set aside, and sent again on request.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import socket
import ssl
import time
import tomllib
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import field
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import anyio
import httpcore
import msgspec
from pydantic import AfterValidator
from starlette.datastructures import Headers

from turnwise.engine.engine import Engine
from turnwise.engine.subscriptions.consumer import DeliveryRefused, check_kinds
from turnwise.foreign import described
from turnwise.logger import logger
from turnwise.providers.failures import retry_after_in
from turnwise.states.errors import EngineClosed, SettingsError
from turnwise.states.events import Event
from turnwise.states.values.checked import configuration
from turnwise.states.values.limits import Name
from turnwise.states.values.plain import Misfit

CONSUMER_PREFIX: Final = "webhook:"
"""The name of a webhook's consumer is this and its own name."""
DELAYS_S: Final = (5.0, 60.0, 300.0, 1800.0, 7200.0)
"""Seconds between the tries of one event."""
TIMEOUT_S: Final = 15.0
"""Seconds that a receiver has for its answer."""
_RESTART_S: Final = 30.0
_GONE: Final = 410
_KEY_BYTES: Final = range(24, 65)
_NAT64: Final = IPv6Network("64:ff9b::/96")
_LAST_32_BITS: Final = 0xFFFFFFFF


def _as_secret(value: str) -> str:
    """Check a secret; several are separated by spaces, while a receiver takes up a new one."""
    for one in value.split(" "):
        try:
            key = base64.b64decode(one.removeprefix("whsec_"), validate=True)
        except ValueError:
            key = b""
        if not one.startswith("whsec_") or len(key) not in _KEY_BYTES:
            raise Misfit("must be `whsec_` and 24 to 64 bytes in base64; several are separated by a space")
    return value


def _is_url(url: str, schemes: Collection[str]) -> bool:
    try:
        address = urlsplit(url)
        has_port = address.port != 0  # raises for what is no port
    except ValueError:
        return False
    is_plain = url.isascii() and url.isprintable() and " " not in url
    is_complete = address.scheme in schemes and bool(address.hostname) and address.username is None
    return has_port and is_plain and is_complete


@configuration(within="webhook.")
class Webhook:
    """A webhook that receives events of all chats.

    Raises:
        SettingsError: a value is not what it may be, or no events may be sent to the address. The text never holds the
            secret.
    """

    url: str
    """Begins with `https://`, or with `http://` in a private network."""
    secret: Annotated[str, AfterValidator(_as_secret)] = field(repr=False)
    """Signs the events: `whsec_` and a key in base64. To change it, list both keys, with a space between."""
    name: Name
    """Its consumer is `webhook:` and this."""
    kinds: Collection[str] | None = None
    """Kinds of events; all by default."""
    allow_private: bool = False
    """Whether it may be in a private network, or on this machine."""

    def __post_init__(self) -> None:
        if not _is_url(self.url, ("https", "http") if self.allow_private else ("https",)):
            right = "https://HOST/PATH in ASCII, or http:// with allow_private, without a user"
            raise SettingsError(f"webhook {self.name!r}", f"its url must be {right}")
        if self.kinds is not None:
            check_kinds(self.kinds)

    @classmethod
    def from_file(cls, path: str | Path) -> list[Webhook]:
        """Read webhooks from a TOML file with a table `[[webhooks]]` for each, with the fields of this class.

        Raises:
            SettingsError: the file cannot be read, or an entry is wrong. The text never holds a secret.
        """
        try:
            entries = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("webhooks")
        except (OSError, ValueError) as error:
            raise SettingsError("webhooks", f"{str(path)!r} cannot be read: {type(error).__name__}") from None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise SettingsError("webhooks", f"{str(path)!r} must hold tables named [[webhooks]]")
        return [cls(**entry) for entry in entries]


def distinct(webhooks: Sequence[Webhook]) -> Sequence[Webhook]:
    """Refuse two webhooks of one name: they would be one consumer, and one of them would get nothing."""
    names = [webhook.name for webhook in webhooks]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingsError("webhooks", f"each must have a name of its own; two are named {twice!r}")
    return webhooks


class NotDelivered(DeliveryRefused):
    """A receiver did not take an event; it is sent again later, unless the receiver is gone for good."""

    def __init__(self, problem: str, *, retry_after: float | None = None, ends: bool = False) -> None:
        super().__init__(problem)
        self.retry_after = retry_after
        self.ends = ends


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature`: one signature for each secret."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    keys = (base64.b64decode(one.removeprefix("whsec_")) for one in secret.split(" "))
    digests = (hmac.new(key, signed, hashlib.sha256).digest() for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def is_public(address: str) -> bool:
    """Whether an IP address is public, itself and an IPv4 address in it."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        inner: list[IPv4Address] = [one for one in (ip.ipv4_mapped, ip.sixtofour) if one is not None]
        inner += [IPv4Address(int(ip) & _LAST_32_BITS)] if ip in _NAT64 else []
        if inner:
            return all(one.is_global and not one.is_multicast for one in inner)
    return ip.is_global and not ip.is_multicast


class PublicNetwork(httpcore.AsyncNetworkBackend):
    """Connects to public addresses only: to one of those that it has looked up and checked itself."""

    def __init__(self) -> None:
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to a host, unless one of its addresses is private."""
        try:
            with anyio.fail_after(timeout):
                found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(f"{host} has no address: {error}") from error
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        for address in addresses:
            if not is_public(address):
                raise httpcore.ConnectError(f"{host} is {address}, which is no public address (allow_private)")
        share = None if timeout is None else timeout / len(addresses)
        for address in addresses[:-1]:  # this machine may have no route to IPv6
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await self._inner.connect_tcp(address, port, share, local_address, socket_options)
        return await self._inner.connect_tcp(addresses[-1], port, share, local_address, socket_options)


class WebhookSender:
    """Sends events to one webhook. Redirects are not followed; of the answer its status and `Retry-After` are read."""

    def __init__(self, webhook: Webhook) -> None:
        self._webhook = webhook
        network = httpcore.AnyIOBackend() if webhook.allow_private else PublicNetwork()
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl.create_default_context(), network_backend=network, keepalive_expiry=5
        )

    async def send(self, event: Event) -> None:
        """Send an event once; raise `NotDelivered` without a status 2xx."""
        host, timestamp = urlsplit(self._webhook.url).hostname, int(time.time())
        body = msgspec.json.encode({"type": f"chat.{event.kind}", "timestamp": event.at, "data": event})
        message_id = _id_of(event)
        headers: dict[bytes | str, bytes | str] = {
            "content-type": "application/json",
            "user-agent": "turnwise",
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(self._webhook.secret, message_id, timestamp, body),
        }
        limits = {"timeout": dict.fromkeys(("connect", "read", "write", "pool"), TIMEOUT_S)}
        try:
            with anyio.fail_after(TIMEOUT_S):
                async with self._pool.stream(
                    "POST", self._webhook.url, headers=headers, content=body, extensions=limits
                ) as answer:
                    status, received = answer.status, Headers(raw=[(name.lower(), it) for name, it in answer.headers])
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, OSError) as error:
            raise NotDelivered(f"{host} did not answer: {str(error) or type(error).__name__}") from error
        if status == _GONE:
            raise NotDelivered(f"{host} answered with status 410: it takes no events any more", ends=True)
        if status // 100 != 2:  # noqa: PLR2004 - 2xx
            raise NotDelivered(f"{host} answered with status {status}", retry_after=retry_after_in(received))

    async def deliver(self, engine: Engine) -> None:
        """Send the events of all chats until the engine closes, or the receiver answers 410.

        Then the refused event is listed as undelivered, and later ones wait until the process restarts.
        """
        name = CONSUMER_PREFIX + self._webhook.name
        async with self._pool:
            while True:
                try:
                    await engine.consume(name, self.send, kinds=self._webhook.kinds, delays=DELAYS_S, start="now")
                except EngineClosed:
                    return
                except NotDelivered as gone:
                    logger.error("webhook_disabled", consumer=name, problem=str(gone))
                    return
                except Exception as error:  # noqa: BLE001 - the events wait for the next try
                    logger.warning("webhook_stopped", consumer=name, problem=described(error))
                    await anyio.sleep(_RESTART_S)


def _id_of(event: Event) -> str:
    """Return the id of the message, the same for every attempt."""
    what = f"{event.chat_id}\n{event.seq}\n{event.at}"
    return f"msg_{hashlib.sha256(what.encode()).hexdigest()[:32]}"


@asynccontextmanager
async def deliver_webhooks(engine: Engine, webhooks: Sequence[Webhook]) -> AsyncIterator[None]:
    """Send events to webhooks inside this context, for applications that mount a `router`.

    Raises:
        SettingsError: two webhooks have the same name.
    """
    tasks = [asyncio.create_task(WebhookSender(webhook).deliver(engine)) for webhook in distinct(webhooks)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
