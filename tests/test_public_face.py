"""The promised public names exist."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect

import pytest

import turnwise
from turnwise import TurnwiseError
from turnwise.states import errors, model_errors

PROMISED = {
    "turnwise": """
        Engine tool ToolContext ClientTool ToolResult Settings RetryPolicy CompactionPolicy RESTING ChatState
        Chat Page Message Event Usage SendReceipt SubmissionReceipt TurnResult Verdict Explanation Transcript
        fold verify_export
    """,
    "turnwise.states": "ChatState Trigger TABLE decide IllegalTransition",
    "turnwise.diagrams": "mermaid svg",
    "turnwise.providers.protocol": "Model ModelRequest ModelPart ModelReply",
    "turnwise.providers.scripted": "ScriptedModel Reply Call",
    "turnwise.providers.demo": "DemoModel",
    "turnwise.persistence.protocol": "ChatStore",
    "turnwise.testing": "ManualClock",
}


@pytest.mark.parametrize(("module", "names"), PROMISED.items())
def test_module_offers_promised_names(module: str, names: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in names.split() if not hasattr(found, name)] == []


def test_version_is_that_of_the_package() -> None:
    assert turnwise.__version__ == importlib.metadata.version("turnwise")


def test_errors_are_exported_at_the_top() -> None:
    """An error handler should not need to know the error's module."""
    every = vars(errors) | vars(model_errors)
    known = {name for name, kind in every.items() if inspect.isclass(kind) and issubclass(kind, TurnwiseError)}
    assert known <= set(turnwise.__all__)


def test_exports_exist_once() -> None:
    exported = turnwise.__all__
    assert len(set(exported)) == len(exported)
    assert [name for name in exported if not hasattr(turnwise, name)] == []
