"""The chat pages of the tutorials `web-page` and `plain-page`, built from their text, in a real browser."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect
from tests.service.browser import Chromium

from support.tutorials import write_files
from turnwise import Engine, Settings

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
QUESTION = "Please find order 4711."
ANSWER = "Order 4711: a blue vase"

both_pages = pytest.mark.parametrize("name", ["index.html", pytest.param("plain.html", marks=pytest.mark.deep)])


@dataclass
class Shop:
    """The tutorial's folder, and its server."""

    folder: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator["subprocess.Popen[bytes]"]:
        """Serve the application in the block, as `uvicorn shop:app` does."""
        command = [sys.executable, "-m", "uvicorn", "shop:app", "--port", str(self.port)]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        with (self.folder / "log").open("ab") as log:
            server = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        try:
            with httpx.Client(base_url=self.url, timeout=60) as client:
                while not self._is_ready(client):
                    assert server.poll() is None, (self.folder / "log").read_text()
                    time.sleep(0.05)
            yield server
        finally:
            server.kill()
            server.wait()

    def _is_ready(self, client: httpx.Client) -> bool:
        try:
            return client.get("/api/readyz").is_success
        except httpx.TransportError:
            return False

    async def questions(self) -> list[str]:
        settings = Settings(run_worker=False)
        async with Engine(f"sqlite:///{self.folder}/chats.db", model="demo", settings=settings) as engine:
            chats = (await engine.list_chats()).items
            return [one.text for chat in chats for one in await engine.messages(chat.id) if one.role == "user"]


@pytest.fixture
def shop(npm_modules: Path, tmp_path: Path) -> Shop:
    write_files("web-page", tmp_path)
    write_files("plain-page", tmp_path)
    (tmp_path / "node_modules").symlink_to(npm_modules)
    bundle = ["node_modules/.bin/esbuild", "page.jsx", "--bundle", "--jsx=automatic", "--outfile=page.js"]
    subprocess.run(bundle, cwd=tmp_path, check=True, capture_output=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return Shop(tmp_path, listener.getsockname()[1])


async def log_in(page: Page, url: str, user: str = "ada") -> None:
    await page.goto(url)
    await page.get_by_placeholder("Name").fill(user)
    await page.get_by_placeholder("Password").fill({"ada": "lovelace", "bob": "dylan"}[user])
    await page.get_by_role("button", name="Log in").click()


async def say(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Send").click()


async def says(page: Page, text: str, place: int = -1) -> None:
    """Expect a text in an article of the page, by default the last one."""
    await expect(page.locator("article").nth(place)).to_contain_text(text)


async def expect_one_turn(page: Page) -> None:
    """Expect one question, and its answer once."""
    await expect(page.locator("article.user")).to_have_count(1)
    await expect(page.locator("article", has_text="due on Friday")).to_have_count(1)


@both_pages
async def test_page_streams_stops_edits_and_reloads(shop: Shop, chromium: Chromium, name: str) -> None:
    with shop.running():
        async with chromium.page() as page:
            await log_in(page, f"{shop.url}/{name}")
            await say(page, QUESTION)
            await says(page, "Let me ask")
            await says(page, ANSWER)
            await page.get_by_role("button", name="Stop").click()
            await expect(page.get_by_role("button", name="Send")).to_be_visible()
            assert "due on Friday" not in await page.locator("article").last.inner_text()
            page.on("dialog", lambda dialog: dialog.accept("Please find order 4712."))
            await page.get_by_role("button", name="Edit").click()
            await says(page, "Order 4712")
            await page.reload()
            await says(page, "due on Friday")
            await expect_one_turn(page)
    assert await shop.questions() == ["Please find order 4712."]


@both_pages
async def test_page_survives_kill_9_of_the_server(shop: Shop, chromium: Chromium, name: str) -> None:
    async with chromium.page() as page:
        with shop.running() as server:
            await log_in(page, f"{shop.url}/{name}")
            await say(page, QUESTION)
            await says(page, ANSWER)
            server.send_signal(signal.SIGKILL)
            await expect(page.get_by_text("The connection is lost.")).to_be_visible()
        with shop.running():
            await says(page, "due on Friday")
            await expect_one_turn(page)
    assert await shop.questions() == [QUESTION]


@both_pages
async def test_page_approves_a_refund(shop: Shop, chromium: Chromium, name: str, tmp_path: Path) -> None:
    """A plain run stores the picture with the test's files; `PICTURES=1` puts it into the tutorial."""
    with shop.running():
        async with chromium.page(viewport={"width": 720, "height": 660}) as page:
            await log_in(page, f"{shop.url}/{name}")
            await say(page, QUESTION)
            await says(page, "due on Friday")
            await expect(page.get_by_role("button", name="Send")).to_be_visible()
            await say(page, "Refund order 4711, please.")
            await expect(page.get_by_role("button", name="Allow")).to_be_visible()
            await page.reload()
            await expect(page.get_by_role("button", name="Allow")).to_be_visible()
            folder = PICTURES if os.environ.get("PICTURES") else tmp_path
            if name == "index.html":
                await page.screenshot(path=folder / "tutorial-page.png")
            await page.get_by_role("button", name="Allow").click()
            await says(page, "Order 4711 is refunded.")
            await expect(page.get_by_role("button", name="Allow")).to_have_count(0)


@both_pages
async def test_page_shows_why_an_edit_fails(shop: Shop, chromium: Chromium, name: str) -> None:
    """The page scrolls to the newest article."""
    with shop.running():
        async with chromium.page(viewport={"width": 720, "height": 200}) as page:
            page.on("dialog", lambda dialog: dialog.accept("Please find order 4712."))
            await log_in(page, f"{shop.url}/{name}")
            await say(page, QUESTION)
            await says(page, "due on Friday")
            await expect(page.get_by_role("button", name="Send")).to_be_in_viewport()
            await page.context.clear_cookies()
            async with page.expect_event("dialog", lambda dialog: dialog.type == "alert") as alert:
                await page.get_by_role("button", name="Edit").click()
            assert "sign in" in (await alert.value).message
    assert await shop.questions() == [QUESTION]


async def test_page_shows_no_chat_of_another_user(shop: Shop, chromium: Chromium) -> None:
    with shop.running():
        async with chromium.page() as page, httpx.AsyncClient(base_url=shop.url, timeout=60) as bob:
            await log_in(page, f"{shop.url}/index.html")
            await say(page, QUESTION)
            await says(page, ANSWER)
            chat = page.url.partition("#")[2]
            assert re.fullmatch(r"c[0-9a-f]+", chat)
            assert (await bob.get(f"/api/chats/{chat}")).status_code == 401
            assert (await bob.post("/login", json={"name": "bob", "password": ""})).status_code == 403
            assert (await bob.post("/login", json={"name": "bob", "password": "dylan"})).status_code == 200
            assert (await bob.get(f"/api/chats/{chat}")).status_code == 404
            async with chromium.page() as page_of_bob:
                await log_in(page_of_bob, page.url, "bob")
                await expect(page_of_bob.get_by_text(f"there is no chat '{chat}'")).to_be_visible()
            foreign = await bob.post("/api/chats", json={}, headers={"Origin": "https://evil.example"})
            assert foreign.status_code == 401
