"""The fleet, and a chat's family."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import expect
from tests.service.browser import Chromium
from tests.service.inspector.inspected import look

from support.served import served
from turnwise import Engine
from turnwise.providers.scripted import Reply, ScriptedModel

pytestmark = pytest.mark.deep

FIGURES = """async () => {
    const { TurnCount, quantile, spellsOf } = await import("./inspector/fleet-figures.js");
    const log = [
        [null, "waiting", 0], ["waiting", "pending", 10], ["pending", "streaming", 13], ["streaming", "streaming", 14],
        ["streaming", "pending", 20], ["pending", "pending", 21], ["pending", "streaming", 25],
        ["streaming", "waiting", 30],
        ["waiting", "pending", 40], ["pending", "interrupted", 41],
    ].map(([source, target, at]) => ({ source, target, at: new Date(at).toISOString() }));
    const turns = new TurnCount();
    const looks = [[["a", 7], ["b", 2]], [["b", 3], ["c", 1]], [], [["b", 4]]];
    const begun = looks.map((chats) => turns.look(chats.map(([id, turn]) => ({ id, turn }))));
    return [spellsOf(log), quantile([5, 1, 3], 0.5), quantile([], 0.5), begun];
}"""
"""What a log says of latency, and how many turns begin while chats are created and deleted, or missed by one look."""


async def test_fleet_shows_workers_throughput_and_stuck_chats(chromium: Chromium) -> None:
    model = ScriptedModel(["Hello.", Reply("Never said.", stall_after=0)])
    async with served(Engine("sqlite://", model=model)) as service, chromium.page() as page:
        engine = service.engine
        chat, busy = [await engine.create_chat(owner="ada", title=title) for title in ("Quick", "Busy")]
        await engine.ask(chat.id, "Hello!")
        await engine.send_message(busy.id, "Hello!")
        await engine.wait(busy.id, until=["streaming"])
        async with service.client("operator") as client:
            listed: list[dict[str, Any]] = (await client.get("/chats")).json()["items"]
            worker = (await client.get(f"/chats/{busy.id}/explain")).json()["lease_worker"]
        lost = listed[0] | {"id": "lost", "title": "Lost", "agent": "retired", "state": "pending", "turn": 0}
        lost |= {"last_error": {"kind": "overloaded", "message": "x"}, "updated_at": "2020-01-01T00:00:00Z"}
        answer = {"items": [*listed, lost], "next": None}
        await page.route(re.compile(r"/chats\?"), lambda route: route.fulfill(json=answer))
        await look(page, service, "/fleet", "operator")

        def named(name: str) -> Any:
            return page.locator("fleet-view").get_by_role("region", name=name)

        await expect(named("Workers")).to_contain_text(worker)
        await expect(named("Chats by state").get_by_role("listitem")).to_have_text(
            ["streaming1", "waiting1", "pending1"]
        )
        await expect(named("Errors by kind")).to_contain_text("overloaded")
        await expect(named("Chats that no agent")).to_contain_text("retired")
        await expect(named("Stuck chats").get_by_role("link")).to_have_text(["Lost"])
        await expect(named("Latency")).to_contain_text(re.compile(r"\d m?s.*half of the turns"))
        await expect(named("Wait for a worker")).to_contain_text(re.compile(r"longest now: \d+ d"))
        await expect(named("Throughput")).to_contain_text("counting begun turns")
        listed[-1]["turn"] += 3
        await expect(named("Throughput")).to_contain_text(re.compile(r"[1-9]\d*\.\d/min"))
        spells, middle, none, begun = await page.evaluate(FIGURES)

    assert spells == [{"ended": 30, "took": 20, "waited": 8}, {"ended": 41, "took": 1, "waited": 1}]
    assert (middle, none) == (3, None)
    assert begun == [9, 11, 11, 12]
