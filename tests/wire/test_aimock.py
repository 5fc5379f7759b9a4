"""The same, against a fake provider that nobody here wrote: npm's `@copilotkit/aimock`, in four dialects."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest

from turnwise import ChatState, Engine, RetryPolicy, Settings, tool
from turnwise.providers.pydantic_ai import PydanticAIModel
from turnwise.states.messages import ReasoningPart

VERSION = "1.43.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnwise" / f"aimock-{VERSION}"
SETTINGS = Settings(
    startup_timeout=10, idle_timeout=10, retry=RetryPolicy(first_delay=0.01, max_delay=0.02, attempts=3)
)
NAMES = {
    "openai": "openai:gpt-5@{url}/v1",
    "openai-responses": "openai-responses:gpt-5@{url}/v1",
    "anthropic": "anthropic:claude-opus-5@{url}",
    "google": "google:gemini-2.5-flash@{url}",
}

pytestmark = [
    pytest.mark.skipif(shutil.which("npm") is None, reason="aimock runs on Node: neither node nor npm was found"),
    pytest.mark.xdist_group("aimock"),
]


@pytest.fixture(scope="module")
def aimock() -> Iterator[str]:
    """Run aimock on a free port, installed once into the user's cache, and give its address."""
    program = CACHE / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"
    if not program.exists():
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(mkdtemp(dir=CACHE.parent))
        subprocess.run(
            ["npm", "install", "--silent", "--no-audit", "--prefix", fresh, f"@copilotkit/aimock@{VERSION}"],  # noqa: S607
            check=True,
        )
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
    @tool(parallel_safe=True)
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    name = NAMES[provider].format(url=aimock)
    test = {"extra_headers": {"X-Test-Id": f"{provider}-{os.urandom(4).hex()}"}}
    async with (
        PydanticAIModel(name, settings=test) as model,  # type: ignore[arg-type]
        Engine("sqlite://", model=model, tools=[add], settings=settings) as engine,
    ):
        yield engine


async def test_a_reply_with_its_reasoning_is_stored(aimock: str, provider: str) -> None:
    async with _engine(aimock, provider) as engine:
        chat = await engine.create_chat(system="Be terse.")
        result = await engine.ask(chat.id, "Please greet me.")
    assert (result.chat.state, result.text) == (ChatState.waiting, "Hello from a server that nobody here wrote.")
    reasoning = [part for message in result.messages for part in message.parts if isinstance(part, ReasoningPart)]
    assert [part.text for part in reasoning] == ["A greeting."]
    assert (result.usage.input_tokens, result.usage.output_tokens) == (12, 5)


@pytest.mark.filterwarnings("ignore:FUNCTION_CALL is not a valid FinishReason")  # aimock's word, in Gemini's name
async def test_parallel_calls_are_run_and_answered(aimock: str, provider: str) -> None:
    async with _engine(aimock, provider) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "Please add.")
        messages = await engine.messages(chat.id)
    assert result.text == "3 and 7."
    assert [message.result.output for message in messages if message.result is not None] == [3, 7]


@pytest.mark.parametrize(
    ("plea", "kind", "status"),
    [("stumble", "server_error", 500), ("overload", "overloaded", 529), ("slow down", "rate_limit", 429)],
)
async def test_a_failure_that_may_pass_is_tried_again(
    aimock: str, provider: str, plea: str, kind: str, status: int
) -> None:
    async with _engine(aimock, provider) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, f"Please {plea}.")
        events = [event async for event in engine.events(chat.id, follow=False)]
    assert result.text == "Up again."
    retries = [event for event in events if event.kind == "retry"]
    assert [(retry.error.kind, retry.error.status) for retry in retries] == [(kind, status)]
    assert retries[0].delay >= (1 if kind == "rate_limit" else 0)


@pytest.mark.parametrize(("plea", "kind"), [("no key", "authentication"), ("no model", "unknown_model")])
async def test_a_refusal_ends_in_error(aimock: str, provider: str, plea: str, kind: str) -> None:
    async with _engine(aimock, provider) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, f"I have {plea}.")
        chat = await engine.wait(chat.id)
    assert chat.state is ChatState.error
    assert chat.last_error is not None
    assert (chat.last_error.kind, chat.last_error.attempt) == (kind, 1)


async def test_a_reply_that_is_cut_is_no_reply(aimock: str, provider: str) -> None:
    async with _engine(aimock, provider) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "Please be cut.")
        chat = await engine.wait(chat.id)
        replies = [message for message in await engine.messages(chat.id) if message.role == "assistant"]
    assert chat.state is ChatState.error
    assert chat.last_error is not None
    assert (chat.last_error.kind, chat.last_error.attempt) == ("network", 3)
    assert all(reply.partial for reply in replies)


async def test_an_interrupt_ends_the_reply_and_keeps_its_beginning(aimock: str, provider: str) -> None:
    async with _engine(aimock, provider) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "Please wait for ever.")
        async for event in engine.events(chat.id):
            if event.kind == "part":
                break
        await engine.interrupt(chat.id)
        chat = await engine.wait(chat.id)
        reply = (await engine.messages(chat.id))[-1]
    assert (chat.state, chat.settled) == (ChatState.interrupted, True)
    assert (reply.role, reply.partial, reply.text[:4]) == ("assistant", True, "This")
