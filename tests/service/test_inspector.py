"""The inspector, in a real Chromium against a real service on both stores."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from playwright.async_api import Page, expect

from support.browser import inspecting
from support.processes.postgres_server import Server
from support.processes.service_process import running
from support.served import Served, served
from turnwise import Agent, ClientTool, Engine, ToolResult, delegate, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.service.inspector import POLICY

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
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
    return spent.sort((a, b) => a - b)[10];
}"""
"""Scrolls a frame from its beginning to its end, and returns the median of the milliseconds that a step took."""
AXE = """async () => (await axe.run()).violations
    .filter(one => ["serious", "critical"].includes(one.impact))
    .map(one => [one.id, ...one.nodes.map(node => node.html)])"""
"""What axe-core finds that is serious."""
WIDEST = """() => [document.documentElement.scrollWidth, [...document.querySelectorAll("main *")]
    .filter(one => !one.parentElement.closest(".scrolled, .frame") && one.getBoundingClientRect().right > 361)
    .map(one => `${one.tagName}.${one.className}`)]"""
"""How wide the page is, and what stands out of it."""
ROOT = Path(__file__).parent.parent.parent
WORDS = [f"word{number} " for number in range(40)]


@tool(policy="ask")
async def pay(cents: int, to: str) -> str:
    """Pay money."""
    return f"paid {cents} to {to}"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with Server.running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chats.db"
    server: Server = request.getfixturevalue("postgres")
    return server.url(f"inspected_{request.node.originalname}"[:60])


async def look(page: Page, service: Served, where: str = "/", who: str = "ada") -> None:
    """Open the page with somebody's token in its address, and then what is to be seen."""
    await page.goto(f"{service.url}/inspector#token={who}-token")
    await expect(page.get_by_role("navigation")).to_contain_text("Leave")
    await page.evaluate("where => { location.hash = where }", where)


async def test_a_chat_is_watched_reloaded_in_mid_stream_and_stopped(store: str) -> None:
    model = ScriptedModel([Reply("".join(WORDS), chunks=40, delay=0.25), "Again."])
    async with served(Engine(store, model=model)) as service, inspecting() as page:
        chat = await service.engine.create_chat(owner="ada", title="A parcel")
        await look(page, service)
        await page.get_by_role("link", name="A parcel").click()
        state = page.locator(".title .state")
        await expect(state).to_have_text("waiting")
        await page.get_by_label("Message", exact=True).fill("Where is it?")
        await page.get_by_role("button", name="Send").click()
        live = page.locator(".columns .message.live")
        await expect(live).to_contain_text("word1 ")
        await expect(page.locator('.columns svg [data-state="streaming"]')).to_have_class("state current")

        await page.reload()
        await expect(live).to_contain_text("word3 ")
        assert "token" not in page.url
        await page.get_by_role("button", name="Stop").click()
        await expect(state).to_have_text("interrupted")
        await expect(page.locator(".message.assistant h4")).to_contain_text("partial")
        shown = await page.locator(".message.assistant .text").inner_text()
        kept = (await service.engine.messages(chat.id))[-1].text
        await page.get_by_role("button", name="Resume").click()
        await expect(page.locator(".columns .message.assistant").last).to_contain_text("Again.")
        await expect(page.locator('.columns svg [data-state="waiting"]')).to_have_class("state current")
        await expect(page.locator(".columns svg .count").first).to_contain_text(re.compile(r"^\d+.$"))
        await expect(page.get_by_label("Usage", exact=True)).to_contain_text("step 1")
        await page.get_by_role("button", name="Verify").click()
        await expect(page.locator(".verdict")).to_contain_text("The log holds")
        actors = {record.actor for record in await service.engine.audit(chat.id) if record.trigger == "interrupt"}

    assert shown.rstrip() == kept.rstrip() != "".join(WORDS).rstrip()
    assert actors == {"user:ada"}


