"""The list of chats: filters, search, and ten thousand of them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Page, expect

from support.browser import Chromium
from support.inspected import go, look
from support.served import Served, served
from turnwise import Engine
from turnwise.providers.scripted import ScriptedModel

pytestmark = pytest.mark.deep

FRAMES = """async selector => {
    const frame = document.querySelector(selector), spent = [];
    for (let step = 1; step <= 20; step += 1) {
        frame.scrollTop = (frame.scrollHeight * step) / 20;
        const begun = performance.now();
        frame.dispatchEvent(new Event("scroll"));
        frame.getBoundingClientRect();
        spent.push(performance.now() - begun);
        await new Promise(requestAnimationFrame);
    }
    return Math.min(...spent);
}"""
"""Scrolls a frame from its beginning to its end, and returns the milliseconds of the quickest step.

Every step draws other rows, and the others may have waited for a busy processor.
"""


async def listing(page: Page, service: Served, chats: list[dict[str, Any]]) -> None:
    """Let the service list a chat of its own as others, each with what is given."""
    async with service.client("operator") as client:
        one = (await client.get("/chats")).json()["items"][0]
    answer = {"items": [one | {"id": f"c{n}"} | chat for n, chat in enumerate(chats)], "next": None}
    await page.route(re.compile(r"/chats\?"), lambda route: route.fulfill(json=answer))


async def test_list_is_filtered_and_searched(demo: Served, chromium: Chromium) -> None:
    await demo.engine.create_chat(owner="ada")
    now = datetime.now(UTC)
    chats = [
        {"title": "A parcel", "owner": "ada", "agent": "support", "updated_at": now.isoformat()},
        {"title": "A vase", "owner": "bob", "agent": "sales", "updated_at": (now - timedelta(hours=5)).isoformat()},
        {"title": "A drum", "state": "streaming", "updated_at": (now - timedelta(days=3)).isoformat()},
        {"title": "New", "state": "pending", "updated_at": now.isoformat()},
    ]
    async with chromium.page() as page:
        await listing(page, demo, chats)
        await look(page, demo, "/", "operator")
        names = page.locator(".rows strong")
        await expect(names).to_have_text(["A parcel", "A vase", "A drum", "New"])
        filters = page.get_by_role("search")
        search, state, age = (
            filters.get_by_label("Search"),
            filters.get_by_label("State"),
            filters.get_by_label("Age", exact=True),
        )

        async def shown(*titles: str) -> None:
            await expect(names).to_have_text(list(titles))
            await expect(page.get_by_role("status")).to_have_text(f"{len(titles)} of 4 chats")

        await search.fill("PARCEL")
        await shown("A parcel")
        await search.fill("c1")
        await shown("A vase")
        await search.fill("")
        await state.select_option("streaming")
        await shown("A drum")
        await state.select_option("any")
        await filters.get_by_label("Agent").fill("sal")
        await shown("A vase")
        await filters.get_by_label("Agent").fill("")
        await filters.get_by_label("Owner").fill("bob")
        await shown("A vase")
        await filters.get_by_label("Owner").fill("")
        await age.select_option("changed within 1 h")
        await shown("A parcel", "New")
        await age.select_option("changed within 1 d")
        await shown("A parcel", "A vase", "New")
        await age.select_option("unchanged for 1 d")
        await shown("A drum")
        await age.select_option("any")
        await filters.get_by_label("Stuck").check()
        await shown("A drum")
        await search.fill("nothing like it")
        await expect(page.get_by_text("No chat fits these filters.")).to_be_visible()


async def test_list_marks_chats_that_wait_for_a_person(demo: Served, chromium: Chromium) -> None:
    await demo.engine.create_chat(owner="ada")
    async with chromium.page() as page:
        answerers = ("client", "helpers", "both", None)
        await listing(page, demo, [{"title": f"{one}", "awaits": one} for one in answerers])
        await look(page, demo, "/", "operator")
        waiting = page.locator(".rows li").filter(has_text="waits for you")
        await expect(waiting.locator("strong")).to_have_text(["client", "both"])


async def test_long_lists_stay_smooth(chromium: Chromium) -> None:
    """A frame that is scrolled draws the rows in sight alone, and a message costs what is in sight."""
    said = [{"role": role, "content": f"message {n} {role}"} for n in range(2500) for role in ("user", "assistant")]
    async with served(Engine("sqlite://", model=ScriptedModel(["Greetings."]))) as service, chromium.page() as page:
        engine = service.engine
        chat = await engine.create_chat(owner="ada", title="Long", history=said)
        await listing(page, service, [{"title": f"Chat {n}"} for n in range(10_000)])
        await look(page, service)
        await expect(page.get_by_role("status")).to_have_text("10000 of 10000 chats")
        took = await page.evaluate(FRAMES, ".frame")
        rows = await page.locator(".rows li").count()
        last = page.get_by_role("link", name="Chat 9999", exact=False)
        await last.focus()
        await page.locator(".frame").evaluate("frame => { frame.scrollTop -= 100 }")
        await page.evaluate("() => new Promise(requestAnimationFrame)")
        await expect(last).to_be_focused()
        await page.get_by_label("Search").fill("chat 9999")
        await expect(page.locator(".rows li")).to_have_count(1)

        await go(page, f"/chats/{chat.id}")
        await expect(page.locator(".said .message")).to_have_count(5000)
        scrolled = await page.evaluate(FRAMES, ".talk")
        await engine.ask(chat.id, "Hello!")
        await expect(page.locator(".said .message.assistant").last).to_contain_text("Greetings.")
        await expect(page.locator(".said .message.assistant").last).to_be_in_viewport()

    assert 0 < rows < 60
    assert took < 50, "milliseconds of script and layout for one scrolled frame"
    assert scrolled < 50
