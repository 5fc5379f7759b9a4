"""The parameters of a model call, checked where they are declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from turnwise.providers.protocol import PARAMETERS
from turnwise.states.errors import SettingsError
from turnwise.states.values.checked import fit
from turnwise.states.values.hints import validator_of
from turnwise.states.values.limits import said

_HINTS: Final[Mapping[str, Any]] = {
    "max_output_tokens": Annotated[int, Field(ge=1)],
    "temperature": Annotated[float, Field(ge=0)],
    "top_p": Annotated[float, Field(ge=0)],
    "top_k": int,
    "presence_penalty": float,
    "frequency_penalty": float,
    "tool_choice": Annotated[str, AfterValidator(said)],
    "parallel_tool_calls": bool,
    "web_search": bool | Mapping[str, Any],
    "provider_options": Mapping[str, Any],
}
_SEARCH: Final[Mapping[str, Any]] = {
    "allowed_domains": Sequence[str],
    "blocked_domains": Sequence[str],
    "max_uses": Annotated[int, Field(ge=1)],
    "user_location": Mapping[str, str],
    "search_context_size": Literal["low", "medium", "high"],
}
"""The options of a web search."""
_SHAPES: Final = {name: validator_of(hint) for name, hint in _HINTS.items()}
_SEARCH_SHAPES: Final = {name: validator_of(hint) for name, hint in _SEARCH.items()}


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise a `SettingsError` if one of the parameters of a model call is unknown, or is not what it has to be.

    `None` leaves a parameter to the provider. How much of each a provider takes is for the provider to say.
    """
    for name, value in parameters.items():
        if name not in PARAMETERS:
            allowed = ", ".join(map(repr, PARAMETERS))
            raise SettingsError(f"parameters[{name!r}]", f"must be one of {allowed}; it was {name!r}")
        if value is not None:
            fit(f"parameters[{name!r}]", _SHAPES[name], value)
    search = parameters.get("web_search")
    for name, value in search.items() if isinstance(search, Mapping) else ():
        where = f"parameters['web_search'][{name!r}]"
        if name not in _SEARCH_SHAPES:
            raise SettingsError(where, f"must be one of {', '.join(map(repr, _SEARCH))}; it was {name!r:.100}")
        if value is not None:
            fit(where, _SEARCH_SHAPES[name], value)
