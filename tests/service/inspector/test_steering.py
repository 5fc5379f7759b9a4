"""A live list, a steered turn, and the rest of a budget, in a real Chromium."""

import pytest
from playwright.async_api import expect
from tests.service.browser import Chromium
from tests.service.inspector.inspected import look

from support.latches import Gate
from support.served import served
from turnwise import Engine
from turnwise.providers.scripted import Call, Reply, ScriptedModel

pytestmark = pytest.mark.deep


async def test_turn_is_steered_from_a_list_that_lives(store: str, chromium: Chromium) -> None:
    """The list shows new chats, states and unread ends without a reload; a steering message appears at its position."""
    gate = Gate()
    model = ScriptedModel(
        [Reply("On it.", calls=[Call("work", {})], usage=(60, 20)), Reply("Left it is.", usage=(90, 10))]
    )
    async with served(Engine(store, model=model, tools=[gate.tool])) as service, chromium.page() as page:
        engine, polls = service.engine, []
        page.on("request", lambda request: polls.append(request.url) if "/chats?" in request.url else None)
        await engine.set_budget(owner="ada", tokens=1000, per="day")
        await look(page, service)
        await expect(page.get_by_text("There is no chat yet.")).to_be_visible()
        chat = await engine.create_chat(owner="ada", title="A walk")
        row = page.locator(".rows li")
        await expect(row.locator(".state")).to_have_text("waiting")
        await engine.send_message(chat.id, "Go!")
        await gate.entered.wait()
        await expect(row.locator(".state")).to_have_text("executing_tools")
        await page.get_by_role("link", name="A walk").click()
        await expect(page.locator(".said .message")).to_have_count(2)
        await page.get_by_label("Message", exact=True).fill("Turn left!")
        await page.get_by_label("Steer").check()
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_role("list", name="Queue").get_by_role("listitem")).to_contain_text("Turn left!steers")
        gate.open.set()
        messages = page.locator(".said .message")
        await expect(messages.last).to_contain_text("Left it is.")
        await expect(messages).to_contain_text(["Go!", "On it.", "result of work", "steered", "Left it is."])
        await expect(messages.nth(3)).to_contain_text("Turn left!")
        await expect(page.get_by_role("list", name="Queue")).to_have_count(0)
        budgets = page.get_by_label("Budgets", exact=True).get_by_role("row").nth(1)
        await expect(budgets).to_contain_text("ada1000 tokens1800820")
        await page.get_by_role("link", name="Chats").click()
        await expect(row.locator(".badge")).to_have_text(["unread"])
        await engine.mark_read(chat.id)
        await expect(row.locator(".badge")).to_have_count(0)
    assert polls == [], "the list is not asked for again"
