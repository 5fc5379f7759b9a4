"""The list of chats: filters, search, and ten thousand chats."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Page, expect
from tests.service.browser import Chromium
from tests.service.inspector.inspected import look

from support.served import Served, served
from turnwise import Agent, ClientTool, CompactionPolicy, Engine, Settings, ToolResult, delegate
from turnwise.providers.scripted import Call, Reply, ScriptedModel

pytestmark = pytest.mark.deep


async def listing(page: Page, service: Served, chats: list[dict[str, Any]]) -> None:
    """Make the service list one chat as many, each with the given fields."""
    async with service.client("operator") as client:
        one = (await client.get("/chats")).json()["items"][0]
    listed = [one | {"id": f"c{n}"} | chat for n, chat in enumerate(chats)]
    events = [
        f"event: chat\ndata: {json.dumps({'number': n, 'chat_id': chat['id'], 'chat': chat})}\nid: {n}\n\n"
        for n, chat in enumerate(listed, 1)
    ]
    await page.route(
        re.compile(r"/events$"), lambda route: route.fulfill(body="".join(events), content_type="text/event-stream")
    )


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


async def test_list_shows_what_changes(demo: Served, chromium: Chromium) -> None:
    """Without another request: a chat is created, gets a title, and is deleted."""
    async with chromium.page() as page:
        await look(page, demo, "/", "operator")
        await expect(page.get_by_text("There is no chat yet.")).to_be_visible()
        chat = await demo.engine.create_chat(owner="ada")
        names = page.locator(".rows strong")
        await expect(names).to_have_text([chat.id])
        await names.locator("..").locator("..").focus()
        await demo.engine.rename(chat.id, "A parcel")
        await expect(names).to_have_text(["A parcel"])
        assert await page.evaluate("document.activeElement.textContent.includes('A parcel')")
        await demo.engine.delete_chat(chat.id)
        await expect(page.get_by_text("There is no chat yet.")).to_be_visible()


# The past


PICK = ClientTool("pick", "Pick a date.", {"type": "object"})


async def test_past_is_shown_at_every_version_and_forked(store: str, chromium: Chromium) -> None:
    model = ScriptedModel([Reply("I ask.", calls=[Call("pick", {"x": 1})]), "Done."])
    async with served(Engine(store, model=model)) as service, chromium.page() as page:
        engine = service.engine
        chat = await engine.create_chat(owner="ada", client_tools=[PICK])
        open_call = (await engine.ask(chat.id, "A table!")).open_calls[0]
        asked = (await engine.get_chat(chat.id)).version
        receipt = await engine.submit_tool_results(chat.id, [ToolResult(open_call.call_id, "Friday")])
        await engine.wait(receipt.chat.id, until=["waiting"])
        records = await engine.audit(chat.id)
        await look(page, service, f"/chats/{chat.id}/past")
        past = page.locator("time-travel")
        await expect(past).to_contain_text("Done.")
        for _ in records:  # from the last to the first by the keys, and there again by a leap
            await page.get_by_role("button", name="One version back").click()
        await expect(past.locator(".at")).to_contain_text("version 1: create")
        await expect(past.locator(".message:not(.live)")).to_have_count(0)
        seen = []
        for record in records:
            await page.get_by_label("Version", exact=True).fill(str(record.version))
            await expect(past.locator(".at")).to_contain_text(f"version {record.version}: {record.trigger}")
            await expect(past.locator(".travel .state")).to_have_text(record.target)
            await expect(past.locator(f'svg [data-state="{record.target}"]')).to_have_class("state current")
            seen.append(await past.locator(".said .message").count())
        await page.get_by_label("Version", exact=True).fill(str(asked))
        await expect(past).to_contain_text("1 call without a result")
        texts = await past.locator(".said .text").all_text_contents()
        await page.get_by_role("button", name="Fork here").click()
        await expect(page).not_to_have_url(re.compile(chat.id))
        await expect(page.locator(".said .message.tool")).to_contain_text("result of pick")
        parts = await engine.messages(page.url.rpartition("/")[2])

    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0, 4)
    assert texts == ["A table!", "I ask."]
    assert [message.role for message in parts] == ["user", "assistant", "tool"]


async def test_every_timeline_bar_opens_its_records(chromium: Chromium) -> None:
    """States, steps, attempts, calls, compactions, interrupts and subagents."""
    subagent = Agent("subagent", ScriptedModel(["Found."]))
    replies = [
        Reply("I ask.", calls=[Call("ask_subagent", {"task": "Look"})], usage=(10, 1)),
        Reply("A long answer.", usage=(90, 1)),
        Reply("After the summary.", usage=(10, 1)),
        Reply("Never said.", stall_after=0),
    ]
    lead = Agent("lead", ScriptedModel(replies), tools=[delegate(subagent, name="ask_subagent")])
    settings = Settings(compaction=CompactionPolicy(context_limit=100))
    async with (
        served(Engine("sqlite://", agents=[lead, subagent], settings=settings)) as service,
        chromium.page() as page,
    ):
        engine = service.engine
        chat = await engine.create_chat(agent="lead", owner="ada")
        await engine.ask(chat.id, "Go!")
        await engine.send_message(chat.id, "Go on!")
        await engine.wait(chat.id, until=["streaming"])
        await engine.interrupt(chat.id)
        await engine.wait(chat.id, until=["interrupted"])
        versions = {str(record.version) for record in await engine.audit(chat.id)}
        await look(page, service, f"/chats/{chat.id}/timeline")
        await expect(page.locator(".bar").first).to_be_visible()
        first = await lanes_of(page)
        width = await page.locator(".lanes").evaluate("lanes => lanes.clientWidth")
        await page.get_by_role("button", name="Zoom in").click()
        await page.get_by_label("Zoom", exact=True).press("End")
        zoomed = await page.locator(".lanes").evaluate("lanes => lanes.clientWidth")
        await page.locator(".timeline").evaluate("frame => { frame.scrollLeft = 0 }")
        closest = await lanes_of(page)
        await page.get_by_role("link", name="Open Look").click()
        await expect(page.get_by_role("heading", level=2)).to_have_text("Look")

    everything = ["attempt", "call", "compaction", "interrupt", "state", "step", "subagent"]
    assert (sorted(first), sorted(closest)) == (everything, everything)
    assert first["state"] == versions, "the bars of the states have every record of the log"
    assert zoomed > 100 * width


async def lanes_of(page: Page) -> dict[str, set[str]]:
    """Open every bar, and return the numbers of the records of each lane's bars.

    Handles, not locators: a page that has scrolled draws other bars, at any later time.
    """
    found: dict[str, set[str]] = {}
    for lane in await page.query_selector_all(".lane"):
        name = await lane.eval_on_selector(".name", "name => name.innerText")
        for bar in await lane.query_selector_all("button"):
            label = await bar.get_attribute("aria-label")
            await bar.evaluate("bar => bar.click()")
            await expect(page.locator(".records caption")).to_have_text(f"Records of {label}")
            rows = page.locator(".records tbody tr")
            assert "{" in (await rows.locator("pre").first.text_content() or "")
            found.setdefault(name, set()).update(await rows.locator("td:first-child").all_text_contents())
    return found
