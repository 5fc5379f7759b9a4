"""An application that serves one engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Final

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Lifespan

from turnwise.engine.engine import Engine
from turnwise.http_problems import PROBLEM_AFTER
from turnwise.service.auth import Authenticator, Role
from turnwise.service.caller import authenticated
from turnwise.service.failure import end_process_with
from turnwise.service.openapi import describe, shown_to
from turnwise.service.problems import add_problem_handlers
from turnwise.service.router import add_routes, policy_of
from turnwise.service.routes.table import OPEN_ROUTES, ROUTES
from turnwise.service.service import Service
from turnwise.service.settings import ServiceSettings
from turnwise.states.values.checked import checked

EXPOSED: Final = ("ETag", "Link", "Location", "Retry-After", "Turnwise-Chat", PROBLEM_AFTER)
"""Headers of answers that pages of another origin may read."""


@checked
def create_app(engine: Engine, *, auth: Authenticator, settings: ServiceSettings | None = None) -> FastAPI:
    """Return an ASGI application that opens the engine as it starts, and leaves it as it stops.

    If the engine ends by an error the process ends, too, with exit code 1.

    Args:
        engine: whose chats are served; not entered yet.
        auth: identifies the sender of a request.
        settings: limits, and the origins of pages that may call.
    """

    @asynccontextmanager
    async def opened(_app: FastAPI) -> AsyncIterator[None]:
        async with engine:
            yield

    settings = settings or ServiceSettings()
    end_process_with(engine, settings)
    return application(engine, auth=auth, settings=settings, lifespan=opened)


def application(
    engine: Engine, *, auth: Authenticator, settings: ServiceSettings, lifespan: Lifespan[FastAPI] | None = None
) -> FastAPI:
    """Return an ASGI application whose engine `lifespan` opens; without, the caller has opened it."""
    app = FastAPI(
        title="turnwise",
        summary="Chats with language models, each a declared, durable state machine.",
        version=version("turnwise"),
        lifespan=lifespan,
        openapi_url=None,
    )
    add_problem_handlers(app)
    service = Service(engine, auth, settings, policy_of(settings))
    add_routes(app.router, service, (*ROUTES, *OPEN_ROUTES))
    describe(app)
    app.add_route("/openapi.json", _document_of(app, service))
    if settings.allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allow_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED,
        )
    return app


def _document_of(app: FastAPI, service: Service) -> Callable[[Request], Awaitable[Response]]:
    """Return what answers with the OpenAPI document of what the caller may do; without a token, of what owners may."""

    async def answer(request: Request) -> Response:
        role: Role = "owner"
        if "authorization" in request.headers:
            role = (await authenticated(service, request)).principal.role
        document = shown_to(role, service.policy, app.openapi())
        if root_path := request.scope.get("root_path", "").rstrip("/"):
            document["servers"] = [{"url": root_path}]
        return JSONResponse(document)

    return answer
