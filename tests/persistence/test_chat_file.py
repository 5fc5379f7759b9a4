"""A whole chat moves between stores of any kind unchanged; incomplete exports are refused."""

import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from msgspec.structs import replace
from tests.persistence.conftest import Pair

from support.engines import engine_with
from support.latches import Latch
from support.rich_chat import engine_on, live, look
from support.sql_by_hand import by_hand
from turnwise import ChatNotFound, ChatUnreadable, Engine, ImportRefused, Settings, ToolResult, fold, tool
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.audit.verify import verify_stored
from turnwise.persistence.chat_cache import ChatCache
from turnwise.persistence.commit import CachedChat, blank_chat
from turnwise.persistence.from_url import store_from_url
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.decide import Decision
from turnwise.states.facts import Facts
from turnwise.states.messages import QueuedMessage, TextPart
from turnwise.states.triggers import Archived, ClearContext, MetadataChanged, Released, Renamed, Unarchived
from turnwise.states.values.digests import canonical
from turnwise.testing.conformance import plans

IDLE = Settings(run_worker=False)
KEY = b"a key"


@pytest.fixture(params=["from sqlite", "from postgres"])
def two_urls(request: pytest.FixtureRequest, postgres_url: str, tmp_path: Path) -> tuple[str, str]:
    """Return the URLs of a store of each kind."""
    sqlite = f"sqlite:///{tmp_path / 'chats.db'}"
    return (sqlite, postgres_url) if request.param == "from sqlite" else (postgres_url, sqlite)


@pytest.fixture
def first_url(two_urls: tuple[str, str]) -> str:
    return two_urls[0]


@pytest.fixture
def other_url(two_urls: tuple[str, str]) -> str:
    return two_urls[1]


async def exported(engine: Engine, chat_id: str, key: bytes | None = None) -> list[str]:
    return [line async for line in engine.export_chat(chat_id, key=key)]


async def client_view(engine: Engine, chat_id: str) -> list[object]:
    """Return everything that a client can read of a chat except its state."""
    return [
        fold([event async for event in engine.events(chat_id, follow=False)]).messages,
        *[await engine.messages(chat_id, view=view) for view in ("user", "model", "raw")],
        await engine.queued(chat_id),
        await engine.usage(chat_id),
        await engine.compactions(chat_id),
        await engine.audit(chat_id),
    ]


async def _moved(engine: Engine, elsewhere: Engine, chat_id: str) -> None:
    """Move a chat, and assert that it arrived completely."""
    before, chat = await client_view(engine, chat_id), await engine.get_chat(chat_id)
    events = [event async for event in engine.events(chat_id, follow=False)]
    there = await elsewhere.acting("mover").import_chat(await exported(engine, chat_id))
    after = await client_view(elsewhere, chat_id)
    record = after[-1].pop()  # type: ignore[attr-defined]
    assert after == before
    assert [event async for event in elsewhere.events(chat_id, follow=False)] == events
    assert (record.trigger, record.actor, record.version) == ("imported", "mover", chat.version + 1)
    assert record.reason == f"imported as of version {chat.version}, {before[-1][-1].hash}"
    assert (there.state, there.title) == (chat.state, chat.title)
    assert (there.metadata, there.owner) == (chat.metadata, chat.owner)
    verdict = await elsewhere.verify(chat_id)
    assert verdict.ok, verdict


async def test_rich_chat_moves_and_goes_on(first_url: str, other_url: str) -> None:
    """Its log continues, and it can move again, back to a store of the first kind."""
    async with engine_on(store_from_url(first_url, durability="normal", now=None)) as engine:
        chat_id = await live(engine)
        async with engine_with(other_url, "thank you", "and you", "done", tools=[look]) as elsewhere:
            await _moved(engine, elsewhere, chat_id)
            await elsewhere.submit_tool_results(chat_id, [ToolResult("call-3", "large")])
            chat = await elsewhere.wait(chat_id)
            assert chat.state == "waiting"
            assert (await elsewhere.verify(chat_id)).ok
            async with engine_with("sqlite://", settings=IDLE) as third:
                await _moved(elsewhere, third, chat_id)


@tool(crash="at_least_once")
async def again(at: str) -> str:
    """Look."""
    return f"saw {at}"


