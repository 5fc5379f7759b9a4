"""Options of a request beside its path: filters, pages, versions, keys, views."""

from datetime import datetime
from typing import Any, Final

import anyio
import httpx
import pytest

from support.gated_model import PacedModel
from support.served import Served, answered, created, served, stream_of, streaming
from turnwise import Agent, Engine, Settings, tool
from turnwise.diagrams import path, slide, sticker, svg, timeline
from turnwise.http_problems import InvalidRequest
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.service.routes.preconditions import parse_version

PICK = {"name": "pick_date", "description": "Ask for a date.", "input_schema": {"type": "object"}}


async def ids(client: httpx.AsyncClient, **query: Any) -> list[str]:
    return [chat["id"] for chat in (await client.get("/chats", params=query)).json()["items"]]


async def test_chats_are_listed_with_filters_and_pages() -> None:
    model = ScriptedModel([Reply(calls=[Call("pick_date", {})])])
    async with (
        served(Engine("sqlite://", model=model)) as service,
        service.client() as ada,
        service.client("operator") as operator,
    ):
        first, second, third = [await created(ada, client_tools=[PICK]) for _ in range(3)]
        nobodys, theirs = await created(operator), await created(operator, owner="bob")
        await answered(ada, second, "A table!")
        assert await ids(ada) == [third, second, first]
        assert await ids(ada, owner="bob") == [third, second, first]
        assert await ids(operator) == [theirs, nobodys, third, second, first]
        assert await ids(operator, owner="bob") == [theirs]
        assert await ids(ada, state="waiting") == [third, first]
        assert await ids(ada, state="requires_action") == await ids(ada, awaiting="client") == [second]
        assert await ids(ada, awaiting="subagents") == []
        page = (await ada.get("/chats", params={"limit": 2})).json()
        assert [chat["id"] for chat in page["items"]] == [third, second]
        assert await ids(ada, limit=2, after=page["next"]) == await ids(ada, limit=2, after=second) == [first]
        every = (await operator.get("/chat-ids")).json()
        assert set(every) == {first, second, third, nobodys, theirs}
        assert (await operator.get("/chat-ids", params={"limit": 2})).json() == every[:2]
        assert (await operator.get("/chat-ids", params={"prefix": second})).json() == [second]
        assert (await operator.get("/chat-ids", params={"prefix": "x"})).json() == []
        assert (await operator.get("/chat-ids", params={"owner": "ada"})).json() == [second, third, first]
        assert (await operator.get("/chat-ids", params={"owner": "ada", "prefix": third})).json() == [third]
        assert (await ada.get("/chat-ids")).json() == [second, third, first]
        assert (await ada.get("/chat-ids", params={"owner": "bob", "limit": 1})).json() == [second]
        assert (await ada.get("/chat-ids", params={"prefix": theirs})).json() == []


async def test_paging_survives_deletion(demo: Served, ada: httpx.AsyncClient) -> None:
    """Deleting listed chats skips none of the next page, and adds none of other owners."""
    every = [await created(ada) for _ in range(5)]
    deleted: list[str] = []
    after: dict[str, str] = {}
    async with demo.client("operator") as operator:
        while len(deleted) < len(every):
            page = (await ada.get("/chats", params={"limit": 2, **after})).json()
            for chat in page["items"]:
                assert (await ada.delete(f"/chats/{chat['id']}")).status_code == 200
                deleted.append(chat["id"])
            after = {"after": page["next"]}
        assert deleted == every[::-1]
        assert page["next"] is None
        last = await created(ada)
        again = await created(ada)
        assert await ids(operator, after=again) == [last]
        assert (await ada.delete(f"/chats/{again}")).status_code == 200
        assert await ids(operator, after=again) == [last]


async def test_page_position_reveals_no_foreign_chat(demo: Served, ada: httpx.AsyncClient) -> None:
    """Its id follows from owner and key: not even the position of a page reveals whether it exists."""
    for _ in range(3):
        await created(ada)
    async with demo.client("bob") as bob:
        living, gone = await created(bob), await created(bob)
        created_at = (await bob.get(f"/chats/{gone}")).json()["created_at"]
        assert (await bob.delete(f"/chats/{gone}")).status_code == 200
    second = int(datetime.fromisoformat(created_at).timestamp())
    ids = {one: one for one in (living, gone, f"c{'0' * 25}", "garbage", "")} | {f"{second}000000~{gone}": gone}
    answers = [(await ada.get("/chats", params={"after": after}), own_id) for after, own_id in ids.items()]
    assert {answer.status_code for answer, _ in answers} == {400}
    assert len({answer.text.replace(own_id or "\0", "...") for answer, own_id in answers}) == 1
    assert answers[0][0].json()["argument"] == "after"


