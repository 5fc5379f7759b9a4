"""Model names: their models, and errors of unusable ones."""

import subprocess
import sys
from contextlib import suppress

import pytest
from google.auth.exceptions import DefaultCredentialsError
from pydantic_ai.exceptions import UserError

from turnwise import Engine, SettingsError
from turnwise.providers import from_name
from turnwise.providers.failures import CannotAsk
from turnwise.providers.from_name import model_named
from turnwise.providers.pydantic_ai import PydanticAIModel, naming

KEYS = (
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GOOGLE_API_KEY",
    "GEMINI_API_KEY",
    "OPENAI_BASE_URL",
    "DEEPSEEK_API_KEY",
    "AZURE_OPENAI_ENDPOINT",
    "OLLAMA_BASE_URL",
)


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)


@pytest.mark.parametrize(
    ("name", "kind", "provider", "model", "limit"),
    [
        ("openai:gpt-5", "OpenAIChatModel", "openai", "gpt-5", 400_000),
        ("openai-responses:gpt-5", "OpenAIResponsesModel", "openai", "gpt-5", 400_000),
        ("anthropic:claude-opus-5", "AnthropicModel", "anthropic", "claude-opus-5", 1_000_000),
        ("google:gemini-2.5-flash", "GoogleModel", "google", "gemini-2.5-flash", None),
    ],
)
def test_name_resolves_to_the_model_class_of_its_provider(
    name: str, kind: str, provider: str, model: str, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in KEYS[:3]:
        monkeypatch.setenv(key, "a-test-key")
    found = model_named(name)
    assert isinstance(found, PydanticAIModel)
    assert (type(found._model).__name__, found.provider, found.name) == (kind, provider, model)
    assert limit is None or found.context_limit == limit


def test_url_may_follow_the_name() -> None:
    found = model_named("openai-compatible:vendor/model@http://127.0.0.1:1/v1")
    assert found.name == "vendor/model"
    assert (found.provider, found._model.base_url) == ("openai-compatible", "http://127.0.0.1:1/v1/")


@pytest.mark.parametrize(
    ("name", "wish"),
    [
        ("openai:gpt-5", "OPENAI_API_KEY is not set"),
        ("openai-responses:gpt-5", "OPENAI_API_KEY is not set"),
        ("anthropic:claude-opus-5", "ANTHROPIC_API_KEY is not set"),
        ("google:gemini-2.5-flash", "GOOGLE_API_KEY is not set"),
        ("deepseek:chat", "DEEPSEEK_API_KEY"),
        ("azure:gpt-5", "is not set up: Must provide the `azure_endpoint` argument or set the `AZURE_OPENAI_ENDPOINT`"),
        ("ollama:qwen3", "is not set up: Set the `OLLAMA_BASE_URL`"),
        ("litellm:gpt-5", "write 'openai-compatible:NAME@https://host/v1', and set OPENAI_COMPATIBLE_API_KEY"),
        ("litellm:gpt-5@http://127.0.0.1:1", "write 'openai-compatible:NAME@https://host/v1'"),
        ("nonsense:model", "known are demo, alibaba, anthropic, azure, bedrock,"),
        ("gpt-5", "'provider:name' as in 'openai:gpt-5'"),
        ("openai:", "'provider:name' as in 'openai:gpt-5'"),
        ("openai-compatible:local", "openai-compatible:NAME@https://host/v1"),
        ("deepseek:chat@http://127.0.0.1:1", "takes no address; write 'openai-compatible:NAME@http://127.0.0.1:1'"),
        ("openai-compatible:local@http://[::1", "cannot be used: InvalidURL: "),
    ],
)
def test_invalid_name_error_says_what_would_be_right(name: str, wish: str) -> None:
    with pytest.raises(SettingsError, match="nothing was stored") as refused:
        Engine("sqlite://", model=name)
    assert refused.value.field == "model"
    assert isinstance(refused.value, CannotAsk) == ("is not set" in wish or "DEEPSEEK" in wish)
    assert ("needs a key" in str(refused.value)) == ("_API_KEY is not set" in wish)
    assert wish in refused.value.problem
    assert repr(name) in refused.value.problem


def test_every_provider_that_an_error_lists_is_known() -> None:
    listed = naming.known_providers()
    assert {"ollama", "openrouter", "vllm", "google-cloud", "openai-compatible", "groq", "mistral"} <= {*listed}
    unknown = []
    for name in listed:
        with suppress(CannotAsk):  # it needs a key, or a library
            try:
                model_named(f"{name}:some-model@http://127.0.0.1:1/v1")
            except SettingsError as error:
                unknown += [name] * ("known are" in error.problem)
    assert unknown == []


def key_of(name: str) -> str:
    found = model_named(name)
    return str(found._model.provider.client.api_key)


def test_service_with_a_url_gets_only_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "for-openai")
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", "for-another")
    assert key_of("openai:gpt-5@http://127.0.0.1:1/v1") == "for-openai"
    assert key_of("openai-compatible:local@http://127.0.0.1:1/v1") == "for-another"


def test_missing_library_and_defect_have_their_own_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_args: object) -> None:
        raise ImportError("pip install brain")

    def broken(*_args: object) -> None:
        raise TypeError("a defect")

    monkeypatch.setattr(naming, "infer_model", missing)
    with pytest.raises(CannotAsk, match="a library that is not installed: pip install brain"):
        model_named("openai:gpt-5")
    monkeypatch.setattr(naming, "infer_model", broken)
    with pytest.raises(SettingsError, match="cannot be used: TypeError: a defect"):
        model_named("openai:gpt-5")


@pytest.mark.parametrize(
    ("name", "error", "wish"),
    [
        (
            "bedrock:claude",
            UserError("You must provide a `region_name`."),
            "`region_name`; set AWS_DEFAULT_REGION,",
        ),
        ("google-cloud:gemini", DefaultCredentialsError("None found."), "None found; set GOOGLE_CLOUD_PROJECT, too"),
    ],
)
def test_missing_region_or_credentials_are_no_missing_key(
    name: str, error: Exception, wish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The libraries' own messages, with the variable to set."""

    def refuse(*_args: object) -> None:
        raise error

    monkeypatch.setattr(naming, "infer_model", refuse)
    with pytest.raises(CannotAsk) as refused:
        model_named(name)
    assert f"is not set up: {error.args[0].rstrip('.')}" in refused.value.problem
    assert wish in refused.value.problem


def test_missing_extra_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_name, "find_spec", lambda _name: None)
    with pytest.raises(CannotAsk, match=r"pip install 'turnwise\[models\]'"):
        model_named("openai:gpt-5")


def test_import_loads_no_library_that_only_some_need() -> None:
    heavy = [
        "pydantic_ai",
        "openai",
        "anthropic",
        "google.genai",
        "httpx",
        "httpx2",
        "obstore",
        "typer",
        "asyncpg",
        "mcp",
        "opentelemetry",
        "prometheus_client",
    ]
    script = "import sys; from turnwise import Engine; Engine('sqlite://', model='demo')"
    run = subprocess.run(
        [sys.executable, "-c", f"{script}; print(sorted({{*{heavy}}} & set(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (run.stdout.strip(), run.stderr) == ("[]", "")
