"""A rolling deploy: old and new workers share one store; nothing is lost and no attempt is wasted."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnwise import Agent, ChatState, Engine, Settings, ToolResult

pytestmark = pytest.mark.deep

SHOP = '''
"""The shop's agents, as the version that is named by SHOP_VERSION declares them."""

import os
from pathlib import Path

from turnwise import Agent, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

VERSION = os.environ["SHOP_VERSION"]


@tool(policy="ask", crash="at_most_once")
async def refund(order: str) -> str:
    """Pay an order back."""
    with Path("world").open("a") as world:
        world.write(f"refund {order} by {VERSION}\\n")
    return "paid"


@tool
async def look(order: str) -> str:
    """Look an order up."""
    return f"{order} as {VERSION} sees it"


def reply(request):
    wanted, _, order = request.messages[-1].text.partition(" ")
    if request.messages[-1].role == "user" and wanted in [spec.name for spec in request.tools]:
        return Reply(calls=[Call(wanted, {"order": order}, id=f"{wanted}-{order}")])
    return "done"


support = Agent(
    "support",
    ScriptedModel(reply),
    tools=[refund] if VERSION == "old" else [look],
    version=VERSION,
)
'''


@contextlib.contextmanager
def deployed(version: str, url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker of a version; on exit, stop it as a deploy does."""
    command = [sys.executable, "-m", "turnwise", "worker", "shop:support", "--quiet", "--store", url, "--create"]
    environment = os.environ | {"SHOP_VERSION": version}
    worker = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield worker
        worker.terminate()
        assert worker.wait(300) in (0, -signal.SIGTERM)  # SIGTERM, if it had hardly started
    finally:
        worker.kill()
        worker.wait()


async def test_approved_call_waits_for_a_worker_with_its_tool(url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    client = Engine(url, agents=[Agent("support", "demo")], settings=Settings(run_worker=False))
    async with client:
        with deployed("old", url, tmp_path):
            asked = [await client.create_chat() for _ in range(3)]
            for number, chat in enumerate(asked):
                await client.send_message(chat.id, f"refund {number}")
            for chat in asked:
                assert (await client.wait(chat.id, timeout=300)).state == "requires_action"
        with deployed("new", url, tmp_path):
            for number, chat in enumerate(asked):
                await client.submit_tool_results(chat.id, [ToolResult(f"refund-{number}", output=True)])
            plain = await client.create_chat()
            await client.send_message(plain.id, "look 7")
            assert (await client.wait(plain.id, timeout=300)).state == "waiting"
            explained = [await client.explain(chat.id) for chat in asked]
            assert {(one.state, one.agent, one.tools_needed) for one in explained} == {
                (ChatState.pending, "support", ("refund",))
            }
            assert "waits for a worker that runs agent 'support' with tool 'refund'" in explained[0].reason
            assert not (tmp_path / "world").exists()
            with deployed("old", url, tmp_path):
                for chat in asked:
                    assert (
                        await client.wait(chat.id, until=[ChatState.waiting], timeout=300)
                    ).stop_reason == "end_turn"
        seen = await client.messages(plain.id)
        verdicts = [await client.verify(chat.id) for chat in (*asked, plain)]
    assert [message.result.output for message in seen if message.result] == ["7 as new sees it"]
    assert {message.agent_version for message in seen if message.role == "assistant"} == {"new"}
    assert sorted((tmp_path / "world").read_text().splitlines()) == [f"refund {number} by old" for number in range(3)]
    assert all(verdict.ok for verdict in verdicts), verdicts
