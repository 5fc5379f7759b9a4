"""The list of chats: filters, search, and ten thousand of them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Page, expect
from tests.service.browser import Chromium
from tests.service.inspector.inspected import look

from support.served import Served

pytestmark = pytest.mark.deep


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
