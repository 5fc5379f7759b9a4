"""Who takes part. A measuring process loads one of them: no library pays for another's imports."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path
from typing import Final

from workload import Contestant

MODULES: Final = {
    "turnwise": "turnwise_engine:Turnwise",
    "langgraph": "langgraph_sync:LangGraph",
    "dbos": "dbos_wal:Dbos",
    "openai-agents": "openai_agents:OpenAIAgents",
    "pydantic-ai": "pydantic_ai_plain:PydanticAI",
    "raw-sqlite": "raw_sqlite:RawSQLite",
    "own-sql": "replayed_sql:ReplayedSQL",
}


def load(name: str) -> type[Contestant]:
    """Return a contestant's class."""
    module, _, class_name = MODULES[name].partition(":")
    contestant: type[Contestant] = getattr(importlib.import_module(module), class_name)
    return contestant


def missing(name: str) -> str | None:
    """Return the first package that a contestant imports and that is not installed; imports nothing."""
    path = Path(__file__).with_name(f"{MODULES[name].partition(':')[0]}.py")
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.ImportFrom) and statement.module is not None:
            package = statement.module.partition(".")[0]
            if importlib.util.find_spec(package) is None:
                return package
    return None
