"""The names that users type are there, under the names they were promised."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect

import pytest

import turnwise
from turnwise import Engine, TurnwiseError
from turnwise.states import errors

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
METHODS = """
    create_chat get_chat list_chats send_message ask submit_tool_results interrupt resume edit_message
    queued edit_queued delete_queued promote_queued request_compaction clear_context archive unarchive
    messages events wait audit export_audit verify fork explain erase_message
"""


@pytest.mark.parametrize(("module", "names"), PROMISED.items())
def test_module_offers_promised_names(module: str, names: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in names.split() if not hasattr(found, name)] == []


@pytest.mark.parametrize("method", METHODS.split())
def test_engine_method_has_docstring(method: str) -> None:
    assert inspect.getdoc(getattr(Engine, method))


def test_version_is_that_of_the_package() -> None:
    assert turnwise.__version__ == importlib.metadata.version("turnwise")


def test_errors_are_exported_at_the_top() -> None:
    """Who catches an error should not have to know where it lives."""
    known = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, TurnwiseError)}
    assert known <= set(turnwise.__all__)


def test_exports_exist_once() -> None:
    exported = turnwise.__all__
    assert len(set(exported)) == len(exported)
    assert [name for name in exported if not hasattr(turnwise, name)] == []