async def test_calls_are_answered_approved_with_edits_and_denied_in_the_page(store: str) -> None:
    calls = [Call("pay", {"cents": 900, "to": HOSTILE}), Call("pay", {"cents": 5, "to": "me"}), Call("pick", {"x": 1})]
    model = ScriptedModel([Reply("I ask.", calls=calls), "Done."])
    pick = ClientTool("pick", "Pick a date.", {"type": "object"})
    async with served(Engine(store, model=model, tools=[pay])) as service, inspecting() as page:
        chat = await service.engine.create_chat(owner="ada", title=HOSTILE, client_tools=[pick])
        await service.engine.send_message(chat.id, f"Pay! {HOSTILE}")
        await look(page, service, f"/chats/{chat.id}")
        first, second, third = (page.locator("open-calls fieldset").nth(place) for place in range(3))
        await expect(third).to_contain_text("Answer pick")
        await first.get_by_label("cents").fill("20")
        await first.get_by_label("approve").check()
        await second.get_by_label("deny").check()
        await second.get_by_label("Reason, if denied").fill("not to you")
        await third.get_by_label("Answer, as JSON or text").fill('{"day": "Friday"}')
        await page.get_by_role("button", name="Submit answers").click()
        await expect(page.locator(".columns .message.assistant").last).to_contain_text("Done.")
        await expect(page.locator("open-calls fieldset")).to_have_count(0)
        await expect(page.get_by_role("heading", level=2)).to_have_text(HOSTILE)
        outputs = [message.result for message in await service.engine.messages(chat.id) if message.result]
        images, title = await page.locator("img").count(), await page.title()

    assert (outputs[0].output, outputs[2].output) == (f"paid 20 to {HOSTILE}", {"day": "Friday"})
    assert "not to you" in str(outputs[1].output)
    assert (images, title) == (0, "turnwise inspector")


async def test_other_owners_see_nothing_and_auditors_change_nothing(demo: Served) -> None:
    chat = await demo.engine.create_chat(owner="ada", title="private")
    async with inspecting() as page:
        await look(page, demo, f"/chats/{chat.id}", "bob")
        await expect(page.get_by_role("alert")).to_contain_text("no chat")
        await expect(page.get_by_text("private")).to_have_count(0)
        await page.get_by_role("button", name="Leave").click()
        await page.get_by_label("Token").fill("wrong")
        await page.get_by_role("button", name="Look").click()
        await expect(page.get_by_role("alert")).to_contain_text("token")
        await look(page, demo, f"/chats/{chat.id}", "auditor")
        await expect(page.get_by_role("heading", level=2)).to_have_text("private")
        await expect(page.get_by_role("button", name="Stop")).to_have_count(0)
        await expect(page.get_by_role("button", name="Send")).to_have_count(0)


async def test_the_page_and_its_files_are_bound_to_their_policy_and_are_no_routes_of_the_document(demo: Served) -> None:
    async with httpx.AsyncClient(base_url=demo.url) as nobody:
        page = await nobody.get("/inspector")
        script = await nobody.get("/inspector/service.js")
        known = await nobody.get("/inspector/service.js", headers={"If-None-Match": script.headers["etag"]})
        others = [
            (await nobody.get(f"/inspector/{name}")).status_code for name in ("__init__.py", "..%2Fauth.py", "x.js")
        ]
        paths = (await nobody.get("/openapi.json")).json()["paths"]

    assert {answer.headers["content-security-policy"] for answer in (page, script)} == {POLICY}
    assert (page.headers["content-type"], script.headers["content-type"]) == (
        "text/html; charset=utf-8", "text/javascript; charset=utf-8"
    )  # fmt: skip
    assert (known.status_code, others) == (304, [404, 404, 404])
    assert not [path for path in paths if "inspector" in path]


