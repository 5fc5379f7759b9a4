"""`turnwise serve`: real processes that serve, stop, are killed, and share a store."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.processes.service_process import AUTHORIZED, running
from support.terminal import Terminal

AGENTS = """
import asyncio

from turnwise import Agent, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel


@tool(crash="at_least_once")
async def work(seconds: float) -> str:
    "Work."
    await asyncio.sleep(seconds)
    return "worked"


def answer(request):
    last = request.messages[-1]
    if last.role == "user" and last.text.startswith("work "):
        return Reply(calls=[Call("work", {"seconds": float(last.text.split()[1])})])
    return Reply("one two three four five six seven", chunks=4, delay=0.2)


agents = [Agent("support", ScriptedModel(answer), tools=[work])]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(AGENTS)
    return tmp_path


def ask(url: str, content: str) -> str:
    with httpx.Client(base_url=url, headers=AUTHORIZED, timeout=60) as client:
        chat = client.post("/chats", json={}).json()["id"]
        sent = client.post(f"/chats/{chat}/messages", json={"content": content})
    assert sent.status_code == 202, sent.text
    return str(chat)


def lines_of(url: str, chat: str, **query: str) -> Iterator[str]:
    path = f"{url}/chats/{chat}/events"
    with httpx.stream("GET", path, params=query, headers=AUTHORIZED, timeout=60) as response:
        yield from response.iter_lines()


def serving(folder: Path, *words: str) -> tuple[str, ...]:
    return ("serve", "shop:agents", "--port", "0", "--create", *words)


def test_kill_in_mid_answer_loses_nothing(folder: Path) -> None:
    with running(folder, *serving(folder)) as first:
        url = first.url()
        chat = ask(url, "Count.")
        seen = next(line for line in lines_of(url, chat) if '"delta"' in line)
        first.stop(signal.SIGKILL)
    with running(folder, *serving(folder)) as second:
        url = second.url()
        lines = [line for line in lines_of(url, chat, until_rest="true") if line.startswith("data:")]
        messages = httpx.get(f"{url}/chats/{chat}/messages", headers=AUTHORIZED, timeout=60).json()
        verdict = httpx.get(f"{url}/chats/{chat}/verify", headers=AUTHORIZED, timeout=60).json()
    assert seen in lines
    assert [re.search(r'"seq":(\d+)', line)[1] for line in lines] == [str(number + 1) for number in range(len(lines))]  # type: ignore[index]
    assert messages[-1]["parts"][0]["text"] == "one two three four five six seven"
    assert verdict["ok"]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--tokens", "nowhere.toml"], "tokens: 'nowhere.toml' cannot be read: FileNotFoundError"),
        (["--host", "256.0.0.1"], "--host, --port: cannot listen on 256.0.0.1 port 0"),
    ],
)
def test_wrong_options_end_in_one_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    done = Terminal(tmp_path).run("serve", "support.processes.demo_agents:AGENTS", "--port", "0", "--create", *words)
    assert (done.code, sentence in done.words, "Traceback" in done.words) == (2, True, False), done
