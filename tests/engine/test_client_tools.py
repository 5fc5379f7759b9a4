"""Tools that a client declares: what each must be, before a chat is created with it."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise import ClientTool, SettingsError
from turnwise.engine.settings import LONGEST
from turnwise.engine.tools import client_tools
from turnwise.engine.tools.client_tools import check_client_tools

OBJECT = {"type": "object"}


def asking(name: str = "ask", schema: Any = OBJECT, **more: Any) -> ClientTool:
    return ClientTool(name, "Ask.", schema, **more)


@pytest.mark.parametrize(
    ("tools", "whose", "problem"),
    [
        ([asking("look")], "'look'", "needs a name of its own"),
        ([asking("a"), asking("b"), asking("a")], "'a'", "needs a name of its own"),
        ([asking("two words")], "'two words'", "needs a name of 1 to 64"),
        ([asking(schema={"type": "array"})], "'ask'", 'of type "object"'),
        ([asking(), asking("b", schema={"type": "object", "required": 3})], "'b'", "not valid at required"),
    ],
)
def test_invalid_client_tool_is_refused(tools: list[ClientTool], whose: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=f"^client tool {whose}: .*{problem}"):
        check_client_tools(tools, {"look"})


def test_schema_that_takes_too_long_to_check_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    known = asking("a", schema={"type": "object", "title": "known"})
    check_client_tools([known], ())
    monkeypatch.setattr(client_tools, "TO_DECLARE", 0)
    check_client_tools([known], ())
    with pytest.raises(SettingsError, match=r"^client tool 'b': its JSON schema takes too long to check"):
        check_client_tools([known, asking("b", schema={"type": "object", "title": "another"})], ())


@pytest.mark.parametrize("deadline", [0, -1, LONGEST + 1])
def test_invalid_deadline_is_refused(deadline: float) -> None:
    with pytest.raises(SettingsError, match="deadline"):
        check_client_tools([asking(deadline=deadline)], ())