async def test_chat_is_created_once_per_owner_and_key(demo: Served, ada: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": "tab-1"}
    async with demo.client("bob") as bob, demo.client("operator") as operator:
        first, again, bobs = [await who.post("/chats", json={"message": "A"}, headers=key) for who in (ada, ada, bob)]
        other = await ada.post("/chats", json={"message": "B"}, headers=key)
        for_ada = await operator.post("/chats", json={"owner": "ada"}, headers=key)
        own = await ada.post("/chats", json={"owner": "ada"})
        refused = await ada.post("/chats", json={"owner": "bob"})
        for_nobody = await operator.post("/chats", json={})
        beside = await ada.post("/chats", json={"parent": first.json()["id"]})
    chat_id = first.json()["id"]
    assert [answer.json()["id"] for answer in (again, for_ada)] == [chat_id, chat_id]
    assert (bobs.json()["id"] != chat_id, other.status_code) == (True, 409)
    assert first.headers["location"] == f"chats/{chat_id}"
    assert [answer.json()["owner"] for answer in (own, for_nobody)] == ["ada", None]
    assert (refused.status_code, refused.json()["needed"]) == (403, "'operator' for the field 'owner' of 'create_chat'")
    assert beside.json()["parent"] == chat_id


async def test_new_chat_has_location_and_etag(demo: Served, ada: httpx.AsyncClient) -> None:
    chat_id = await created(ada)
    forked = await ada.post(f"/chats/{chat_id}/fork", json={"at_version": 1})
    async with demo.client("operator") as operator:
        exported = (await operator.get(f"/chats/{chat_id}/export")).content
    async with served(Engine("sqlite://", model="demo")) as elsewhere, elsewhere.client("operator") as operator:
        taken = await operator.post("/chats/import", content=exported)
    assert (forked.status_code, forked.headers["location"]) == (201, f"../{forked.json()['id']}")
    assert (taken.headers["location"], taken.headers["etag"]) == (chat_id, f'W/"{taken.json()["version"]}"')


async def test_if_none_match_answers_304(ada: httpx.AsyncClient) -> None:
    path = f"/chats/{await created(ada)}"
    for known in ('W/"1"', '"1"', '"7", W/"1"', '"1" ,"7"'):
        same = await ada.get(path, headers={"If-None-Match": known})
        assert (same.status_code, same.headers["etag"], same.content) == (304, 'W/"1"', b""), known
    for other in ('"7"', "1", '"11"'):
        assert (await ada.get(path, headers={"If-None-Match": other})).status_code == 200, other


async def test_if_match_refuses_old_versions(ada: httpx.AsyncClient) -> None:
    chat_id = await created(ada)
    sent = await answered(ada, chat_id, "Hello!")
    path = f"/chats/{chat_id}"
    version = (await ada.get(path)).json()["version"]
    changes: list[tuple[str, str, dict[str, Any]]] = [
        ("PATCH", path, {"json": {"title": "A"}}),
        ("POST", f"{path}/configure", {"json": {"system": "Be brief."}}),
        ("PATCH", f"{path}/messages/{sent['message_id']}", {"json": {"content": "Hello?"}}),
        ("DELETE", path, {}),
    ]
    for method, where, body in changes:
        for older in (f'"{version - 1}"', '"1"'):
            refused = await ada.request(method, where, headers={"If-Match": older}, **body)
            assert (refused.status_code, refused.json()["version"]) == (412, version), (method, where)
    for method, where, body in changes:
        await stream_of(ada, chat_id, until_rest=True)
        version = (await ada.get(path)).json()["version"]
        taken = await ada.request(method, where, headers={"If-Match": f'"{version}"'}, **body)
        assert taken.status_code in (200, 202), (method, where, taken.text)


async def test_omitted_fields_stay(ada: httpx.AsyncClient) -> None:
    chat_id = await created(ada, title="A", metadata={"tier": "gold"})
    path = f"/chats/{chat_id}"
    changes = ({"title": None}, {"metadata": {}}, {"title": "B"}, {"archived": True}, {"archived": False})
    labels = [(await ada.patch(path, json=change)).json() for change in changes]
    expected = [[None, {"tier": "gold"}, False], [None, {}, False], ["B", {}, False], ["B", {}, True], ["B", {}, False]]
    assert [[chat[name] for name in ("title", "metadata", "archived")] for chat in labels] == expected
    warm = {"temperature": 0.5}
    changes = ({"model": "demo"}, {"parameters": warm}, {"active_tools": []}, {"parameters": None})
    configured = [(await ada.post(f"{path}/configure", json=change)).json() for change in changes]
    expected = [["demo", None, None], ["demo", warm, None], ["demo", warm, []], ["demo", None, []]]
    assert [[chat[name] for name in ("model", "parameters", "active_tools")] for chat in configured] == expected


async def test_model_view_needs_operator_or_auditor(demo: Served, ada: httpx.AsyncClient) -> None:
    chat_id = await created(ada)
    await answered(ada, chat_id, "Hello!")
    await ada.post(f"/chats/{chat_id}/clear")
    path = f"/chats/{chat_id}/messages"
    async with demo.client("auditor") as auditor:
        views = [(await auditor.get(path, params=query)).json() for query in ({}, {"view": "user"}, {"view": "model"})]
        hers = await ada.get(path, params={"view": "user"})
        refused = [await ada.get(path, params={"view": view}) for view in ("model", "raw")]
    assert [[message["role"] for message in view] for view in views] == [["user", "assistant", "system"]] * 2 + [[]]
    assert hers.json() == views[0]
    assert [(answer.status_code, answer.json()["needed"]) for answer in refused] == [
        (403, "'operator' or 'auditor' for the field 'view' of 'list_messages'")
    ] * 2


async def test_agents_are_listed_with_their_tools() -> None:
    @tool
    async def walk() -> None:
        """Walk."""

    @tool
    async def run() -> None:
        """Run."""

    agents = [Agent("support", "demo", tools=[walk, run]), Agent("sales", "demo")]
    async with served(Engine("sqlite://", agents=agents)) as service, service.client() as ada:
        assert (await ada.get("/agents")).json() == {"support": ["run", "walk"], "sales": []}


async def test_diagram_options_and_headers(ada: httpx.AsyncClient) -> None:
    address = f"/chats/{await created(ada)}/diagram.svg"
    whole, bare, simple = [await ada.get(address, params=query) for query in ({}, {"rows": False}, {"simple": True})]
    assert [whole.text, bare.text, simple.text] == [svg("waiting"), svg("waiting", rows=False), slide("waiting")]
    for answer in (whole, bare, simple):
        assert answer.headers["content-type"] == "image/svg+xml"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == (
            "default-src 'none'; style-src 'unsafe-inline'; sandbox"
        )  # fmt: skip


async def test_diagram_shows_what_a_chat_lived_through(demo: Served, ada: httpx.AsyncClient) -> None:
    chat_id = await created(ada, message="Hello!")
    await demo.engine.wait(chat_id)
    events = [event async for event in demo.engine.events(chat_id, follow=False)]
    shown = {
        show: (await ada.get(f"/chats/{chat_id}/diagram.svg", params={"show": show})).text
        for show in ("machine", "sticker", "path", "timeline")
    }
    assert shown == {
        "machine": svg("waiting"),
        "sticker": sticker("waiting"),
        "path": path(events),
        "timeline": timeline(events),
    }
    assert (await ada.get(f"/chats/{chat_id}/diagram.svg", params={"show": "film"})).status_code == 400


async def test_stream_resumes_up_to_the_newest_event() -> None:
    """During a reply the newest events are of parts; `Last-Event-ID` counts, not `after`."""
    model = PacedModel(Reply("Hello, Ada.", chunks=6))
    engine = Engine("sqlite://", model=model, settings=Settings(coalesce=0))
    async with served(engine) as service, service.client() as ada:
        chat_id = await created(ada)
        path = f"/chats/{chat_id}/events"
        sent = await ada.post(f"/chats/{chat_id}/messages", json={"content": "Hi!"})
        model.allow(1)
        with anyio.fail_after(60):
            async with streaming(ada, chat_id, after=sent.json()["seq"]) as events:
                newest = [event.id async for event in until_part(events)][-1]
        assert newest is not None
        answers = [
            await ada.get(path, params={"follow": False, **query}, headers=headers)
            for query, headers in (
                ({"after": newest}, {}),
                ({}, {"Last-Event-ID": str(newest)}),
                ({"after": newest + 1}, {"Last-Event-ID": str(newest)}),
                ({"after": newest + 1}, {}),
                ({"after": 1}, {"Last-Event-ID": str(newest + 1)}),
                ({"after": newest - 1}, {}),
            )
        ]
        model.allow(9)
        await service.engine.wait(chat_id)
        last = (await service.engine.get_chat(chat_id)).last_seq
        at_rest = [
            (await ada.get(path, params={"follow": False, "after": number})).status_code for number in (last, last + 1)
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 400, 400, 200]
    assert [answer.text.count("event: ") for answer in answers if answer.is_success] == [0, 0, 0, 1]
    problem = f"must be the number of an event of this chat, as Last-Event-ID, too; the last one is {newest}"
    assert (answers[3].json()["argument"], answers[3].json()["problem"]) == ("after", problem)
    assert at_rest == [200, 400]


async def until_part(events: Any) -> Any:
    async for event in events:
        yield event
        if event.event == "part":
            return


# Preconditions


VERSIONS: Final = {
    None: None,
    "*": None,
    " * ": None,
    '"7"': 7,
    ' "7" ': 7,
    'W/"7"': 7,
    "7": 7,
    '"9007199254740992"': 2**53,
}


@pytest.mark.parametrize(("tag", "version"), VERSIONS.items())
def test_version_is_read_from_a_tag(tag: str | None, version: int | None) -> None:
    assert parse_version(tag) == version


@pytest.mark.parametrize("tag", ["", "one", '"10000000000000000"', '"7", "8"', "-1", '"7"x', "w/7", "**"])
def test_malformed_version_is_refused(tag: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_version(tag)
    assert refused.value.problems == ({"field": "header.If-Match", "problem": 'must be one version, as in "7", or *'},)
