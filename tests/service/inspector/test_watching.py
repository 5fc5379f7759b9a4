"""Watching a chat in a real Chromium, on both stores: streaming, after a reload, and while its worker dies."""

import re
import signal
from pathlib import Path

import anyio
import pytest
from playwright.async_api import Route, expect
from tests.service.browser import Chromium
from tests.service.inspector.inspected import look

from support.gated_model import PacedModel
from support.processes.service_process import running
from support.served import Served, served
from turnwise import Engine, Settings
from turnwise.providers.scripted import Reply, ScriptedModel

TESTS = Path(__file__).parents[2]


WORDS = [f"word{number} " for number in range(10)]


async def test_chat_is_watched_live_reloaded_and_stopped(store: str, chromium: Chromium) -> None:
    model = PacedModel([Reply("".join(WORDS), chunks=6), "Again."])
    async with served(Engine(store, model=model)) as service, chromium.page() as page:
        chat = await service.engine.create_chat(owner="ada", title="A parcel")
        await look(page, service)
        await page.get_by_role("link", name="A parcel").click()
        state = page.locator(".title .state")
        await expect(state).to_have_text("waiting")
        await page.get_by_label("Message", exact=True).fill("Where is it?")
        await page.get_by_role("button", name="Send").click()
        live = page.locator(".message.live")
        model.allow(3)
        await expect(live).to_contain_text("word2 ")
        await expect(page.locator('svg [data-state="streaming"]')).to_have_class("state current")
        await expect(page.locator('svg [data-source="pending"][data-target="streaming"]')).to_have_class(
            re.compile("walking")
        )

        await page.reload()
        await expect(live).to_contain_text("word2 ")
        model.allow(2)
        await expect(live).to_contain_text("word0 word1 word2 word3 word4 ")
        assert "token" not in page.url
        await page.get_by_role("button", name="Stop").click()
        await expect(state).to_have_text("interrupted")
        await expect(page.locator(".message.assistant h4").first).to_contain_text("partial")
        shown = await page.locator(".message.assistant .text").first.inner_text()
        text = (await service.engine.messages(chat.id))[-1].text
        model.allow(100)
        await page.get_by_role("button", name="Resume").click()
        await expect(page.locator(".said .message.assistant").last).to_contain_text("Again.")
        await expect(page.locator('svg [data-state="waiting"]')).to_have_class("state current")
        claimed = page.locator('svg [data-source="pending"][data-target="streaming"] .count')
        await expect(claimed).to_have_text(re.compile(r"^2\D$"))
        await expect(page.get_by_label("Usage", exact=True)).to_contain_text("step 1")
        await expect(page.get_by_label("Explanation")).to_contain_text("broken invariants")
        await page.get_by_role("link", name="Audit").click()
        await page.get_by_role("button", name="Verify").click()
        await expect(page.locator(".verdict")).to_contain_text("The log holds")
        actors = {record.actor for record in await service.engine.audit(chat.id) if record.trigger == "interrupt"}

        await look(page, service, f"/chats/{chat.id}", "bob")
        await expect(page.get_by_role("alert")).to_contain_text("no chat")
        others = await page.get_by_text("A parcel").count()

    assert shown.rstrip() == text.rstrip() == "".join(WORDS[:5]).rstrip()
    assert actors == {"user:ada"}
    assert others == 0


@pytest.mark.deep
async def test_worker_dies_while_its_chat_is_watched(store: str, chromium: Chromium, tmp_path: Path) -> None:
    words = ("worker", "support.processes.doomed_agents:AGENTS", "--store", store, "--create", "--quiet")
    settings = Settings(run_worker=False, poll_interval=0.2)
    async with served(Engine(store, model="demo", settings=settings)) as service, chromium.page() as page:
        chat = await service.engine.create_chat(owner="ada", title="A parcel")
        await service.engine.send_message(chat.id, "Where is it?")
        with running(tmp_path, *words, PYTHONPATH=str(TESTS)) as worker:
            await look(page, service, f"/chats/{chat.id}")
            await expect(page.locator(".message.live")).to_contain_text("Half of it.")
            worker.stop(signal.SIGKILL)
            await expect(page.locator(".reason")).to_contain_text("its process is dead")
            await expect(page.locator(".title .state")).to_have_text("streaming")
        async with Engine(store, model=ScriptedModel(["All of it."]), settings=Settings(poll_interval=0.2)) as other:
            await other.wait(chat.id, until=["waiting"])
            await expect(page.locator(".said .message.assistant .text")).to_have_text(["All of it."])
        await expect(page.locator(".title .state")).to_have_text("waiting")
        await expect(page.locator(".message.live")).to_be_hidden()
        await expect(page.locator(".reason")).to_contain_text("Nothing to do")


