"""Settings of a call that is offered tools in a provider's own words; `tests/wire` has what goes out with them."""

from __future__ import annotations

from pydantic_ai.settings import ModelSettings

from turnwise import ProviderDefinition, ToolSpec
from turnwise.providers.pydantic_ai.definitions import with_definitions

BASH = ToolSpec(
    "bash", "", {"type": "object"}, ProviderDefinition("anthropic", {"type": "bash_20250124", "name": "bash"})
)


def test_where_the_choice_leaves_no_tool_none_is_marked_for_the_cache() -> None:
    settings = ModelSettings(cache=True, tool_choice=["another"])
    assert with_definitions(settings, [BASH], None)["extra_body"] == {"tools": []}
