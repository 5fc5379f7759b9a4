"""The constants of the service."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from turnwise.service.policy import OWNERS_MAY, Restriction
from turnwise.service.webhooks import Webhook, distinct
from turnwise.states.values.checked import configuration
from turnwise.states.values.limits import Count, Name, Seconds

Amount = Annotated[Seconds, Field(allow_inf_nan=False)]
"""A number of at least 0, not always of seconds."""


@configuration()
class ServiceSettings:
    """The permissions and limits of clients. Limits are per process, except for the rate of requests.

    Raises:
        SettingsError: a value is invalid; the text names it and says what would be right.
    """

    body_limit_bytes: Count = 4_194_304
    """The longest body of a request; front ends, files and imported chats have limits of their own."""
    history_limit_bytes: Count = 16_777_216
    """The longest body of a front end's request: most send the whole conversation, with its pictures, in each."""
    upload_limit_bytes: Count = 1_073_741_824
    """The longest body of a file or an imported chat."""
    requests_per_second: Amount = 50
    """Requests that each principal may send, on average, to all replicas on one database. Those of unknown senders are
    counted by address and process: above the limit they get 429, not 401."""
    burst: Count = 200
    """Requests that each principal, or address of unknown senders, may send at once."""
    streams_per_owner: Count = 100
    """Event streams that each principal may have open."""
    reader_timeout: Amount = 30
    """Seconds in which a reader has to take what it is sent; a slower one is cut off, and may come back."""
    upload_timeout: Amount = 30
    """Seconds within which the next piece of a body has to come; a body that trickles may waste as many in all."""
    header_timeout: Amount = 10
    """Seconds in which a client of `serve` has to send the headers of a request; then the connection is closed."""
    anonymous_connections: Count = 1000
    """Connections that `serve` keeps open without a valid token; above that, it closes the oldest."""
    shutdown_seconds: Amount = 10
    """Seconds from the signal to stop until `serve` closes connections and releases running jobs."""
    not_found_seconds: Amount = 0.02
    """How long a 404 takes, or a multiple of it, so that its time does not reveal another owner's chat."""
    owners_may: Annotated[Collection[str], AfterValidator(frozenset)] = OWNERS_MAY
    """What owners may do with their own chats: names of operations such as `erase`, or of a field of an operation such
    as `update_chat.title`. `OWNERS_MAY | {...}` adds to the default. Operators may do everything, auditors may read."""
    policy: Restriction | None = None
    """A function, sync or async, that can refuse an operation or field that the role allows. It gets the principal, the
    name of the operation or field, and the chat that the request names or `None`, and returns whether to allow it."""
    webhooks: Annotated[Sequence[Webhook], AfterValidator(distinct)] = ()
    """Where `create_app` and `serve` send events; an application with a `router` uses `deliver_webhooks`."""
    allow_origins: Sequence[str] = ()
    """Origins whose pages may call the service; `*` for all. An application with a `router` has its own middleware."""
    models: Sequence[Name] = ()
    """Names of models that clients may choose for a chat, beside those of the engine's agents, of which those with an
    address are left out. Clients see these names, and their calls spend the keys that this process has."""