async def test_the_past_is_shown_at_every_version_and_a_fork_begins_there(store: str) -> None:
    model = ScriptedModel([Reply("I ask.", calls=[Call("pick", {"x": 1})]), "Done."])
    pick = ClientTool("pick", "Pick a date.", {"type": "object"})
    async with served(Engine(store, model=model)) as service, inspecting() as page:
        engine = service.engine
        chat = await engine.create_chat(owner="ada", client_tools=[pick])
        open_call = (await engine.ask(chat.id, "A table!")).open_calls[0]
        asked = (await engine.get_chat(chat.id)).version
        receipt = await engine.submit_tool_results(chat.id, [ToolResult(open_call.call_id, "Friday")])
        await engine.wait(receipt.chat.id, until=["waiting"])
        await look(page, service, f"/chats/{chat.id}")
        await page.get_by_text("Timeline", exact=True).click()
        bar = page.get_by_role("button", name=re.compile(r"^call pick, "))
        await bar.click()
        await expect(page.locator("chat-timeline table")).to_contain_text("tool_result")
        for name in ("state requires_action", "step step 1", "attempt attempt 2"):
            await expect(page.get_by_role("button", name=re.compile(name)).first).to_be_attached()
        await page.get_by_text("Time travel", exact=True).click()
        past = page.locator("time-travel")
        await expect(past).to_contain_text("Done.")
        await page.get_by_label("Version").fill(str(asked))
        await expect(past.locator(".at")).to_contain_text(f"version {asked}: step_finished")
        await expect(past.locator('svg [data-state="requires_action"]')).to_have_class("state current")
        await expect(past).to_contain_text("1 calls without a result")
        texts = await past.locator(".message .text").all_text_contents()
        await page.get_by_role("button", name="Fork here").click()
        await expect(page).not_to_have_url(re.compile(chat.id))
        await expect(page.locator(".columns .message.tool")).to_contain_text("result of pick")
        forked = page.url.rpartition("/")[2]
        parts = await engine.messages(forked)

    assert texts == ["A table!", "I ask."]
    assert [message.role for message in parts] == ["user", "assistant", "tool"]


async def test_ten_thousand_chats_and_five_thousand_messages_stay_smooth() -> None:
    """A frame that is scrolled draws the rows in sight alone, and a message costs what is in sight."""
    said = [{"role": role, "content": f"message {n} {role}"} for n in range(2500) for role in ("user", "assistant")]
    async with served(Engine("sqlite://", model=ScriptedModel(["Greetings."]))) as service, inspecting() as page:
        engine = service.engine
        chat = await engine.create_chat(owner="ada", title="Long", history=said)
        async with service.client("ada") as client:
            listed = (await client.get("/chats")).json()["items"]
        many = [listed[0] | {"id": f"c{n}", "title": f"Chat {n}", "agent": "ab"[n % 2]} for n in range(10_000)]
        await page.route(re.compile(r"/chats\?"), lambda route: route.fulfill(json={"items": many, "next": None}))
        await look(page, service)
        await expect(page.get_by_role("status")).to_have_text("10000 of 10000 chats")
        took = await page.evaluate(FRAMES, ".frame")
        rows = await page.locator(".rows li").count()
        await page.get_by_label("Search").fill("chat 9999")
        await expect(page.get_by_role("status")).to_have_text("1 of 10000 chats")
        await expect(page.locator(".rows li")).to_have_count(1)
        await page.get_by_label("Agent").fill("a")
        await expect(page.get_by_role("status")).to_have_text("0 of 10000 chats")

        await page.evaluate("id => { location.hash = `/chats/${id}` }", chat.id)
        await expect(page.locator(".columns .message")).to_have_count(5001)  # with the reply under way, hidden
        scrolled = await page.evaluate(FRAMES, ".columns .talk")
        await engine.ask(chat.id, "Hello!")
        await expect(page.locator(".columns .message.assistant").last).to_contain_text("Greetings.")

    assert 0 < rows < 60
    assert took < 50, "milliseconds of script and layout for one scrolled frame"
    assert scrolled < 50


