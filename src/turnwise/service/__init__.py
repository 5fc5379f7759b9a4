"""The service: chats over HTTP, in an application of their own or as routes of yours. Needs the extra `service`."""

from turnwise.extras import needing

with needing("service", __name__):
    from turnwise.service.app import create_app, router
    from turnwise.service.auth import Authenticator, JWTs, Principal, Role, StaticTokens
    from turnwise.service.connections import connections
    from turnwise.service.openapi import describe
    from turnwise.service.policy import OWNERS_MAY
    from turnwise.service.problems import Problem, ProblemRoute, add_problem_handlers, problem_response
    from turnwise.service.protocols.agui import AGUIEncoder, encode_agui
    from turnwise.service.protocols.ai_sdk import AISDKEncoder, encode_ai_sdk
    from turnwise.service.server import serve
    from turnwise.service.settings import ServiceSettings
    from turnwise.service.sse import event_stream
    from turnwise.service.webhooks import Webhook, deliver_webhooks

__all__ = [
    "OWNERS_MAY",
    "AGUIEncoder",
    "AISDKEncoder",
    "Authenticator",
    "JWTs",
    "Principal",
    "Problem",
    "ProblemRoute",
    "Role",
    "ServiceSettings",
    "StaticTokens",
    "Webhook",
    "add_problem_handlers",
    "connections",
    "create_app",
    "deliver_webhooks",
    "describe",
    "encode_agui",
    "encode_ai_sdk",
    "event_stream",
    "problem_response",
    "router",
    "serve",
]
