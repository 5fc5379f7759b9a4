"""An application that serves one engine, and the routes for an application of your own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Lifespan

from turnwise.engine.engine import Engine
from turnwise.http_problems import PROBLEM_AFTER
from turnwise.service.auth import Authenticator, Role
from turnwise.service.caller import authenticate_request
from turnwise.service.guard import GuardedRoute
from turnwise.service.openapi import describe, described, shown_to
from turnwise.service.policy import Policy
from turnwise.service.problems import add_problem_handlers
from turnwise.service.routes.table import MOUNTED, OPEN_ROUTES, OPERATIONS, ROUTES, RouteSpec
from turnwise.service.service import Service
from turnwise.service.settings import ServiceSettings
from turnwise.service.shutdown import end_process_with
from turnwise.service.static import add_client, add_inspector
from turnwise.service.webhooks import deliver_webhooks
from turnwise.states.errors import SettingsError
from turnwise.states.values.checked import checked


class _Name(PathConvertor):
    """A client's name of a chat in a path: any text, slashes and line feeds among it."""

    regex = "(?s:.*)"


register_url_convertor("turnwise_name", _Name())


@checked
def router(
    engine: Engine, *, auth: Authenticator, settings: ServiceSettings | None = None, operation_prefix: str = ""
) -> APIRouter:
    """Return every route of the service: `app.include_router(router(engine, auth=...), prefix="/v1")`.

    The inspector is at `/inspector`, the JavaScript client for pages at `/client/index.js`. `/metrics` is for
    operators and auditors, or whom `owners_may` names.

    The application enters the engine. Under uvicorn, readers are asked to reconnect when it is asked to stop; any other
    server calls `Engine.release_followers`. Its OpenAPI document, and so its `/docs`, shows what owners may do:
    `describe` completes that document, and leaves out the fields that owners may not use. If the engine ends by an
    error the process ends, too, with exit code 1.

    Args:
        engine: the engine to serve.
        auth: identifies the sender of a request: `StaticTokens`, `JWTs`, or a function of your own.
        settings: limits. Which origins may call is for the application to say: give it a `CORSMiddleware`.
        operation_prefix: what the ids of the operations begin with in the OpenAPI document. Give each router its own,
            if an application has several.

    Raises:
        SettingsError: the settings have `allow_origins` or `webhooks`, which routes cannot heed, or `owners_may` names
            what is no operation.
    """
    settings = settings or ServiceSettings()
    if settings.allow_origins:
        raise SettingsError("allow_origins", "is for `create_app` and `serve`; give your application a CORSMiddleware")
    if settings.webhooks:
        raise SettingsError("webhooks", "are for `create_app` and `serve`; your application enters `deliver_webhooks`")
    service = Service(engine, auth, settings, build_policy(settings))
    end_process_with(engine, settings)
    routes = APIRouter()
    add_routes(routes, service, MOUNTED, operation_prefix, role="owner")
    return routes


def build_policy(settings: ServiceSettings) -> Policy:
    """Return the policy of a service with these settings."""
    return Policy(OPERATIONS, frozenset(settings.owners_may), settings.policy)


def add_routes(
    router: APIRouter,
    service: Service,
    routes: Sequence[RouteSpec],
    operation_prefix: str = "",
    *,
    role: Role = "operator",
) -> None:
    """Add the routes of the service to a router or an application's: including a router builds each route twice.

    The OpenAPI document shows what `role` may do.
    """
    endpoints = {route.endpoint: route for route in routes}
    router.route_class = type("BoundRoute", (GuardedRoute,), {"service": service, "routes": endpoints})
    policy = service.policy
    shown = [route for route in routes if route.is_open or policy.allows(role, route.name)]
    for route in routes:
        hidden = [] if route.is_open else policy.refused_fields(role, route.name)
        description = described(route, shown, operation_prefix=operation_prefix, hidden=hidden)
        _add(router, route, operation_prefix, description | {"include_in_schema": route in shown})
    add_inspector(router)
    add_client(router)


def _add(router: APIRouter, route: RouteSpec, operation_prefix: str, description: Mapping[str, Any]) -> None:
    options: dict[str, Any] = {} if route.answer is None else {"response_model": route.answer}
    if route.media_type is not None:
        options["response_class"] = Response
    router.add_api_route(
        route.path.replace("{thread_id}", "{thread_id:turnwise_name}"),
        route.endpoint,
        methods=[route.method],
        status_code=route.status,
        operation_id=operation_prefix + route.name,
        tags=[route.tag],
        **description,
        **options,
    )


EXPOSED: Final = ("ETag", "Link", "Location", "Retry-After", "Turnwise-Chat", PROBLEM_AFTER)
"""Headers of answers that pages of another origin may read."""


@checked
def create_app(engine: Engine, *, auth: Authenticator, settings: ServiceSettings | None = None) -> FastAPI:
    """Return an ASGI application that opens the engine at startup and closes it at shutdown.

    If the engine ends by an error the process ends, too, with exit code 1.

    Args:
        engine: the engine to serve, not entered yet.
        auth: identifies the sender of a request.
        settings: limits, and the origins of pages that may call.
    """
    settings = settings or ServiceSettings()

    @asynccontextmanager
    async def opened(_app: FastAPI) -> AsyncIterator[None]:
        async with engine, deliver_webhooks(engine, settings.webhooks):
            yield

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
    service = Service(engine, auth, settings, build_policy(settings))
    add_routes(app.router, service, (*ROUTES, *OPEN_ROUTES))
    describe(app)
    app.add_route("/openapi.json", _build_document(app, service))
    if settings.allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allow_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED,
        )
    return app


def _build_document(app: FastAPI, service: Service) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint for the OpenAPI document of the caller's operations; without a token, those of owners."""

    async def answer(request: Request) -> Response:
        role: Role = "owner"
        if "authorization" in request.headers:
            role = (await authenticate_request(service, request)).principal.role
        document = shown_to(role, service.policy, app.openapi())
        if root_path := request.scope.get("root_path", "").rstrip("/"):
            document["servers"] = [{"url": root_path}]
        return JSONResponse(document)

    return answer
