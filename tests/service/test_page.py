"""The hooks of `@ai-sdk/react` in a real Chromium, on a page of another origin than the service's."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.async_api import Page, expect

from support.browser import Chromium
from support.processes.talkative_service import ServiceProcess
from support.served import GENEROUS, served
from turnwise import Engine, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

pytestmark = pytest.mark.deep

SOURCE = Path(__file__).parent / "npm" / "page.jsx"
VERSIONS = ("6", "7")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def origin(npm_modules: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bundle the page for either version of the SDK, and serve both."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "node_modules").symlink_to(npm_modules)
    (folder / "page.jsx").write_text(SOURCE.read_text())
    for version in VERSIONS:
        subprocess.run(
            [
                npm_modules / ".bin" / "esbuild",
                *("page.jsx", "--bundle", "--jsx=automatic", f"--outfile=page-{version}.js", "--log-level=warning"),
                *(f"--alias:hooks=ai-react-{version}", f"--alias:sdk=ai-{version}"),
                '--define:process.env.NODE_ENV="production"',
            ],
            cwd=folder,
            check=True,
        )
        body = f'<!doctype html><title>A page</title><body><script src="page-{version}.js"></script>'
        (folder / f"page-{version}.html").write_text(body)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@tool(policy="ask")
async def pay(cents: int) -> str:
    """Pay money."""
    return f"paid {cents}"


def address(origin: str, url: str, version: str, token: str) -> str:
    query = urlencode({"url": url, "token": token, "thread": f"tab-{version}", "version": version})
    return f"{origin}/page-{version}.html?{query}"


async def say(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Send").click()


async def opened_anew(page: Page) -> None:
    """Open a page once more: it shows what it has shown."""
    sections = page.locator("section")
    shown_before = await sections.all_inner_texts()
    await page.reload()
    await expect(page.locator("#status")).to_have_text("ready")
    await expect(sections).to_have_text(shown_before, use_inner_text=True)


@pytest.mark.parametrize("version", VERSIONS)
async def test_react_hooks_send_answer_allow_and_stop(origin: str, version: str, chromium: Chromium) -> None:
    model = ScriptedModel(
        [
            Reply("Hello, Ada.", reasoning="Who is it?"),
            Reply(calls=[Call("pick_date", {"near": "May"})]),
            "Booked.",
            Reply(calls=[Call("pay", {"cents": 3})]),
            "It is paid for.",
            Reply("One two three", chunks=3, stall_after=1),
            "Again.",
        ]
    )
    settings = type(GENEROUS)(requests_per_second=10_000, burst=10_000, allow_origins=(origin,))
    engine = Engine("sqlite://", model=model, tools=[pay])
    async with served(engine, settings=settings) as service, chromium.page() as page:
        await page.goto(address(origin, service.url, version, "ada-token"))
        answer, state = page.locator("section.assistant").last, page.locator("#status")
        for said, shown in (("Hi!", "Hello, Ada."), ("A table!", "Booked.")):
            await say(page, said)
            await expect(answer).to_contain_text(shown)
        await expect(answer).to_contain_text('pick_date output-available "Friday"')
        await say(page, "Pay!")
        await expect(answer).to_contain_text("pay approval-requested")
        await opened_anew(page)
        await page.get_by_role("button", name="Allow").click()
        await expect(answer).to_contain_text("It is paid for.")
        await expect(answer).to_contain_text('pay output-available "paid 3"')
        await say(page, "Count!")
        await expect(answer).to_contain_text("One")
        await page.get_by_role("button", name="Stop").click()
        await expect(state).to_have_text("ready")
        await say(page, "Again!")
        await expect(answer).to_have_text("Again.")
        await opened_anew(page)
        chats = (await service.engine.list_chats()).items
        roles = [message.role for message in await service.engine.messages(chats[0].id)]
        assert await page.locator("#error").inner_text() == ""
    assert len(chats) == 1
    assert roles == [
        *("user", "assistant"),
        *("user", "assistant", "tool", "assistant"),
        *("user", "assistant", "tool", "assistant"),
        *("user", "assistant"),
        *("user", "assistant"),
    ]


@pytest.fixture
def service(origin: str, tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess.running(f"sqlite:///{tmp_path}/chats.db", "--allow-origin", origin) as running:
        yield running
