"""Replies of an independent fake provider, npm's `@copilotkit/aimock`, in four dialects."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest

from turnwise import ChatState, Engine, RetryPolicy, Settings
from turnwise.providers.pydantic_ai import PydanticAIModel
from turnwise.states.messages import ReasoningPart

VERSION = "1.43.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnwise" / f"aimock-{VERSION}"
SETTINGS = Settings(
    startup_timeout=60, idle_timeout=60, retry=RetryPolicy(first_delay=0.01, max_delay=0.02, attempts=3)
)
NAMES = {
    "openai": "openai:gpt-5@{url}/v1",
    "openai-responses": "openai-responses:gpt-5@{url}/v1",
    "anthropic": "anthropic:claude-opus-5@{url}",
    "google": "google:gemini-2.5-flash@{url}",
}

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(shutil.which("npm") is None, reason="aimock runs on Node: neither node nor npm was found"),
    pytest.mark.xdist_group("aimock"),
]


@pytest.fixture(scope="module")
def aimock() -> Iterator[str]:
    """Run aimock on a free port, installed once into the user's cache; return its address."""
    program = CACHE / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"
    if not program.exists():
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(mkdtemp(dir=CACHE.parent))
        command = ["npm", "install", "--silent", "--no-audit", "--prefix", fresh, f"@copilotkit/aimock@{VERSION}"]
        if subprocess.run(command, check=False).returncode:
            pytest.skip("npm cannot install aimock")
        if not CACHE.exists():
            fresh.rename(CACHE)
    fixtures = Path(__file__).with_name("aimock.json")
    command = ["node", program, "--port", "0", "--fixtures", fixtures, "--strict"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        url = next(line.rpartition(" ")[2].strip() for line in running.stdout if "listening on" in line)
        yield url
        running.terminate()


@pytest.fixture(params=NAMES)
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def _engine(aimock: str, provider: str, settings: Settings = SETTINGS) -> AsyncIterator[Engine]:
    name = NAMES[provider].format(url=aimock)
    test = {"extra_headers": {"X-Test-Id": f"{provider}-{os.urandom(4).hex()}"}}
    async with (
        PydanticAIModel(name, settings=test) as model,  # type: ignore[arg-type]
        Engine("sqlite://", model=model, settings=settings) as engine,
    ):
        yield engine


async def test_reply_with_reasoning_is_stored(aimock: str, provider: str) -> None:
    async with _engine(aimock, provider) as engine:
        chat = await engine.create_chat(system="Be terse.")
        result = await engine.ask(chat.id, "Please greet me.")
    assert (result.chat.state, result.text) == (ChatState.waiting, "Hello from a server that nobody here wrote.")
    reasoning = [part for message in result.messages for part in message.parts if isinstance(part, ReasoningPart)]
    assert [part.text for part in reasoning] == ["A greeting."]
    assert (result.usage.input_tokens, result.usage.output_tokens) == (12, 5)


@pytest.mark.parametrize(
    ("plea", "kind", "status"),
    [("stumble", "server_error", 500), ("overload", "overloaded", 529), ("slow down", "rate_limit", 429)],
)
async def test_transient_failure_is_retried(aimock: str, provider: str, plea: str, kind: str, status: int) -> None:
    async with _engine(aimock, provider) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, f"Please {plea}.")
        events = [event async for event in engine.events(chat.id, follow=False)]
    assert result.text == "Up again."
    retries = [event for event in events if event.kind == "retry"]
    assert [(retry.error.kind, retry.error.status) for retry in retries] == [(kind, status)]
    assert retries[0].delay >= (1 if kind == "rate_limit" else 0)
