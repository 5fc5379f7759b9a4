"""The client: the chats of a service, with the methods of `Engine`, over HTTP. Needs the extra `client`."""

from turnwise.extras import needing

with needing("client", __name__):
    from turnwise.client.client import Client
    from turnwise.client.errors import BadAnswer, ServiceFailed, ServiceUnreachable
    from turnwise.client.settings import ClientSettings
    from turnwise.http_problems import BodyTooLarge, InvalidRequest, NotAllowed, NotAuthenticated, RateLimited

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
