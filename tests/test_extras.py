"""Whatever needs an extra says which when it is imported without, in one and the same way."""

import json
import subprocess
import sys

EXTRAS = {
    "turnwise.client": "client",
    "turnwise.service": "service",
    "turnwise.providers.pydantic_ai": "models",
    "turnwise.persistence.postgres.store": "postgres",
    "turnwise.persistence.blobs.objects": "bucket",
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


def test_missing_extra_error_names_the_extra() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    for module, extra in EXTRAS.items():
        package = module.removesuffix(".store")
        wanted = f"SettingsError: {package}: needs the extra `{extra}`: pip install 'turnwise[{extra}]' ("
        assert told[module].startswith(wanted), told
