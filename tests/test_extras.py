"""Modules that need an extra name it in one form when it is missing."""

import json
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("library", ["typer", "rich"])
def test_command_line_without_its_extra_names_it(library: str) -> None:
    code = f"import sys; sys.modules[{library!r}] = None; from turnwise_program import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    wanted = "turnwise: the command line needs the extra `cli`: pip install 'turnwise[cli]' ("
    assert done.stderr.startswith(wanted), done.stderr


def test_import_leaves_out_what_few_programs_need() -> None:
    """Griffe alone takes a tenth of the time."""
    left_out = {*LIBRARIES, "typer", "prompt_toolkit", "griffe", "jsonschema", "json_repair"}
    code = f"import sys, turnwise; print([name for name in {left_out!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