async def test_a_family_is_a_tree_and_the_fleet_tells_what_nobody_can_run() -> None:
    researcher = Agent("researcher", ScriptedModel(["Found."]))
    lead = Agent(
        "lead",
        ScriptedModel([Reply(calls=[Call("ask_researcher", {"task": "Look"})]), "Done."]),
        tools=[delegate(researcher, name="ask_researcher")],
    )
    async with served(Engine("sqlite://", agents=[lead, researcher])) as service, inspecting() as page:
        engine = service.engine
        chat = await engine.create_chat(agent="lead", title="A lead")
        await engine.ask(chat.id, "Go!")
        helper = (await engine.helpers(chat.id))[0]
        async with service.client("operator") as client:
            listed = (await client.get("/chats")).json()["items"]
        lost = listed[0] | {"id": "lost", "title": "Lost", "agent": "retired", "state": "pending"}
        lost |= {"last_error": {"kind": "overloaded", "message": "x"}}
        answer = {"items": [*listed, lost], "next": None}
        await page.route(re.compile(r"/chats\?"), lambda route: route.fulfill(json=answer))
        await look(page, service, f"/chats/{helper.id}", "operator")
        await expect(page.locator(".title .state")).to_have_text("waiting")
        await expect(page.locator("chat-audit tbody tr").first).to_be_visible()
        await page.get_by_text("Family", exact=True).click()
        tree = page.locator("family-tree")
        await expect(tree.get_by_role("link")).to_have_count(2)
        await expect(tree.locator("li li [aria-current=page]")).to_have_count(1)
        await page.get_by_role("link", name="Fleet").click()
        fleet = page.locator("fleet-view")
        await expect(fleet.get_by_role("region", name="Chats that no agent")).to_contain_text("retired")
        await expect(fleet.get_by_role("region", name="Chats by state")).to_contain_text("pending")
        await expect(fleet.get_by_role("region", name="Errors by kind")).to_contain_text("overloaded")


def test_a_store_alone_is_inspected_and_not_changed(tmp_path: Path) -> None:
    anyio.run(_one_chat, f"sqlite:///{tmp_path}/chats.db")
    with running(tmp_path, "inspect", "--store", "sqlite:///chats.db") as process:
        ends = time.monotonic() + 60
        while "Ctrl-C ends it" not in process.said() and time.monotonic() < ends:
            time.sleep(0.05)
        url, _, token = process.said().partition("look at ")[2].split()[0].partition("/inspector#token=")
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=20) as client:
            chat = client.get("/chats").json()["items"][0]
            page = client.get("/inspector").status_code
            said = client.post(f"/chats/{chat['id']}/messages", json={"content": "x"}).status_code
            anyone = httpx.get(f"{url}/chats").status_code
        code = process.stop()
    assert url.startswith("http://127.0.0.1:")
    assert (chat["title"], page, said, anyone, code) == ("Kept", 200, 403, 401, 0)


async def _one_chat(store: str) -> None:
    async with Engine(store, model="demo") as engine:
        await engine.create_chat(title="Kept")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_serious_and_nothing_is_wider_than_a_phone(npm_modules: Path, scheme: Any) -> None:
    """The pictures of the guide are made here: `PICTURES=1` writes them."""
    axe = (npm_modules / "axe-core" / "axe.min.js").read_text()
    model = ScriptedModel([Reply("May I pay for the parcel?", calls=[Call("pay", {"cents": 900, "to": "Ada"})])])
    phone: Any = {"width": 360, "height": 740}
    async with (
        served(Engine("sqlite://", model=model, tools=[pay])) as service,
        inspecting(color_scheme=scheme, viewport=phone) as page,
    ):
        chat = await service.engine.create_chat(owner="ada", title="A parcel")
        await service.engine.ask(chat.id, "Where is it?")
        found, widths = [], []
        for where, shown in (("/", ".rows li"), ("/fleet", ".fleet td"), (f"/chats/{chat.id}", "open-calls fieldset")):
            await look(page, service, where)
            await expect(page.locator(shown).first).to_be_visible()
            for words in ("Timeline", "Time travel", "Family") if "chats" in where else ():
                await page.get_by_text(words, exact=True).click()
            widths.append(await page.evaluate(WIDEST))
            await page.evaluate(axe)
            found += await page.evaluate(AXE)
        if os.environ.get("PICTURES"):
            await page.set_viewport_size({"width": 1100, "height": 760})
            await page.reload()
            await expect(page.locator("open-calls fieldset")).to_be_visible()
            await expect(page.locator(".columns svg .count").first).to_be_visible()
            await page.screenshot(path=ROOT / "docs" / "pictures" / f"inspector-{scheme}.png")

    assert found == []
    assert widths == [[360, []]] * 3
