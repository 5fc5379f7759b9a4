"""The page by keyboard, by screen reader, in light and dark, from phone to wall display; and the guide's pictures."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from playwright.async_api import expect
from pydantic import Field
from tests.service.browser import Chromium
from tests.service.inspector.inspected import go, look, pay

from support.served import served
from turnwise import Agent, Engine, Message, tool
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.scripted import Call, Reply, ScriptedModel

pytestmark = pytest.mark.deep

AXE = """async () => (await axe.run()).violations
    .filter(one => ["serious", "critical"].includes(one.impact))
    .map(one => [one.id, ...one.nodes.map(node => node.html)])"""
"""Serious findings of axe-core."""
WIDEST = """() => [document.documentElement.scrollWidth, [...document.querySelectorAll("main *")]
    .filter(one => !one.parentElement.closest(".scrolled, .frame, .picture, .timeline, .tabs, .unseen, summary, .rows")
        && one.getBoundingClientRect().right > innerWidth + 1)
    .map(one => `${one.tagName}.${one.className}`)]"""
"""The page's width, and elements beyond it."""
PICTURES = Path(__file__).parents[3] / "docs" / "pictures"
REFUND = {"cents": 4980, "to": "Ada"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_and_page_fits_a_phone(npm_modules: Path, chromium: Chromium, scheme: Any) -> None:
    axe = (npm_modules / "axe-core" / "axe.min.js").read_text()
    model = ScriptedModel([Reply("May I pay for the parcel?", calls=[Call("pay", REFUND)])])
    phone: Any = {"width": 360, "height": 740}
    async with (
        served(Engine("sqlite://", model=model, tools=[pay])) as service,
        chromium.page(color_scheme=scheme, viewport=phone) as page,
    ):
        chat = await service.engine.create_chat(owner="ada", title="A parcel")
        await service.engine.ask(chat.id, "Where is it?")
        found, widths = [], []
        await look(page, service)
        await page.evaluate(axe)
        here = f"/chats/{chat.id}"
        for where, shown in (
            ("/", ".rows li"), ("/fleet", ".fleet td, .fleet .empty"), (here, "open-calls .problem:not(:empty)"),
            (f"{here}/timeline", ".records td"), (f"{here}/past", "time-travel .message"),
            (f"{here}/audit", "chat-audit td"), (f"{here}/family", ".tree li"),
        ):  # fmt: skip
            await go(page, where)
            if where == here:
                await page.get_by_role("button", name="Submit answer").click()
            if where.endswith("timeline"):
                await page.locator(".bar").first.click()
            await expect(page.locator(shown).first).to_be_visible()
            widths.append(await page.evaluate(WIDEST))
            found += await page.evaluate(AXE)
        await page.get_by_role("button", name="Leave").click()
        await expect(page.get_by_label("Token")).to_be_focused()
        found += await page.evaluate(AXE)
        await page.set_viewport_size({"width": 3840, "height": 2160})
        await look(page, service, here)
        await expect(page.locator("open-calls fieldset").first).to_be_visible()
        wide = await page.evaluate(WIDEST)
        size = await page.evaluate("parseFloat(getComputedStyle(document.documentElement).fontSize)")

    assert found == []
    assert widths == [[360, []]] * 7
    assert (wide, size) == ([3840, []], 24), "letters grow with a wall"


WORDS = (
    "Order 4711 is a blue vase. It left Marseille on Monday, and came to Lyon this morning. "
    "I have asked the carrier for its report, which takes a day. You need not do anything meanwhile."
)


@tool
async def lookup(order: str) -> dict[str, str]:
    """Look an order up."""
    return {"order": order, "item": "a blue vase", "status": "in Lyon"}


def clerk(request: ModelRequest) -> Reply:
    """Say what the pictures show: a call, an answer, and a question to a person."""
    match request.messages[-1]:
        case Message(role="user", text="Where is my parcel?"):
            return Reply("Let me look.", calls=[Call("lookup", {"order": "4711"})], usage=(412, 24))
        case Message(role="user", text="I want my money back!"):
            calls = [Call("refund", {"order": "4711", "cents": 4980, "reason": "broken", "notify": True})]
            return Reply("A colleague decides about that.", calls=calls, usage=(655, 31))
        case Message(role="user", text="Thank you. And when?"):
            return Reply(WORDS, chunks=12, stall_after=10)
    return Reply(WORDS, usage=(530, 58))


@tool(policy="ask", approver="owner")
async def refund(
    order: str,
    cents: Annotated[int, Field(ge=1, le=10_000, description="At most 10,000.")],
    reason: Literal["broken", "late", "lost"],
    *,
    notify: bool,
) -> str:
    """Pay an order back."""
    return f"{order}: {cents}, {reason}, {notify}"


async def test_pictures_of_the_guide(chromium: Chromium, tmp_path: Path) -> None:
    """A plain run stores them with the test's files; `PICTURES=1` puts them into the guide."""
    folder = PICTURES if os.environ.get("PICTURES") else tmp_path
    agents = [Agent("support", ScriptedModel(clerk, context_limit=200_000), tools=[lookup, refund])]
    async with served(Engine("sqlite://", agents=agents)) as service, chromium.page(color_scheme="light") as page:
        engine = service.engine

        async def picture(name: str, where: str, shown: str, *, width: int = 1280, height: int = 800) -> None:
            await page.set_viewport_size({"width": width, "height": height})
            await go(page, where)
            await expect(page.locator(shown).first).to_be_visible()
            await page.evaluate("() => document.getAnimations().forEach(one => one.finish())")
            await page.screenshot(path=folder / f"inspector-{name}.png", animations="disabled")

        await look(page, service, "/", "operator")
        for title in ("Opening hours", "A gift for Ada", "Where is order 4712?", "The vase came broken"):
            chat = await engine.create_chat(owner="ada", title=title)
            await engine.ask(chat.id, "Where is my parcel?")
        here = f"/chats/{chat.id}"
        await picture("timeline", f"{here}/timeline", ".bar[data-lane=call]")
        await page.locator(".bar[data-lane=call]").first.click()
        await picture("timeline", f"{here}/timeline", ".records td", height=620)
        await engine.ask(chat.id, "I want my money back!")
        await picture("light", here, "open-calls form", height=980)
        await page.emulate_media(color_scheme="dark")
        await picture("dark", here, "open-calls form", height=980)
        await page.emulate_media(color_scheme="light")
        await picture("past", f"{here}/past", "time-travel .message", height=860)
        await page.get_by_label("Version", exact=True).fill("5")
        await picture("past", f"{here}/past", "time-travel .message", height=860)
        live = await engine.create_chat(owner="bob", title="A parcel from Marseille")
        await engine.send_message(live.id, "Thank you. And when?")
        await engine.wait(live.id, until=["streaming"])
        await picture("phone", f"/chats/{live.id}", ".message.live", width=360, height=740)
        await picture("fleet", "/fleet", ".tile", height=680)
        await picture("chats", "/", ".rows li", height=620)

    guide = (PICTURES.parent / "guides" / "inspector.md").read_text()
    assert {file.name for file in folder.glob("inspector-*.png")} == set(re.findall(r"inspector-\w+\.png", guide))
