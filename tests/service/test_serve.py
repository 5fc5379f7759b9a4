"""`turnwise serve`: real processes that serve, stop, are killed, and share a store."""

from __future__ import annotations

import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.processes.service_process import AUTHORIZED, running
from support.terminal import Terminal
from turnwise import SigningKey, verify_export

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
    """Create a chat, send a message, and return the chat's id."""
    chat = httpx.post(f"{url}/chats", json={}, headers=AUTHORIZED).json()["id"]
    sent = httpx.post(f"{url}/chats/{chat}/messages", json={"content": content}, headers=AUTHORIZED)
    assert sent.status_code == 202, sent.text
    return str(chat)


def lines_of(url: str, chat: str, **query: str) -> Iterator[str]:
    path = f"{url}/chats/{chat}/events"
    with httpx.stream("GET", path, params=query, headers=AUTHORIZED, timeout=60) as response:
        yield from response.iter_lines()


def unfinished(url: str, path: str = "/chats", begun: bytes = b"") -> socket.socket:
    """Begin a request whose body does not come, or not all of it."""
    slow = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
    lines = (f"POST {path} HTTP/1.1", "Host: x", "Authorization: Bearer operator-token", "Content-Length: 9")
    slow.sendall("\r\n".join([*lines, "", ""]).encode() + begun)
    return slow


def serving(folder: Path, *words: str) -> tuple[str, ...]:
    return ("serve", "shop:agents", "--port", "0", "--create", *words)


@pytest.mark.deep
def test_disconnecting_clients_cause_no_errors(folder: Path) -> None:
    with running(folder, *serving(folder)) as service:
        url = service.url()
        chat = ask(url, "Hello")
        with httpx.Client(headers=AUTHORIZED, timeout=60) as client:
            for place in range(60):
                with client.stream("GET", f"{url}/chats/{chat}/events") as response:
                    lines = response.iter_lines()
                    for _ in range(place % 12):
                        next(lines)
        for path in ("/chats", f"/chats/{chat}/messages", f"/files?chat={chat}", "/chats/import"):
            unfinished(url, path, b"hello").close()
        assert httpx.get(f"{url}/chats/{chat}", headers=AUTHORIZED).is_success
        assert service.stop() == 0
        assert not re.search("Traceback|Exception|Error", service.said()), service.said()


@pytest.mark.deep
def test_stop_ends_streams_and_releases_chats(folder: Path) -> None:
    """Neither a request that never comes to its end nor a call that runs can hold it up.

    The call that ran is not lost: the next process on the file goes on with it.
    """
    told: list[str] = []
    with running(folder, *serving(folder, "--shutdown-seconds", "1")) as first:
        url = first.url()
        slow = unfinished(url)
        chat = ask(url, "work 30")
        follower = threading.Thread(target=lambda: told.extend(lines_of(url, chat)))
        follower.start()
        while not any("executing_tools" in line for line in told):
            time.sleep(0.02)
        began = time.monotonic()
        code = first.stop()
        took = time.monotonic() - began
        follower.join(30)
        slow.close()
        said = first.said()
    assert not follower.is_alive()
    assert (code, "stopped" in said, "Traceback" in said) == (0, True, False), said
    assert took < 25
    assert [line for line in told if line.startswith("event:")][-1] == "event: reconnect"

    with running(folder, *serving(folder)) as second:
        url = second.url()
        assert httpx.get(f"{url}/chats/{chat}", headers=AUTHORIZED).json()["state"] in ("pending", "executing_tools")
        stopped = httpx.post(f"{url}/chats/{chat}/interrupt", headers=AUTHORIZED)
        verdict = httpx.get(f"{url}/chats/{chat}/verify", headers=AUTHORIZED).json()
    assert (stopped.status_code, verdict["ok"]) == (202, True)


