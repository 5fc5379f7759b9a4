"""Models by name, such as `demo`, `openai:gpt-5` or `anthropic:claude-sonnet-4-5`."""

from __future__ import annotations

from importlib.util import find_spec

from turnwise.providers.failures import CannotAsk
from turnwise.providers.protocol import Model
from turnwise.states.errors import SettingsError


def model_named(name: str) -> Model:
    """Return the model that a string names; a provider's library is imported only when one is named.

    | string | is |
    | --- | --- |
    | `demo` | the embedded demo model |
    | `openai:NAME` | OpenAI, Chat Completions |
    | `openai-responses:NAME` | OpenAI, Responses |
    | `anthropic:NAME`, `google:NAME` | Anthropic, Gemini |
    | `openai-compatible:NAME@URL` | any service that speaks Chat Completions |
    | `PROVIDER:NAME` | any other provider that pydantic-ai knows |

    The key comes from the environment variable that the provider's own library reads, such as `OPENAI_API_KEY`; that of
    `openai-compatible:` is `OPENAI_COMPATIBLE_API_KEY`, so that no other service gets OpenAI's.

    `@URL` after a name is the base URL of a proxy, or of a service of your own, as in `ollama:qwen3@http://host:11434/v1`.

    Raises:
        CannotAsk: the `models` extra or a provider's library is missing, or its key, region or address is not set; a
            `SettingsError`.
        SettingsError: no such provider, or it takes no such address.
    """
    provider, _, rest = name.partition(":")
    if provider == "demo":
        from turnwise.providers.demo import DemoModel  # noqa: PLC0415 - few services want it

        return DemoModel(rest or "demo")
    if not rest:
        raise SettingsError("model", f"{name!r} names no model; write 'demo', or 'provider:name' as in 'openai:gpt-5'")
    if find_spec("pydantic_ai") is None:
        raise CannotAsk("model", f"{name!r} needs the extra `models`: pip install 'turnwise[models]'")
    from turnwise.providers.pydantic_ai import PydanticAIModel  # noqa: PLC0415 - it takes seconds to import

    return PydanticAIModel(name)
