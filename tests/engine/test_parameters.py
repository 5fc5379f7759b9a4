"""Parameters of a model call: what makes no sense is refused where it is declared, and not by every later turn."""

from __future__ import annotations

import re
from typing import Any

import pytest

from turnwise import Engine, InvalidArgument, Settings
from turnwise.engine.parameters import check_parameters
from turnwise.providers.protocol import PARAMETERS


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("max_output_tokens", -5, "must be at least 1; it was -5"),
        ("max_output_tokens", 1.5, "must be a whole number; it was 1.5"),
        ("temperature", "hot", "must be a number; it was 'hot'"),
        ("temperature", -0.5, "must be at least 0; it was -0.5"),
        ("frequency_penalty", False, "must be a number; it was False"),
        ("tool_choice", ["t"], "must be a string; it was a value of type list"),
        ("parallel_tool_calls", "yes", "must be True or False; it was 'yes'"),
        ("provider_options", 3, "must be a mapping with string keys; it was 3"),
    ],
    ids=str,
)
async def test_invalid_parameter_is_refused(name: str, value: Any, problem: str) -> None:
    given = {name: value}
    refused = re.escape(f"parameters[{name!r}]: {problem}")
    with pytest.raises(InvalidArgument, match=refused):
        Settings(parameters=given)
    async with Engine("sqlite://", model="demo") as engine:
        with pytest.raises(InvalidArgument, match=refused):
            await engine.create_chat(parameters=given)
        chat = await engine.create_chat()
        with pytest.raises(InvalidArgument, match=refused):
            await engine.configure(chat.id, parameters=given)


def test_valid_parameters_are_accepted() -> None:
    check_parameters(
        {
            "max_output_tokens": 1,
            "temperature": 0,
            "top_p": 1.0,
            "top_k": -1,
            "presence_penalty": -2,
            "frequency_penalty": 0.5,
            "tool_choice": "look",
            "parallel_tool_calls": False,
            "provider_options": {"seed": 7},
        }
    )
    check_parameters(dict.fromkeys(PARAMETERS))
