"""Open calls in the page, on both stores: forms from their schemas, approvals with edits, client tools."""

from dataclasses import replace
from typing import Annotated, Literal

import pytest
from playwright.async_api import expect
from pydantic import BaseModel, Field
from tests.service.browser import Chromium
from tests.service.inspector.inspected import look, pay

from support.served import STRICT, served
from turnwise import ClientTool, Engine, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.service import OWNERS_MAY

pytestmark = pytest.mark.deep

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


class Address(BaseModel):
    """Where a parcel goes."""

    street: str = Field(min_length=3)
    country: Literal["FR", "DE"]


@tool(policy="ask", approver="owner")
async def ship(  # noqa: PLR0913 - one of each kind
    weight: Annotated[float, Field(gt=0, le=30, description="In kilograms.")],
    count: Annotated[int, Field(ge=1)],
    order: int,
    to: Address,
    labels: list[str],
    *,
    insured: bool,
    speed: Literal["slow", "fast"] = "slow",
    note: str | None = None,
) -> str:
    """Ship parcels."""
    return f"{order}: {count} of {weight} kg to {to.street}, {to.country}; {labels}, {insured}, {speed}, {note}"


ARGUMENTS = {
    "weight": 2,
    "count": 1,
    "order": 1_152_921_504_606_846_977,
    "to": {"street": "1 rue", "country": "FR"},
    "labels": ["a", "b"],
    "insured": False,
}


async def test_calls_are_answered_edited_and_denied(store: str, chromium: Chromium) -> None:
    calls = [Call("pay", {"cents": 900, "to": HOSTILE}), Call("pay", {"cents": 5, "to": "me"}), Call("pick", {"x": 1})]
    model = ScriptedModel([Reply("I ask.", calls=calls), "Done."])
    pick = ClientTool("pick", "Pick a date.", {"type": "object"})
    async with served(Engine(store, model=model, tools=[pay])) as service, chromium.page() as page:
        chat = await service.engine.create_chat(owner="ada", title=HOSTILE, client_tools=[pick])
        await service.engine.send_message(chat.id, f"Pay! {HOSTILE}")
        await look(page, service, f"/chats/{chat.id}")
        first, second, third = (page.locator("open-calls fieldset.call").nth(place) for place in range(3))
        await expect(third).to_contain_text("Answer pick")
        await page.get_by_role("button", name="Submit 3 answers").click()
        await expect(first).to_contain_text("Approve or deny.")
        await expect(third).to_contain_text("Say what came of it.")
        await first.get_by_label("cents").fill("20")
        await first.get_by_label("Approve").check()
        await second.get_by_label("Deny").check()
        await second.get_by_label("Reason").fill("not to you")
        await third.get_by_label("Answer, as JSON or text").fill('{"day": "Friday"}')
        await page.get_by_role("button", name="Submit 3 answers").click()
        await expect(page.locator(".said .message.assistant").last).to_contain_text("Done.")
        await expect(page.locator("open-calls fieldset")).to_have_count(0)
        await expect(page.get_by_role("heading", level=2)).to_have_text(HOSTILE)
        messages = await service.engine.messages(chat.id)
        outputs = [message.result for message in messages if message.result]
        shown = await page.locator(".said .message").evaluate_all("all => all.map(one => one.dataset.id)")
        images, title = await page.locator("img").count(), await page.title()

    assert (outputs[0].output, outputs[2].output) == (f"paid 20 to {HOSTILE}", {"day": "Friday"})
    assert "not to you" in str(outputs[1].output)
    assert (images, title) == (0, "turnwise inspector")
    assert shown == [message.id for message in messages], "results stand in the order of their calls"
    assert shown != sorted(shown, key=lambda name: int(name[1:])), "no result came before that of an earlier call"


