"""Naming: the model of pydantic-ai that a string like `openai:gpt-5` stands for."""

from __future__ import annotations

import os
import re
from typing import Any, Final, get_args

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import KnownModelName, Model, OpenAIChatCompatibleProvider, infer_model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class

from turnwise.providers.failures import CannotAsk
from turnwise.states.errors import SettingsError
from turnwise.states.values.plain import type_name

_BASE_URL: Final = re.compile(r"(?P<name>.+?)@(?P<url>https?://.+)")
_KINDS: Final = {"openai": "openai-chat", "openai-compatible": "openai-chat"}
"""pydantic-ai's names, where they differ: its own `openai` is the Responses API."""
_KEYS: Final = {
    "openai": "OPENAI_API_KEY",
    "openai-chat": "OPENAI_API_KEY",
    "openai-responses": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "google": "GOOGLE_API_KEY",
}
_COMPATIBLE_KEY: Final = "OPENAI_COMPATIBLE_API_KEY"
_SET: Final = {
    "bedrock": "; set AWS_DEFAULT_REGION, and AWS credentials or AWS_BEARER_TOKEN_BEDROCK",
    "google-cloud": "; set GOOGLE_CLOUD_PROJECT, too",
}
"""The variables to set, where the provider's error does not name them."""


def their_model(text: str) -> Model:
    """Return the model that `text` names, see `model_named`."""
    kind, _, rest = text.partition(":")
    at = _BASE_URL.fullmatch(rest)
    name, base_url = (at["name"], at["url"]) if at else (rest, None)
    if kind == "openai-compatible" and base_url is None:
        raise SettingsError("model", f"{text!r} has no address; write 'openai-compatible:NAME@https://host/v1'")
    if kind == "litellm":  # its provider reads neither an address nor a key, and would ask OpenAI
        problem = f"write 'openai-compatible:NAME@https://host/v1', and set {_COMPATIBLE_KEY} to your proxy's key"
        raise SettingsError("model", f"{text!r} does not name your LiteLLM proxy; {problem}")
    try:
        return infer_model(f"{_KINDS.get(kind, kind)}:{name}", lambda their_kind: _provider(kind, their_kind, base_url))
    except Exception as error:  # providers' libraries have errors of their own for addresses
        refusal = CannotAsk if isinstance(error, ImportError) or _is_not_set_up(error) else SettingsError
        raise refusal("model", f"{text!r}{_problem(error, kind, base_url)}") from error


def _problem(error: Exception, kind: str, base_url: str | None) -> str:
    match error:
        case ValueError() if not _is_known(_KINDS.get(kind, kind)):
            return f" names no known provider; known are {', '.join(known_providers())}"
        case ImportError():
            return f" needs a library that is not installed: {error}"
        case UserError() if key := _KEYS.get(kind):
            return f" needs a key: {key} is not set; set it, or pass a PydanticAIModel that has its key"
        case _ if _is_not_set_up(error):
            return f" is not set up: {str(error).rstrip('.')}{_SET.get(kind, '')}"
        case TypeError() if base_url is not None:
            instead = f"write 'openai-compatible:NAME@{base_url}' if it speaks Chat Completions"
            return f": {kind} takes no address; {instead}"
        case _:
            return f" cannot be used: {type_name(error)}: {error}"


def _is_not_set_up(error: Exception) -> bool:
    """Whether a key, an address, a region or credentials are missing in the environment."""
    return isinstance(error, UserError) or type_name(error) == "DefaultCredentialsError"  # google.auth's


def known_providers() -> list[str]:
    """Return what may stand before the colon: `demo`, turnwise's own words, and every provider of pydantic-ai's models.

    For some of them a library of their own must be installed.
    """
    named = {name.partition(":")[0] for name in get_args(KnownModelName.__value__)} - {"test"}
    theirs = {*named, *get_args(OpenAIChatCompatibleProvider.__value__)}
    return ["demo", *sorted({*_KEYS, *_KINDS, *theirs} - {"litellm"})]


def _is_known(their_kind: str) -> bool:
    try:
        infer_provider_class(their_kind)
    except ValueError:
        return False
    return True


def _provider(kind: str, their_kind: str, base_url: str | None) -> Provider[Any]:
    if base_url is None:
        return infer_provider(their_kind)
    if kind == "openai-compatible":
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider  # noqa: PLC0415 - needs openai

        return OpenAICompatibleProvider(kind, base_url=base_url, api_key=os.environ.get(_COMPATIBLE_KEY))
    configurable: Any = infer_provider_class(their_kind)
    provider: Provider[Any] = configurable(base_url=base_url)
    return provider


def classes_of(model: Model) -> frozenset[str]:
    """Return the names of a model's classes; of one that wraps another, those of the other."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    return frozenset(base.__name__ for base in type(model).__mro__)
