"""Whatever needs an extra says which when it is imported without, in one and the same way."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from turnwise.extras import needing
from turnwise.states.errors import SettingsError

EXTRAS = {
    "turnwise.client": "client",
    "turnwise.service": "service",
    "turnwise.providers.pydantic_ai": "models",
    "turnwise.persistence.postgres.store": "postgres",
    "turnwise.persistence.files.objects": "bucket",
    "turnwise.engine.mcp": "mcp",
    "turnwise.engine.observers.opentelemetry": "observability",
    "turnwise.engine.observers.turn_spans": "observability",
    "turnwise.engine.observers.prometheus": "observability",
}
LIBRARIES = [
    "httpx",
    "httpx2",
    "fastapi",
    "pydantic_ai",
    "asyncpg",
    "obstore",
    "mcp",
    "opentelemetry",
    "prometheus_client",
]
IMPORTED = f"""
import importlib, json, sys
sys.modules |= dict.fromkeys({LIBRARIES!r})
told = {{}}
for module in {[*EXTRAS]!r}:
    try:
        importlib.import_module(module)
    except Exception as error:
        told[module] = f"{{type(error).__name__}}: {{error}}"
print(json.dumps(told))
"""


def test_every_module_that_needs_an_extra_names_it() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    for module, extra in EXTRAS.items():
        package = module.removesuffix(".store")
        wanted = f"SettingsError: {package}: needs the extra `{extra}`: pip install 'turnwise[{extra}]' ("
        assert told[module].startswith(wanted), told


def test_a_module_of_turnwise_that_is_missing_is_told_as_it_is() -> None:
    """Whoever has the extra must not be told to install it."""
    with pytest.raises(ModuleNotFoundError, match="nowhere"), needing("client", __name__):
        __import__("turnwise.nowhere")
    with pytest.raises(SettingsError, match="client"), needing("client", __name__):
        __import__("nowhere")