@pytest.mark.parametrize("at", ["streaming", "executing_tools"])
async def test_running_chat_arrives_without_its_lease(first_url: str, other_url: str, at: str) -> None:
    """Visible parts of the reply move along, and a worker of the new store claims the chat."""
    held, acting = Latch(), Latch()

    @tool(name="again", crash="at_least_once")
    async def held_up(at: str) -> str:
        """Look."""
        await acting.pass_through(0)
        return f"saw {at}"

    first = (
        Reply(calls=[Call("again", {"at": "door"}, id="c")]) if at == "executing_tools" else Reply("never ", delay=1)
    )
    model = ScriptedModel([first, "end"], sleep=held.pass_through)
    if at == "executing_tools":
        held.open()
    async with Engine(first_url, model=model, tools=[held_up], settings=Settings(coalesce=0)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        await (held if at == "streaming" else acting).entered.wait()
        assert (await engine.get_chat(chat.id)).state == at
        lines = await exported(engine, chat.id)
        assert json.loads(lines[2])["table"] == "leases"
        async with engine_with(other_url, tools=[again], settings=IDLE) as elsewhere:
            there = await elsewhere.import_chat(lines)
            assert there.state == "pending"
            assert (await elsewhere.verify(chat.id)).ok
            records = [record.trigger for record in await elsewhere.audit(chat.id)]
            assert records[-2:] == ["imported", "lease_expired"]
        replies = ["end"] if at == "executing_tools" else ["whole"]
        async with engine_with(other_url, *replies, tools=[again]) as elsewhere:
            with anyio.fail_after(60):
                assert (await elsewhere.wait(chat.id)).state == "waiting"
            texts = [message.text for message in await elsewhere.messages(chat.id) if message.text]
            assert texts == ["hello", *replies]
            assert (await elsewhere.verify(chat.id)).ok
        held.open()
        acting.open()
        await engine.wait(chat.id)


async def test_client_id_is_known_after_the_move(first_url: str, other_url: str) -> None:
    """Receipts and assigned ids move, too."""
    async with engine_with(first_url, "one") as engine, engine_with(other_url, settings=IDLE) as elsewhere:
        chat = await engine.create_chat()
        receipt = await engine.send_message(chat.id, "hello", client_id="k")
        await engine.wait(chat.id)
        await elsewhere.import_chat(engine.export_chat(chat.id))
        again = await elsewhere.send_message(chat.id, "hello", client_id="k")
        assert (again.message_id, again.replayed) == (receipt.message_id, True)
        assert (await elsewhere.send_message(chat.id, "more")).message_id not in {
            message.id for message in await engine.messages(chat.id)
        }


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """Return a rich chat, exported and signed."""

    async def export() -> list[str]:
        async with engine_on(store_from_url("sqlite://", durability="normal", now=None)) as engine:
            return await exported(engine, await live(engine), KEY)

    return anyio.run(export)


async def refused(content: list[str], key: bytes | None = None) -> ImportRefused:
    """Return the refusal of these lines; assert that nothing was written."""
    async with engine_with("sqlite://", settings=IDLE) as engine:
        with pytest.raises(ImportRefused, match="nothing was written") as refusal:
            await engine.import_chat(content, key=key)
        assert await engine.chat_ids() == []
        return refusal.value


async def test_cut_file_is_refused_at_its_end(lines: list[str]) -> None:
    for end in (0, 1, 2, len(lines) // 2, len(lines) - 1):
        error = await refused(lines[:end])
        assert (error.line, "missing" in error.problem) == (end + 1, True)


async def test_missing_doubled_or_moved_line_is_named(lines: list[str]) -> None:
    for at in (1, 2, 40, len(lines) - 2):
        assert (await refused(lines[:at] + lines[at + 1 :])).line == at + 1
        assert (await refused(lines[: at + 1] + lines[at:])).line == at + 2
        assert (await refused([*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]])).line == at + 1
    assert (await refused([*lines, lines[-1]])).line == len(lines) + 1
    assert (await refused([*lines, *lines])).line == len(lines) + 1


async def test_every_changed_line_is_named(lines: list[str]) -> None:
    """Any changed letter in any line counts."""
    for number, line in enumerate(lines, start=1):
        fields = json.loads(line)
        changed = json.loads(line)
        row = changed.get("row") or changed
        row = row.get("record", row)
        for name, value in row.items():
            if isinstance(value, str) and value and name != "signature":
                row[name] = ("1" if value[0] == "0" else "0") + value[1:]
                break
        assert changed != fields
        error = await refused([*lines[: number - 1], json.dumps(changed), *lines[number:]], KEY)
        assert error.line == number, (number, error)


@pytest.mark.parametrize(
    "line", ["nonsense", "[]", "null", "{}", '{"a":1,"a":2}', '{"a":NaN}', '{"a":"\\ud800"}', "[" * 100_000, "\x00"]
)
async def test_garbage_line_is_refused(lines: list[str], line: str) -> None:
    for at in (0, 1, 50, len(lines) - 1):
        assert (await refused([*lines[:at], line, *lines[at + 1 :]])).line == at + 1


async def test_signature_must_be_of_the_key(lines: list[str]) -> None:
    """Without a key the signature is ignored, so that users without one can read their own chats."""
    unsigned = json.loads(lines[-1])
    del unsigned["signature"]
    last = len(lines)
    assert (await refused([*lines[:-1], json.dumps(unsigned)], KEY)).line == last
    for signature in ("", "0" * 64, 7, None):
        error = await refused([*lines[:-1], json.dumps(unsigned | {"signature": signature})], KEY)
        assert (error.line, "sign" in error.problem) == (last, True)
    assert "not made with this key" in (await refused(lines, b"another")).problem
    for key in (KEY, None):
        async with engine_with("sqlite://", settings=IDLE) as engine:
            assert await engine.import_chat(lines, key=key)


def forged(lines: list[str], change: Callable[[dict[str, Any]], object]) -> Iterator[str]:
    """Yield changed lines with recomputed hashes, as an attacker without the key could make them."""
    prev = GENESIS
    for line in lines:
        fields = json.loads(line)
        fields.pop("signature", None)
        fields.pop("hash")
        if change(fields) == "left out":
            continue
        prev = hashlib.sha256(prev.encode() + b"\n" + canonical(fields)).hexdigest()
        yield json.dumps(fields | {"hash": prev})


def _in(table: str, **values: Any) -> Callable[[dict[str, Any]], object]:
    def change(fields: dict[str, Any]) -> None:
        if fields.get("table") == table:
            fields["row"] |= values

    return change


def _without(table: str) -> Callable[[dict[str, Any]], object]:
    def change(fields: dict[str, Any]) -> object:
        fields.get("rows", {}).pop(table, None)
        return "left out" if fields.get("table") == table else None

    return change


_FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a message that was not cut is": (_in("messages", cut=3), "messages"),
    "the owner is another": (_in("chats", owner="eve"), "owner"),
    "the state is another": (_in("chats", state="waiting"), "chats"),
    "an event tells something else": (_in("events", body="{}"), "events"),
    "the profile cannot be read": (_in("profiles", body="{"), "profiles"),
    "a part of a reply cannot be read": (
        lambda fields: (
            fields.get("table") == "events" and fields["row"]["kind"] == "part" and fields["row"].update(body="{")
        ),
        "body: ",
    ),
    "the queue is in another order": (
        lambda fields: fields.get("table") == "queue" and fields["row"].update(rank=-fields["row"]["rank"]),
        "the order is",
    ),
    "the queue is in no order": (_in("queue", rank=7), "two messages of the queue have the same rank"),
    "a record tells something else": (_in("audit", record={}), "cannot be read"),
    "a reason was given": (_in("audit", aside='{"events":"","reason":"x","salt":""}'), "audit"),
    "no events are there": (_without("events"), "events"),
    "the chat is not there": (_without("chats"), "chat"),
    "a column is missing": (lambda fields: fields.get("table") == "usage" and fields["row"].pop("body"), "columns"),
    "a number is a text": (_in("messages", position="1"), "whole number"),
    "a number is too large": (_in("calls", deadline=2**63), "whole number"),
    "there is another table": (
        lambda fields: fields.get("table") == "usage" and fields.update(table="secrets"),
        "one of the tables",
    ),
    "the id is another": (lambda fields: "format" in fields and fields.update(chat_id="another"), "header"),
    "the format is of tomorrow": (lambda fields: "format" in fields and fields.update(format_version=3), "version 3"),
    "the head is another": (lambda fields: "rows" in fields and fields.update(head="0" * 64), "head"),
    "files are counted where none are": (
        lambda fields: "rows" in fields and fields.update(blobs=1),
        "counts 1 files, and 0 are there",
    ),
    "the counts are others": (lambda fields: "rows" in fields and fields.update(rows={"messages": 1}), "counts"),
}


