"""The pytest plugin gives tests an engine, its model and its clock, and costs nothing where it is not used."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from turnwise import Engine, Settings, ToolContext, tool
from turnwise.testing import Call, ManualClock, Reply, ScriptedModel


@tool
async def send_invoice(customer: str, context: ToolContext[list[str]]) -> str:
    """Send an invoice."""
    context.deps.append(customer)
    return "sent"


@pytest.fixture
def sent() -> list[str]:
    return []


@pytest.fixture
def engine_options(sent: list[str]) -> dict[str, Any]:
    return {"tools": [send_invoice], "deps": sent, "settings": Settings(max_steps=7)}


async def test_engine_has_the_options_and_the_script(
    engine: Engine, scripted: ScriptedModel, clock: ManualClock, sent: list[str]
) -> None:
    scripted.then(Reply(calls=[Call("send_invoice", {"customer": "Ada"})]))
    scripted.then("Done.")
    chat = await engine.create_chat()
    assert (await engine.ask(chat.id, "Invoice Ada.")).text == "Done."
    assert sent == ["Ada"]
    assert len(scripted.requests) == 2
    assert engine.settings.max_steps == 7
    assert chat.created_at == clock.now()


async def test_script_of_a_fixture_goes_on(engine: Engine, scripted: ScriptedModel) -> None:
    chat = await engine.create_chat()
    failed = await engine.ask(chat.id, "Hello?")
    assert failed.stop_reason == "error"
    scripted.then("Hello.")
    assert (await engine.ask(chat.id, "Hello?")).text == "Hello."


def test_plugin_is_declared_and_imports_no_turnwise() -> None:
    (entry,) = [entry for entry in metadata.entry_points(group="pytest11") if entry.name == "turnwise"]
    code = f"import sys, {entry.value}; sys.exit('turnwise' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_another_suite_uses_the_plugin_as_the_guide_has_it(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/testing.md").read_text()
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nanyio_mode = "auto"\n')
    for name in ("conftest.py", "test_double.py"):
        (tmp_path / name).write_text(guide.partition(f"```python\n# {name}\n")[2].partition("```")[0])
    others = ["-p", "no:langsmith_plugin", "-p", "no:schemathesis", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", *others]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