def test_kill_in_mid_answer_loses_nothing(folder: Path) -> None:
    with running(folder, *serving(folder)) as first:
        url = first.url()
        chat = ask(url, "Count.")
        seen = next(line for line in lines_of(url, chat) if '"delta"' in line)
        first.stop(signal.SIGKILL)
    with running(folder, *serving(folder)) as second:
        url = second.url()
        lines = [line for line in lines_of(url, chat, until_rest="true") if line.startswith("data:")]
        messages = httpx.get(f"{url}/chats/{chat}/messages", headers=AUTHORIZED).json()
        verdict = httpx.get(f"{url}/chats/{chat}/verify", headers=AUTHORIZED).json()
    assert seen in lines
    assert [re.search(r'"seq":(\d+)', line)[1] for line in lines] == [str(number + 1) for number in range(len(lines))]  # type: ignore[index]
    assert messages[-1]["parts"][0]["text"] == "one two three four five six seven"
    assert verdict["ok"]


@pytest.mark.deep
def test_one_process_serves_and_another_works(folder: Path) -> None:
    """And each signs what it has committed."""
    key = SigningKey.generate()
    (folder / "audit.pem").write_bytes(key.private_pem)
    signed = ("--signing-key", "audit.pem", "--checkpoints")
    with running(folder, *serving(folder, "--no-worker", *signed, "api.jsonl")) as api:
        url = api.url()
        chat = ask(url, "Count.")
        waiting = httpx.get(f"{url}/chats/{chat}", headers=AUTHORIZED).json()["state"]
        with running(folder, "worker", "shop:agents", *signed, "worker.jsonl") as worker:
            events = [line for line in lines_of(url, chat, until_rest="true") if line.startswith("event:")]
            assert worker.stop() == 0
        log = httpx.get(f"{url}/chats/{chat}/audit", params={"export": True}, headers=AUTHORIZED).text
        assert api.stop() == 0
    verdicts = [
        verify_export(log, checkpoints=(folder / file).read_text(), public_key=key.public_pem)
        for file in ("api.jsonl", "worker.jsonl")
    ]
    assert waiting == "pending"
    assert events[-1] == "event: turn_finished"
    assert [verdict.problem for verdict in verdicts] == [None, None]
    assert verdicts[0].covered
    assert verdicts[1].covered == len(log.splitlines()) - 2


@pytest.mark.deep
def test_service_without_tokens_prints_one(folder: Path) -> None:
    with running(folder, *serving(folder), TURNWISE_TOKEN="") as service:
        url = service.url()
        said = service.said()
        token = said.partition("until this process ends: ")[2].split()[0]
        known = httpx.get(f"{url}/chats", headers={"Authorization": f"Bearer {token}"})
        unknown = httpx.get(f"{url}/chats", headers={"Authorization": "Bearer x"})
    assert (known.status_code, unknown.status_code) == (200, 401)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tokens", "nowhere.toml"], "tokens: 'nowhere.toml' cannot be read: FileNotFoundError"),
        (["--host", "256.0.0.1"], "--host, --port: cannot listen on 256.0.0.1 port 0"),
    ],
)
def test_wrong_options_end_in_one_sentence(tmp_path: Path, words: list[str], told: str) -> None:
    done = Terminal(tmp_path).run("serve", "support.processes.demo_agents:AGENTS", "--port", "0", "--create", *words)
    assert (done.code, told in done.words, "Traceback" in done.words) == (2, True, False), done


@pytest.mark.deep
def test_occupied_port_is_named(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with running(folder, "serve", "shop:agents", "--port", port, "--create") as service:
            assert service.popen.wait(60) == 2
            assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in service.said()


@pytest.mark.deep
def test_second_signal_ends_the_shutdown(folder: Path) -> None:
    with running(folder, *serving(folder, "--shutdown-seconds", "60")) as service:
        url = service.url()
        slow = unfinished(url)
        time.sleep(0.5)
        service.popen.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert service.popen.poll() is None
        assert service.stop(signal.SIGINT) == 0
        slow.close()
