"""The parameters of one call, translated for pydantic-ai."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_ai.native_tools import WebSearchTool

from turnwise import ModelError
from turnwise.providers.parameters import PARAMETERS
from turnwise.providers.protocol import ModelRequest, ToolSpec
from turnwise.providers.pydantic_ai.parameters import offer_of, settings_of
from turnwise.states.messages import Message

LOOK = ToolSpec(name="look", description="Look.", schema={"type": "object"})
ALWAYS = {"cache": True, "max_retries": 0}


def request(*, tools: tuple[ToolSpec, ...] = (LOOK,), system: str | None = None, **parameters: Any) -> ModelRequest:
    return ModelRequest(
        purpose="step", chat_id="c1", messages=[], tools=list(tools), system=system, parameters=parameters
    )


@pytest.mark.parametrize(
    ("parameters", "configured", "settings"),
    [
        ({}, {}, {}),
        ({"temperature": 0.0, "top_p": None}, {"top_p": 0.9}, {"temperature": 0.0, "top_p": 0.9}),
        ({"max_output_tokens": 7}, {"max_tokens": 9, "seed": 1}, {"max_tokens": 7, "seed": 1}),
        ({}, {"cache": False, "max_retries": 5}, {"cache": False}),
        ({"provider_options": {"seed": 2, "extra": {"a": 1}}}, {"seed": 1}, {"seed": 2, "extra": {"a": 1}}),
        ({"provider_options": {"max_retries": 5}}, {}, {}),
        ({"tool_choice": "look"}, {}, {"tool_choice": ["look"]}),
    ],
    ids=str,
)
def test_request_parameters_override_configured_settings(
    parameters: dict[str, Any], configured: dict[str, Any], settings: dict[str, Any]
) -> None:
    before = dict(parameters)
    assert settings_of(request(**parameters), configured) == ALWAYS | settings  # type: ignore[arg-type]
    assert parameters == before


def message(role: Any, *, synthetic: bool = False) -> Message:
    return Message(id="m", role=role, parts=(), turn=1, step=1, created_at=datetime.now(UTC), synthetic=synthetic)


ASKED, CALLED, RAN = message("user"), message("assistant"), message("tool")
SUMMARY, REMINDED = message("user", synthetic=True), message("user", synthetic=True)


@pytest.mark.parametrize("name", ["openai_previous_response_id", "openai_conversation_id"])
@pytest.mark.parametrize("where", ["provider_options", "configured", "preset"])
@pytest.mark.parametrize(
    ("purpose", "messages", "goes_on"),
    [
        ("step", [ASKED], True),
        ("step", [ASKED, CALLED, RAN, CALLED, SUMMARY, ASKED, REMINDED], True),
        ("step", [ASKED, CALLED, RAN], False),
        ("step", [ASKED, CALLED, RAN, REMINDED], False),
        ("step", [SUMMARY], False),
        ("summary", [ASKED, CALLED, ASKED], False),
        ("title", [ASKED], False),
    ],
)
def test_only_first_step_continues_a_stored_conversation(
    name: str, where: str, purpose: Any, messages: list[Message], goes_on: bool
) -> None:
    """Later steps send the whole history, which the provider would then have twice."""
    options = {name: "resp_1"}
    asked = replace(request(**{where: options} if where == "provider_options" else {}), purpose=purpose)
    configured: Any = options if where == "configured" else {}
    settings = settings_of(replace(asked, messages=messages), configured, options if where == "preset" else None)  # type: ignore[arg-type]
    sent = {**(options if where == "preset" else {}), **settings}
    assert sent == ALWAYS | {name: "resp_1" if goes_on else None}


@pytest.mark.parametrize("purpose", ["step", "summary", "title"])
@pytest.mark.parametrize("most", [300, 4095, 4096])
@pytest.mark.parametrize("where", ["configured", "preset"])
def test_output_limit_spares_summaries_and_titles(where: str, most: int, purpose: Any) -> None:
    limit: Any = {"max_tokens": most}
    asked = replace(request(), purpose=purpose)
    settings = settings_of(asked, *((limit, None) if where == "configured" else ({}, limit)))
    sent = {**(limit if where == "preset" else {}), **settings}
    assert sent == ALWAYS | {"max_tokens": most if purpose == "step" or most == 4096 else None}


def test_unknown_parameters_are_rejected() -> None:
    for name in PARAMETERS:
        settings_of(request(**{name: None}), {})
    with pytest.raises(ModelError, match="unknown parameters: heat, humour") as refused:
        settings_of(request(humour=1, heat=2, top_p=0.5), {})
    assert refused.value.kind == "bad_request"


def test_offer_has_declared_and_native_tools() -> None:
    search = WebSearchTool()
    offer = offer_of(request(system="Be kind."), (search,))
    assert offer.native_tools == [search]
    (tool,) = offer.function_tools
    assert (tool.name, tool.description) == ("look", "Look.")
    assert (tool.parameters_json_schema, tool.strict) == ({"type": "object"}, False)
    assert offer.instruction_parts is not None
    assert [part.content for part in offer.instruction_parts] == ["Be kind."]
    assert not offer_of(request(), ()).instruction_parts
