"""The client: the chats of a service, with the methods of `Engine`, over HTTP. Needs the extra `client`."""

from turnwise.extras import needing

with needing("client", __name__):
    from turnwise.client.client import Client
    from turnwise.client.errors import (
        BadAnswer,
        BodyTooLarge,
        InvalidRequest,
        NotAllowed,
        NotAuthenticated,
        RateLimited,
        ServiceFailed,
        ServiceUnreachable,
    )
    from turnwise.client.settings import ClientSettings

__all__ = [
    "BadAnswer",
    "BodyTooLarge",
    "Client",
    "ClientSettings",
    "InvalidRequest",
    "NotAllowed",
    "NotAuthenticated",
    "RateLimited",
    "ServiceFailed",
    "ServiceUnreachable",
]