@pytest.mark.deep
async def test_page_goes_on_after_lost_connections(demo: Served, chromium: Chromium) -> None:
    chat = await demo.engine.create_chat(owner="ada")
    tries: list[str] = []
    back = anyio.Event()

    async def lose(route: Route) -> None:
        tries.append(route.request.url)
        if len(tries) < 3:
            return await route.abort()
        await back.wait()
        return await route.continue_()

    async with chromium.page() as page:
        await page.route(re.compile(r"/chats/.*/events"), lose)
        await look(page, demo, f"/chats/{chat.id}")
        connection = page.locator(".connection")
        await expect(connection).to_have_text("The connection is gone. The page asks again; nothing is lost.")
        await demo.engine.ask(chat.id, "Hello!")
        back.set()
        await expect(page.locator(".said .message")).to_have_count(2)
        await expect(connection).to_have_text("")
        await demo.engine.rename(chat.id, "A parcel")
        await page.get_by_role("link", name="Chats").click()
        await expect(page.locator(".rows strong")).to_have_text(["A parcel"])
    assert len(tries) == 3


@pytest.mark.deep
async def test_lost_answers_and_repeated_keys_send_once(demo: Served, chromium: Chromium) -> None:
    chat = await demo.engine.create_chat(owner="ada")
    keys: list[str | None] = []
    go_on = anyio.Event()

    async def hold(route: Route) -> None:
        """Drop the answer to the first request."""
        keys.append(await route.request.header_value("Idempotency-Key"))
        await go_on.wait()
        response = await route.fetch()
        await (route.abort() if len(keys) == 1 else route.fulfill(response=response))

    async with chromium.page() as page:
        await page.route(re.compile(r"/(messages|fork)$"), hold)
        await look(page, demo, f"/chats/{chat.id}")
        message = page.get_by_label("Message", exact=True)
        await message.fill("Hello!")
        await message.focus()
        for _ in range(3):
            await page.keyboard.down("Enter")  # held from the second one on
        await page.keyboard.up("Enter")
        await message.press("Enter")
        go_on.set()
        await expect(page.get_by_role("alert")).to_contain_text("Look again before you do it again.")
        await expect(message).to_have_value("Hello!")
        await message.press("Enter")
        await expect(message).to_have_value("")
        await demo.engine.wait(chat.id, until=["waiting"])
        await expect(page.locator(".said .message.assistant")).to_have_count(1)

        go_on = anyio.Event()
        await page.get_by_role("link", name="Time travel").click()
        await page.get_by_role("button", name="Fork here").dblclick()
        go_on.set()
        await expect(page).not_to_have_url(re.compile(chat.id))
    texts = [one.text for one in await demo.engine.messages(chat.id) if one.role == "user"]
    assert texts == ["Hello!"]
    assert [keys[0], keys[0], None] == keys
    assert keys[0] is not None


@pytest.mark.deep
async def test_auditor_has_no_buttons_and_bad_token_is_refused(demo: Served, chromium: Chromium) -> None:
    chat = await demo.engine.create_chat(owner="ada", title="private")
    async with chromium.page() as page:
        await look(page, demo, f"/chats/{chat.id}", "auditor")
        await expect(page.get_by_role("heading", level=2)).to_have_text("private")
        await expect(page.locator(".reason")).to_contain_text("Nothing to do")
        for name in ("Stop", "Send", "Fork here"):
            await expect(page.get_by_role("button", name=name)).to_have_count(0)
        await page.get_by_role("button", name="Leave").click()
        await page.get_by_label("Token").fill("wrong")
        await page.get_by_role("button", name="Look").click()
        await expect(page.get_by_role("alert")).to_contain_text("token")
        await page.get_by_label("Token").fill("\u0442oken")
        await page.get_by_role("button", name="Look").click()
        await expect(page.get_by_role("alert")).to_contain_text("Was it copied whole?")


@pytest.mark.deep
async def test_queue_is_edited_deleted_and_promoted(chromium: Chromium) -> None:
    model = PacedModel([Reply("One two", chunks=4), "Done."])
    async with served(Engine("sqlite://", model=model)) as service, chromium.page() as page:
        chat = await service.engine.create_chat()
        await look(page, service, f"/chats/{chat.id}", "operator")
        for words in ("first", "second", "third"):
            await page.get_by_label("Message", exact=True).fill(words)
            await page.get_by_label("Message", exact=True).press("Enter")
            await expect(page.get_by_label("Message", exact=True)).to_have_value("")
        model.allow(1)
        await expect(page.locator(".message.live")).to_contain_text("One")
        queue = page.get_by_role("list", name="Queue").get_by_role("listitem")
        await expect(queue).to_have_count(2)
        await queue.nth(0).get_by_role("button", name="Delete").click()
        await expect(queue).to_have_count(1)
        await queue.get_by_role("button", name="Edit").click()
        await page.get_by_label("Queued message").fill("third, edited")
        await queue.get_by_role("button", name="Save").click()
        await expect(queue.locator(".text")).to_have_text("third, edited")
        await queue.get_by_role("button", name="Promote").click()
        await expect(queue).to_have_count(0)
        model.allow(100)
        await expect(page.locator(".said .message.assistant").last).to_contain_text("Done.")
        texts = [message.text for message in await service.engine.messages(chat.id) if message.role == "user"]

    assert texts == ["first", "third, edited"]
