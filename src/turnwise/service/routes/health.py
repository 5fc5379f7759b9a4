"""Health: whether the process and its engine live, whether it takes requests, and what it has done."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from turnwise.service.caller import SERVICE
from turnwise.service.problems import REFUSED, problem_response
from turnwise.service.service import Service
from turnwise.states.errors import EngineClosed, SettingsError, TurnwiseError

OPEN_STREAMS: Final = "turnwise_open_streams"
REFUSED_REQUESTS: Final = "turnwise_refused_requests"
"""The metrics that the service adds to those of the engine."""


async def is_alive(request: Request) -> dict[str, str]:
    """Answer 200 while the process lives, 503 if its engine has ended by an error."""
    service: Service = request.scope[SERVICE]
    if service.engine.has_failed:
        raise EngineClosed("the engine has ended by an error")
    return {"status": "ok"}


async def is_ready(request: Request) -> Response:
    """Answer 200 while the engine is open, its store takes writes, and the service is not asked to stop; else 503."""
    service: Service = request.scope[SERVICE]
    try:
        if not service.engine.takes_followers:
            raise EngineClosed("the service is about to stop")
        await service.readiness.check()
    except TurnwiseError as error:
        return problem_response(error)
    return JSONResponse({"status": "ready"})


async def metrics(request: Request) -> Response:
    """Return the process's metrics for Prometheus, no chat among them."""
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest  # noqa: PLC0415 - an extra's
    except ImportError:
        raise SettingsError("metrics", "need the extra `observability`") from None
    service: Service = request.scope[SERVICE]
    refused = [
        f'{REFUSED_REQUESTS}_total{{status="{status}",problem="{problem}"}} {count}'
        for (status, problem), count in sorted(REFUSED.items())
    ]
    gauge = (f"# TYPE {OPEN_STREAMS} gauge", f"{OPEN_STREAMS} {service.streams.count}")
    own = "\n".join((*gauge, f"# TYPE {REFUSED_REQUESTS}_total counter", *refused, ""))
    return Response(generate_latest() + own.encode(), media_type=CONTENT_TYPE_LATEST)
