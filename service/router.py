"""The routes of a service, for an application of your own."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.responses import Response

from turnwise.engine.engine import Engine
from turnwise.service.auth import Authenticator
from turnwise.service.failure import end_process_with
from turnwise.service.guard import GuardedRoute
from turnwise.service.inspector import add_inspector
from turnwise.service.openapi import described
from turnwise.service.routes.table import OPEN_ROUTES, ROUTES, Row
from turnwise.service.service import Service
from turnwise.service.settings import ServiceSettings
from turnwise.states.checked import checked
from turnwise.states.errors import SettingsError


class _Name(PathConvertor):
    """A client's name of a chat in a path: any text, slashes and line feeds among it."""

    regex = "(?s:.*)"


register_url_convertor("turnwise_name", _Name())


@checked
def router(
    engine: Engine, *, auth: Authenticator, settings: ServiceSettings | None = None, operation_prefix: str = ""
) -> APIRouter:
    """Return every route of the service: `app.include_router(router(engine, auth=...), prefix="/v1")`.

    The inspector's page is at `/inspector`.

    The application enters the engine, and calls `Engine.release_followers` when it is asked to stop. `describe`
    completes its OpenAPI document. If the engine ends by an error the process ends, too, with exit code 1.

    Args:
        engine: whose chats are served.
        auth: tells who sends a request: `StaticTokens`, `JWTs`, or a function of your own.
        settings: limits. Which origins may call is for the application to say: give it a `CORSMiddleware`.
        operation_prefix: what the ids of the operations begin with in the OpenAPI document. Give each router its own,
            if an application has several.

    Raises:
        SettingsError: the settings have `allow_origins`, which routes cannot heed.
    """
    settings = settings or ServiceSettings()
    if settings.allow_origins:
        raise SettingsError("allow_origins", "is for `create_app` and `serve`; give your application a CORSMiddleware")
    end_process_with(engine, settings)
    routes = APIRouter()
    add_routes(routes, Service(engine, auth, settings), operation_prefix)
    return routes


def add_routes(routes: APIRouter, service: Service, operation_prefix: str = "") -> None:
    """Add every route of the service to a router or an application's: including a router builds each route twice."""
    routes.route_class = type("ServiceRoute", (GuardedRoute,), {"service": service})
    for row in (*ROUTES, *OPEN_ROUTES):
        _add(routes, row, operation_prefix)
    add_inspector(routes)


def _add(routes: APIRouter, row: Row, operation_prefix: str) -> None:
    options: dict[str, Any] = {} if row.answer is None else {"response_model": row.answer}
    if row.media_type is not None:
        options["response_class"] = Response
    routes.add_api_route(
        row.path.replace("{thread_id}", "{thread_id:turnwise_name}"),
        row.endpoint,
        methods=[row.method],
        status_code=row.status,
        operation_id=operation_prefix + row.name,
        tags=[row.endpoint.__module__.rpartition(".")[2]],
        **described(row, ROUTES, operation_prefix=operation_prefix),
        **options,
    )