@pytest.mark.parametrize("forgery", _FORGERIES)
async def test_rehashed_forgery_is_refused(lines: list[str], forgery: str) -> None:
    change, told_of = _FORGERIES[forgery]
    content = [*forged(lines, change)]
    error = await refused(content)
    assert told_of in str(error), error
    assert 1 <= error.line <= len(content) + 1


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "5~x", "-x", "a b", "日本", "x\n", "\x1b[2J", "x" * 256])
async def test_chat_id_outside_the_alphabet_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A service could neither show nor delete such a chat, and a terminal might execute its characters."""
    error = await refused(await _of_a_chat_named(name, monkeypatch))
    assert (error.line, "is no id of a chat" in error.problem) == (1, True)


async def _of_a_chat_named(name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("turnwise.engine.chat_ids.new_chat_id", lambda: name)
    async with engine_with("sqlite://", settings=IDLE) as engine:
        return await exported(engine, (await engine.create_chat()).id)


async def test_doubled_or_misplaced_row_is_named_by_line(lines: list[str]) -> None:
    """All hashes of the file are valid."""
    at = next(place for place, line in enumerate(lines) if json.loads(line).get("table") == "calls")
    doubled = await refused([*forged([*lines[: at + 1], *lines[at:]], lambda _: None)])
    assert (doubled.line, f"is there twice: first on line {at + 1}" in doubled.problem) == (at + 2, True)
    moved = await refused([*forged([*lines[: at - 1], lines[at], lines[at - 1], *lines[at + 1 :]], lambda _: None)])
    assert (moved.line, "come before those of calls" in moved.problem) == (at + 1, True)


async def test_rehashed_unchanged_lines_are_accepted(lines: list[str]) -> None:
    """Otherwise the test above would prove nothing."""
    async with engine_with("sqlite://", settings=IDLE) as engine:
        assert await engine.import_chat([*forged(lines, lambda _: None)])
    assert "not signed" in (await refused([*forged(lines, lambda _: None)], KEY)).problem


async def test_export_refuses_a_chat_that_does_not_verify(either_url: str) -> None:
    """Any store would refuse the import. `export_rows` still works."""
    async with engine_with(either_url, "one") as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        await by_hand(either_url, "UPDATE messages SET audience = 'model' WHERE position = 1")
        with pytest.raises(ChatUnreadable, match=r"messages\[m1\].audience.*no store would take"):
            await exported(engine, chat.id)
        assert await engine.export_rows(chat.id)
        for asked in ("nobody", ""):
            with pytest.raises(ChatNotFound):
                await exported(engine, asked)


@pytest.mark.parametrize(
    ("damage", "column", "problem"),
    [
        ("body = 'poison'", "events.body", "JSON is malformed"),
        ("kind = 'tool_progress'", "events.body", "missing required field"),
        ("step = 99", "events.step", "not what the body says"),
    ],
)
async def test_export_refuses_unreadable_parts(tmp_path: Path, damage: str, column: str, problem: str) -> None:
    """The parts of a reply are visible before it is finished; the log covers the whole reply."""
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    async with engine_with(url, "one") as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        await by_hand(url, f"UPDATE events SET {damage} WHERE seq = (SELECT min(seq) FROM events WHERE kind = 'part')")  # noqa: S608 - our own
        assert (await engine.verify(chat.id)).ok
        with pytest.raises(ChatUnreadable, match=f"{problem}.*no store would take") as unreadable:
            await exported(engine, chat.id)
    assert unreadable.value.column == column


async def test_quarantined_rows_move_too(tmp_path: Path) -> None:
    """A repair quarantines unreadable rows, and an erasure has to find them in the new store."""
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    async with engine_with(url, settings=IDLE) as engine, engine_with("sqlite://", settings=IDLE) as elsewhere:
        chat = await engine.create_chat()
        for row in ("{}", "[]", "[]"):
            await by_hand(
                url,
                "INSERT INTO quarantine (chat, version, origin, problem, row) "  # noqa: S608 - our own
                f"VALUES (1, 1, 'messages', 'garbled', '{row}')",
            )
        await elsewhere.import_chat(await exported(engine, chat.id))
        assert (await elsewhere.erase(chat.id, what=["quarantine"])).quarantined == 3


# The cache of chats


def rename(title: str) -> plans.Move:
    return plans.move(Renamed(title=title))


ELSEWHERE: Final = {
    "nothing but a label": (rename("elsewhere"),),
    "a label and back": (rename("elsewhere"), rename("here")),
    "a message": (plans.send("elsewhere"),),
    "a whole turn": plans.turn("elsewhere", "2"),
    "a clearing of the context": (plans.move(ClearContext()),),
    "the archive and back": (plans.move(Archived()), plans.move(Unarchived())),
    "an open call": (plans.send("elsewhere"), plans.claim(), plans.reply("", client=["c"])),
}


@pytest.mark.parametrize("moves", ELSEWHERE.values(), ids=ELSEWHERE)
async def test_plan_sees_changes_of_another_process(pair: Pair, moves: tuple[plans.Move, ...]) -> None:
    """Between two commits of this process, with no holder: no decision uses outdated facts."""
    here, elsewhere = pair
    await plans.created(here, "chat", *plans.turn("one", "1"), rename("here"))
    for move in moves:
        left = await elsewhere.change("chat", plans.plan(move))
    asked: list[Facts] = []

    def relabel(facts: Facts, now: datetime) -> list[Decision]:
        asked.append(facts)
        return [plans.move(MetadataChanged(metadata={"seen": facts.version}))(facts, now)]

    committed = await here.change("chat", relabel)
    assert asked[-1] == committed.before == left.facts
    assert committed.facts.version == left.facts.version + 1
    assert await elsewhere.facts("chat") == await here.facts("chat") == committed.facts
    assert verify_stored("chat", await here.rows("chat")).ok
    events = await here.events("chat", after=0, limit=1000)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


async def test_claim_reads_changes_of_another_process(pair: Pair) -> None:
    """A chat that another process claimed, changed and released arrives with its current rows."""
    here, elsewhere = pair
    await plans.created(here, "chat", plans.send("one"))
    released = (plans.claim("other"), plans.move(Released(token=plans.HOLDER)), rename("elsewhere"))
    for move in released:
        left = await elsewhere.change("chat", plans.plan(move))
    (claimed,) = await here.claim(plans.plan(plans.claim("mine")), runs=plans.RUNS, limit=1)
    assert claimed.facts.version == left.facts.version + 1
    assert claimed.facts.profile.title == "elsewhere"
    assert claimed.facts.lease.token == 2
    assert verify_stored("chat", await here.rows("chat")).ok


BY_HAND: Final = {
    "state": ("UPDATE chats SET state = 'dreaming'", "UPDATE chats SET state = 'dreaming'"),
    "facts": (
        """UPDATE chats SET facts = json_set(facts, '$.serial', 77)""",
        """UPDATE facts SET body = jsonb_set(body::jsonb, '{serial}', '77')::text""",
    ),
    "token": (
        "UPDATE chats SET worker = 'other', token = 1, expires = 0",
        "UPDATE chats SET worker = 'other', token = 1, expires = now()",
    ),
}


@pytest.mark.parametrize("what", BY_HAND)
async def test_change_by_sql_is_seen_without_a_version(pair: Pair, either_url: str, what: str) -> None:
    """Manual SQL adds no version, so state, token and facts are compared, too."""
    here, elsewhere = pair
    await plans.created(here, "chat", *plans.turn("one", "1"))
    on_sqlite, on_postgres = BY_HAND[what]
    await by_hand(either_url, on_sqlite if either_url.startswith("sqlite") else on_postgres)
    asked: list[Facts] = []

    def look(facts: Facts, now: datetime) -> list[Decision]:
        asked.append(facts)
        return []

    await here.change("chat", look)
    assert asked[-1] == await elsewhere.facts("chat")


def test_cache_keeps_the_last_used_chats() -> None:
    cache, at = ChatCache(), datetime(2026, 1, 1, tzinfo=UTC)
    names = [str(number) for number in range(3000)]
    for name in names:
        cache.put(blank_chat(name, at))
        cache.put(blank_chat("again", at))
    remembered = [name for name in names if cache.get(name) is not None]
    assert remembered == names[-len(remembered) :]
    assert 100 < len(remembered) < len(names)
    assert cache.get("again") is not None


def queueing(name: str, at: datetime, queue: tuple[QueuedMessage, ...]) -> CachedChat:
    blank = blank_chat(name, at)
    return replace(blank, facts=replace(blank.facts, queue=queue))


def test_cache_is_bounded_by_what_queues_hold() -> None:
    """The newest chat stays at any queue size, and so do chats with small queues."""
    cache, now = ChatCache(), datetime.now(UTC)
    large = (QueuedMessage(id="m1", parts=(TextPart(text="x" * 50_000_000),), accepted_at=now),)
    for name, queue in {"one": large, "empty": (), "two": large, "three": large}.items():
        cache.put(queueing(name, now, queue))
    assert cache.known() == ["empty", "two", "three"]
    cache.forget("three")
    cache.put(blank_chat("two", now))
    cache.put(queueing("four", now, large))
    cache.put(queueing("five", now, large))
    assert cache.known() == ["empty", "two", "four", "five"]