async def test_form_has_every_field_kind_and_its_errors(chromium: Chromium) -> None:
    model = ScriptedModel([Reply(calls=[Call("ship", ARGUMENTS)]), "Done."])
    async with served(Engine("sqlite://", model=model, tools=[ship])) as service, chromium.page() as page:
        chat = await service.engine.create_chat(owner="ada")
        await service.engine.ask(chat.id, "Ship!")
        async with service.client("ada") as client:
            schemas = (await client.get(f"/chats/{chat.id}/argument-schemas")).json()
        await look(page, service, f"/chats/{chat.id}")
        form = page.locator("open-calls form")
        weight, count, street = (
            form.get_by_label("weight"),
            form.get_by_label("count", exact=True),
            form.get_by_label("street"),
        )
        await form.get_by_label("Approve").check()
        await weight.fill("31")
        await count.fill("1.5")
        await street.fill("x")
        await form.get_by_role("button", name="Submit answer").click()
        await expect(weight).to_be_focused()
        for field, words in (
            (weight, "In kilograms. This must be 30 or less."),
            (count, "This must be a whole number."),
            (street, "This must have 3 characters or more."),
        ):
            await expect(field).to_have_attribute("aria-invalid", "true")
            await expect(field).to_have_accessible_description(words)
        await count.fill("  ")
        await expect(count).to_have_accessible_description("This must be a whole number.")
        await weight.fill("2.5")
        await count.fill("")
        await street.fill("9 avenue")
        await form.get_by_role("button", name="Submit answer").click()
        await expect(count).to_have_accessible_description("This is needed.")
        await count.fill("3")
        await form.get_by_label("country").select_option("DE")
        await form.get_by_role("button", name="Remove").first.click()
        await form.get_by_role("button", name="Add an item").click()
        await form.get_by_label("item").last.fill("c")
        await form.get_by_label("insured").check()
        await form.get_by_label("speed").select_option("fast")
        await form.get_by_role("button", name="Submit answer").click()
        await expect(page.locator(".said .message.assistant").last).to_contain_text("Done.")
        (result,) = [message.result for message in await service.engine.messages(chat.id) if message.result]

    assert list(schemas) == ["ship"]
    assert schemas["ship"]["properties"]["weight"]["maximum"] == 30
    assert result.output == "1152921504606846977: 3 of 2.5 kg to 9 avenue, DE; ['b', 'c'], True, fast, None"


async def test_page_shows_what_its_user_may_do(chromium: Chromium) -> None:
    """An owner has no buttons for actions that the policy refuses, and cannot answer an operator's call."""

    @tool(policy="ask")
    async def refund(cents: int) -> str:
        """Pay money back."""
        return f"paid {cents} back"

    model = ScriptedModel([Reply("I ask.", calls=[Call("refund", {"cents": 900})])])
    settings = replace(STRICT, owners_may=OWNERS_MAY - {"fork", "read_audit"})
    found: dict[str, list[str]] = {}
    async with served(Engine("sqlite://", model=model, tools=[refund]), settings=settings) as service:
        chat = await service.engine.create_chat(owner="ada")
        await service.engine.ask(chat.id, "Money!")
        for who in ("ada", "auditor", "operator"):
            async with chromium.page() as page:
                await look(page, service, f"/chats/{chat.id}", who)
                await expect(page.locator("open-calls fieldset")).to_have_count(1)
                await expect(page.locator("chat-facts table")).to_be_visible()
                found[who] = [
                    one for one in await page.get_by_role("button").all_inner_texts() if one not in ("Leave", "»")
                ] + await page.locator(".tabs a").all_inner_texts()
                assert await page.locator("[role=alert]").inner_text() == ""
    sections = ["Now", "Timeline", "Time travel", "Audit", "Family"]
    assert found["operator"][-5:] == found["auditor"][-5:] == sections
    assert {"Stop", "Resume", "Compact", "Clear context", "Submit answer", "Send"} <= set(found["operator"])
    assert not {"Stop", "Submit answer", "Send"} & set(found["auditor"])
    assert found["ada"][-2:] == ["Now", "Family"]
    assert {"Stop", "Resume", "Send"} <= set(found["ada"])
    assert not {"Compact", "Clear context", "Submit answer"} & set(found["ada"])
