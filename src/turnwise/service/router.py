"""The routes of a service, for an application of your own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.responses import Response

from turnwise.engine.engine import Engine
from turnwise.service.auth import Authenticator, Role
from turnwise.service.failure import end_process_with
from turnwise.service.guard import GuardedRoute
from turnwise.service.inspector import add_inspector
from turnwise.service.openapi import described
from turnwise.service.policy import Policy
from turnwise.service.routes.table import MOUNTED, OPERATIONS, RouteSpec
from turnwise.service.service import Service
from turnwise.service.settings import ServiceSettings
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

    The inspector's page is at `/inspector`. `/metrics` is for operators and auditors, or whom `owners_may` names.

    The application enters the engine. Under uvicorn, readers are asked to reconnect when it is asked to stop; any other
    server calls `Engine.release_followers`. Its OpenAPI document, and so its `/docs`, shows what owners may do:
    `describe` completes that document, and leaves out the fields that owners may not use. If the engine ends by an
    error the process ends, too, with exit code 1.

    Args:
        engine: whose chats are served.
        auth: identifies the sender of a request: `StaticTokens`, `JWTs`, or a function of your own.
        settings: limits. Which origins may call is for the application to say: give it a `CORSMiddleware`.
        operation_prefix: what the ids of the operations begin with in the OpenAPI document. Give each router its own,
            if an application has several.

    Raises:
        SettingsError: the settings have `allow_origins`, which routes cannot heed, or `owners_may` names what is no
            operation.
    """
    settings = settings or ServiceSettings()
    if settings.allow_origins:
        raise SettingsError("allow_origins", "is for `create_app` and `serve`; give your application a CORSMiddleware")
    service = Service(engine, auth, settings, policy_of(settings))
    end_process_with(engine, settings)
    routes = APIRouter()
    add_routes(routes, service, MOUNTED, operation_prefix, role="owner")
    return routes


def policy_of(settings: ServiceSettings) -> Policy:
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

    Args:
        router: where they are added.
        service: whose routes they are.
        routes: the routes.
        operation_prefix: what the ids of the operations begin with in the OpenAPI document.
        role: that document shows what it may do.
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
