"""The parameters of a model call: each is declared once, with its bounds and other names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypedDict, get_type_hints

from pydantic import AfterValidator, Field

from turnwise.states.errors import SettingsError
from turnwise.states.values.checked import fit
from turnwise.states.values.hints import Validator, validator_of
from turnwise.states.values.limits import not_blank


class Called(NamedTuple):
    """In `Annotated`: other names of a parameter."""

    in_traces: str | None = None
    """The attribute of OpenTelemetry's conventions for generative AI."""
    by_pydantic_ai: str | None = None
    """The field of pydantic-ai's `ModelSettings`, where it is not the parameter's own name."""


class WebSearch(TypedDict, total=False):
    """The options of a web search."""

    allowed_domains: Sequence[str]
    blocked_domains: Sequence[str]
    max_uses: Annotated[int, Field(ge=1)]
    user_location: Mapping[str, str]
    search_context_size: Literal["low", "medium", "high"]


class ModelParameters(TypedDict, total=False):
    """The parameters of a model call; those that only one provider knows belong in `provider_options`."""

    max_output_tokens: Annotated[int, Field(ge=1), Called("gen_ai.request.max_tokens", by_pydantic_ai="max_tokens")]
    temperature: Annotated[float, Field(ge=0), Called("gen_ai.request.temperature")]
    top_p: Annotated[float, Field(ge=0), Called("gen_ai.request.top_p")]
    top_k: Annotated[int, Called("gen_ai.request.top_k")]
    presence_penalty: Annotated[float, Called("gen_ai.request.presence_penalty")]
    frequency_penalty: Annotated[float, Called("gen_ai.request.frequency_penalty")]
    tool_choice: Annotated[str, AfterValidator(not_blank)]
    parallel_tool_calls: bool
    web_search: bool | Mapping[str, Any]
    """Whether the provider searches the web, or `WebSearch` options for it."""
    provider_options: Mapping[str, Any]


_HINTS: Final = get_type_hints(ModelParameters, include_extras=True)
_CALLED: Final = {
    name: called
    for name, hint in _HINTS.items()
    for called in getattr(hint, "__metadata__", ())
    if type(called) is Called
}
PARAMETERS: Final = tuple(_HINTS)
"""The names of the parameters, in the order of their declaration."""
NAMES_IN_TRACES: Final = {name: called.in_traces for name, called in _CALLED.items() if called.in_traces}
"""OpenTelemetry's names of parameters."""
NAMES_IN_PYDANTIC_AI: Final = {name: called.by_pydantic_ai for name, called in _CALLED.items() if called.by_pydantic_ai}
"""pydantic-ai's names of parameters, where they differ."""
_SHAPES: Final = {name: validator_of(hint) for name, hint in _HINTS.items()}
_SEARCH_SHAPES: Final = {
    name: validator_of(hint) for name, hint in get_type_hints(WebSearch, include_extras=True).items()
}


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise a `SettingsError` if a parameter of a model call is unknown or invalid. `None` is always valid."""
    _check("parameters", parameters, _SHAPES)
    if isinstance(search := parameters.get("web_search"), Mapping):
        _check("parameters['web_search']", search, _SEARCH_SHAPES)


def _check(where: str, values: Mapping[str, Any], shapes: Mapping[str, Validator]) -> None:
    for name, value in values.items():
        if name not in shapes:
            allowed = ", ".join(map(repr, shapes))
            raise SettingsError(f"{where}[{name!r}]", f"must be one of {allowed}; it was {name!r:.100}")
        if value is not None:
            fit(f"{where}[{name!r}]", shapes[name], value)


FREE: Final = (None, "auto", "none")
"""Choices that do not force a call."""
_CHOICES: Final = ("tool_choice", "tool_config", "toolConfig")
"""The names of the parameter in turnwise, and in requests to OpenAI, Anthropic and Google."""
_CONTAINERS: Final = ("provider_options", "extra_body")
"""Parameters with other parameters inside."""


def forced_tool(parameters: Mapping[str, Any]) -> str | None:
    """Return the name of the tool that the model must call; `None` if it need not call one, or may choose."""
    choice = parameters.get("tool_choice")
    return choice if isinstance(choice, str) and choice not in (*FREE, "required") else None


def without_forced_choice(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters without a forced choice, also inside of `provider_options` and `extra_body`."""
    free = {name: value for name, value in parameters.items() if name not in _CHOICES or not _forces(value)}
    for name in _CONTAINERS:
        if isinstance(inner := free.get(name), Mapping):
            free[name] = without_forced_choice(inner)
    return free


def _forces(choice: Any) -> bool:
    if isinstance(choice, Mapping):
        config = choice.get("functionCallingConfig") or choice.get("function_calling_config") or choice
        words = (config.get("mode"), config.get("type")) if isinstance(config, Mapping) else ()
        mode = next((word for word in words if isinstance(word, str)), None)
        return mode is not None and mode.lower() not in FREE
    return choice not in FREE if isinstance(choice, str | None) else True
