"""A whole chat moves between stores of any kind, as it stands; lines that are not all of a chat are refused."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from support.latches import Latch
from support.rich_chat import ASK, engine_on, live, look
from support.sql_by_hand import by_hand
from turnwise import (
    ChatDeleted,
    ChatExists,
    ChatNotFound,
    ChatUnreadable,
    Engine,
    ImportRefused,
    InvalidArgument,
    Settings,
    ToolResult,
    fold,
    tool,
)
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.chat_file.format import WholeChat
from turnwise.persistence.chat_file.reader import read_chat
from turnwise.persistence.chat_file.writer import lines_of
from turnwise.persistence.conformance import plans
from turnwise.persistence.from_url import store_from_url
from turnwise.providers.protocol import ModelPart
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.decide import Decision
from turnwise.states.digests import canonical
from turnwise.states.facts import Facts, Profile
from turnwise.states.triggers import Create
from turnwise.testing.clock import ManualClock

IDLE = Settings(run_worker=False)
KEY = b"a key"


@pytest.fixture(params=["from sqlite", "from postgres"])
def two_urls(request: pytest.FixtureRequest, postgres_url: str, tmp_path: Path) -> tuple[str, str]:
    """Return the URLs of a store of each kind."""
    sqlite = f"sqlite:///{tmp_path / 'chats.db'}"
    return (sqlite, postgres_url) if request.param == "from sqlite" else (postgres_url, sqlite)


@pytest.fixture
def first_url(two_urls: tuple[str, str]) -> str:
    """Return the URL of the store that a chat comes from."""
    return two_urls[0]


@pytest.fixture
def other_url(two_urls: tuple[str, str]) -> str:
    """Return the URL of a store of the other kind."""
    return two_urls[1]


@asynccontextmanager
async def on(url: str, *replies: Any, **options: Any) -> AsyncIterator[Engine]:
    """Open an engine that answers with the replies."""
    async with Engine(url, model=ScriptedModel([*replies]), **options) as engine:
        yield engine


async def exported(engine: Engine, chat_id: str, key: bytes | None = None) -> list[str]:
    return [line async for line in engine.export_chat(chat_id, key=key)]


async def told(engine: Engine, chat_id: str) -> list[object]:
    """Return everything that a client can learn of a chat, but where it stands."""
    return [
        fold([event async for event in engine.events(chat_id, follow=False)]).messages,
        *[await engine.messages(chat_id, view=view) for view in ("user", "model", "raw")],
        await engine.queued(chat_id),
        await engine.usage(chat_id),
        await engine.compactions(chat_id),
        await engine.audit(chat_id),
    ]


async def _moved(engine: Engine, elsewhere: Engine, chat_id: str) -> None:
    """Move a chat, and swear that all of it has arrived."""
    before, chat = await told(engine, chat_id), await engine.get_chat(chat_id)
    events = [event async for event in engine.events(chat_id, follow=False)]
    there = await elsewhere.import_chat(await exported(engine, chat_id), actor="mover")
    after = await told(elsewhere, chat_id)
    record = after[-1].pop()  # type: ignore[attr-defined]
    assert after == before
    assert [event async for event in elsewhere.events(chat_id, follow=False)] == events
    assert (record.trigger, record.actor, record.version) == ("imported", "mover", chat.version + 1)
    assert record.reason == f"imported as of version {chat.version}, {before[-1][-1].hash}"
    assert (there.state, there.title, there.metadata, there.owner) == (
        chat.state,
        chat.title,
        chat.metadata,
        chat.owner,
    )
    verdict = await elsewhere.verify(chat_id)
    assert verdict.ok, verdict


async def test_a_rich_chat_moves_to_another_store_and_goes_on_there(first_url: str, other_url: str) -> None:
    """Its log continues, and it can move again, back to a store of the first kind."""
    async with engine_on(store_from_url(first_url, durability="normal", now=None)) as engine:
        chat_id = await live(engine)
        async with on(other_url, "thank you", "and you", "done", tools=[look]) as elsewhere:
            await _moved(engine, elsewhere, chat_id)
            await elsewhere.submit_tool_results(chat_id, [ToolResult("call-3", "large")])
            chat = await elsewhere.wait(chat_id)
            assert chat.state == "waiting"
            assert (await elsewhere.verify(chat_id)).ok
            async with on("sqlite://", settings=IDLE) as third:
                await _moved(elsewhere, third, chat_id)


async def test_a_rich_chat_moves_between_stores_of_one_kind(either_url: str) -> None:
    """Its rows are the same then, but for what the import adds."""
    async with engine_on(store_from_url(either_url, durability="normal", now=None)) as engine:
        chat_id = await live(engine)
        lines = await exported(engine, chat_id)
    table = "sqlite_master" if either_url.startswith("sqlite") else "pg_tables"
    assert await by_hand(either_url, f"SELECT count(*) FROM {table}")  # noqa: S608 - two names
    await _drop(either_url)
    async with on(either_url, settings=IDLE) as again:
        await again.import_chat(lines)
        assert (await again.verify(chat_id)).ok
        there = await exported(again, chat_id)
    before, after = map(_rows_of, (lines, there))
    assert before - after == {row for row in before if row.startswith('["chats"')}


def _rows_of(lines: list[str]) -> set[str]:
    rows = [json.loads(line) for line in lines]
    return {json.dumps([row["table"], row["row"]], sort_keys=True) for row in rows if "table" in row}


async def _drop(url: str) -> None:
    if url.startswith("sqlite"):
        await anyio.Path(url.removeprefix("sqlite:///")).unlink()
        return
    await by_hand(url, f"DROP SCHEMA {url.rpartition('schema=')[2]} CASCADE")


@tool(crash="at_least_once")
async def again(at: str) -> str:
    """Look."""
    return f"saw {at}"


@pytest.mark.parametrize("at", ["streaming", "executing_tools"])
async def test_a_chat_under_way_arrives_without_its_lease_and_is_finished_there(
    first_url: str, other_url: str, at: str
) -> None:
    """As it stands: what was shown of the reply is there, and a worker of the new store takes it up."""
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
        async with on(other_url, tools=[again], settings=IDLE) as elsewhere:
            there = await elsewhere.import_chat(lines)
            assert there.state == "pending"
            assert (await elsewhere.verify(chat.id)).ok
            records = [record.trigger for record in await elsewhere.audit(chat.id)]
            assert records[-2:] == ["imported", "lease_expired"]
        replies = ["end"] if at == "executing_tools" else ["whole"]
        async with on(other_url, *replies, tools=[again]) as elsewhere:
            with anyio.fail_after(60):
                assert (await elsewhere.wait(chat.id)).state == "waiting"
            said = [message.text for message in await elsewhere.messages(chat.id) if message.text]
            assert said == ["hello", *replies]
            assert (await elsewhere.verify(chat.id)).ok
        held.open()
        acting.open()
        await engine.wait(chat.id)


async def test_a_chat_whose_tools_run_awaits_nobody_yet_although_calls_of_its_client_are_open() -> None:
    store = store_from_url("sqlite://", durability="normal", now=None)
    await store.open()
    try:
        calls = plans.reply("look", local=["a"], client=["b"])
        await plans.created(store, "chat", plans.send("hi"), plans.claim(), plans.start(), calls)
        read = read_chat([*lines_of(WholeChat(await store.rows("chat")))])
        assert (read.rows.chat["state"], read.rows.chat["awaits"]) == ("executing_tools", None)
    finally:
        await store.close()


async def test_erased_archived_and_forked_chats_move(first_url: str, other_url: str) -> None:
    async with on(first_url, "one", "two") as engine, on(other_url, settings=IDLE) as elsewhere:
        chat = await engine.create_chat(title="title")
        first = await engine.send_message(chat.id, "secret", client_id="k")
        await engine.wait(chat.id)
        fork = await engine.fork(chat.id, at_version=(await engine.get_chat(chat.id)).version)
        await engine.erase(chat.id, messages=[first.message_id], what=["title"])
        await engine.archive(chat.id)
        for chat_id in (chat.id, fork.id):
            await _moved(engine, elsewhere, chat_id)
        assert (await elsewhere.get_chat(chat.id)).archived
        assert "secret" not in "".join(await exported(elsewhere, chat.id))
        await elsewhere.erase(fork.id, what=["everything"])
        assert "secret" not in "".join(await exported(elsewhere, fork.id))
        assert (await elsewhere.verify(fork.id)).ok
        assert (await elsewhere.unarchive(chat.id)).archived is False


async def test_a_message_is_accepted_once_though_the_chat_has_moved(first_url: str, other_url: str) -> None:
    """Receipts move, too, and so do the ids that were given."""
    async with on(first_url, "one") as engine, on(other_url, settings=IDLE) as elsewhere:
        chat = await engine.create_chat()
        receipt = await engine.send_message(chat.id, "hello", client_id="k")
        await engine.wait(chat.id)
        await elsewhere.import_chat(engine.export_chat(chat.id))
        again = await elsewhere.send_message(chat.id, "hello", client_id="k")
        assert (again.message_id, again.replayed) == (receipt.message_id, True)
        assert (await elsewhere.send_message(chat.id, "more")).message_id not in {
            message.id for message in await engine.messages(chat.id)
        }


async def test_an_id_that_was_ever_used_is_refused(either_url: str) -> None:
    async with on(either_url, "one") as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        lines = await exported(engine, chat.id)
        before = await told(engine, chat.id)
        with pytest.raises(ChatExists, match=chat.id):
            await engine.import_chat(lines)
        assert await told(engine, chat.id) == before
        await engine.delete_chat(chat.id)
        with pytest.raises(ChatDeleted):
            await engine.import_chat(lines)
        assert await engine.chat_ids() == []


async def test_racing_imports_take_a_chat_in_once(first_url: str, other_url: str) -> None:
    outcomes: list[str] = []
    async with on(first_url, "one") as engine, on(other_url, settings=IDLE) as here, on(other_url) as there:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        lines = await exported(engine, chat.id)

        async def race(by: Engine) -> None:
            try:
                await by.import_chat(lines)
            except ChatExists:
                outcomes.append("refused")
            else:
                outcomes.append("taken in")

        async with anyio.create_task_group() as tasks:
            for by in (here, there, here):
                tasks.start_soon(race, by)
        assert sorted(outcomes) == ["refused", "refused", "taken in"]
        assert (await here.verify(chat.id)).ok


async def test_lines_come_in_any_form(tmp_path: Path) -> None:
    """Of a file, of one text, of bare lines; blank lines and line ends do not count."""
    async with on("sqlite://", "one") as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        lines = await exported(engine, chat.id)
    file = tmp_path / "chat.jsonl"
    file.write_text("".join(lines), encoding="utf-8")
    with file.open(encoding="utf-8") as opened:
        for given in (
            opened,
            "".join(lines),
            [line.rstrip() for line in lines],
            [f"{line.rstrip()}\r\n" for line in lines],
        ):
            async with on("sqlite://", settings=IDLE) as elsewhere:
                assert (await elsewhere.import_chat(given)).id == chat.id


@pytest.mark.parametrize("given", [None, 7, b"{}", [b"{}"], [None]])
async def test_what_is_no_lines_is_refused(given: Any) -> None:
    async with on("sqlite://", settings=IDLE) as engine:
        with pytest.raises(InvalidArgument, match=r"^lines.*nothing was written$"):
            await engine.import_chat(given)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
async def test_lines_without_an_end_are_refused_soon(lines: list[str], *, is_async: bool, begun: bool) -> None:
    """Somebody may post them; a whole chat is held in memory, but not what is none."""
    given = 0

    def endless() -> Iterator[str]:
        nonlocal given
        for line in itertools.chain(lines if begun else [], itertools.repeat("again")):
            given += 1
            yield line

    async def slowly() -> AsyncIterator[str]:
        for line in endless():
            yield line

    async with on("sqlite://") as engine:
        with anyio.fail_after(60), pytest.raises(ImportRefused):
            await engine.import_chat(slowly() if is_async else endless())
        assert await engine.chat_ids() == []
    assert given <= len(lines) + 1000


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """Return a rich chat, exported and signed."""

    async def export() -> list[str]:
        async with engine_on(store_from_url("sqlite://", durability="normal", now=None)) as engine:
            return await exported(engine, await live(engine), KEY)

    return anyio.run(export)


async def refused(given: list[str], key: bytes | None = None) -> ImportRefused:
    """Return the refusal of lines, having written nothing."""
    async with on("sqlite://", settings=IDLE) as engine:
        with pytest.raises(ImportRefused, match="nothing was written") as refusal:
            await engine.import_chat(given, key=key)
        assert await engine.chat_ids() == []
        return refusal.value


async def test_a_file_that_is_cut_anywhere_is_refused_where_it_ends(lines: list[str]) -> None:
    for end in (0, 1, 2, len(lines) // 2, len(lines) - 1):
        error = await refused(lines[:end])
        assert (error.line, "missing" in error.problem) == (end + 1, True)


async def test_a_line_that_is_missing_doubled_or_moved_is_named(lines: list[str]) -> None:
    for at in (1, 2, 40, len(lines) - 2):
        assert (await refused(lines[:at] + lines[at + 1 :])).line == at + 1
        assert (await refused(lines[: at + 1] + lines[at:])).line == at + 2
        assert (await refused([*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]])).line == at + 1
    assert (await refused([*lines, lines[-1]])).line == len(lines) + 1
    assert (await refused([*lines, *lines])).line == len(lines) + 1


async def test_every_single_line_that_was_changed_is_named(lines: list[str]) -> None:
    """One letter is enough, in any line."""
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
async def test_what_is_no_line_of_a_chat_is_refused(lines: list[str], line: str) -> None:
    for at in (0, 1, 50, len(lines) - 1):
        assert (await refused([*lines[:at], line, *lines[at + 1 :]])).line == at + 1


async def test_a_signature_is_needed_and_must_be_of_the_key(lines: list[str]) -> None:
    """Without a key it is ignored, so that who has none can still read their own chat."""
    unsigned = json.loads(lines[-1])
    del unsigned["signature"]
    last = len(lines)
    assert (await refused([*lines[:-1], json.dumps(unsigned)], KEY)).line == last
    for signature in ("", "0" * 64, 7, None):
        error = await refused([*lines[:-1], json.dumps(unsigned | {"signature": signature})], KEY)
        assert (error.line, "sign" in error.problem) == (last, True)
    assert "not made with this key" in (await refused(lines, b"another")).problem
    for key in (KEY, None):
        async with on("sqlite://", settings=IDLE) as engine:
            assert await engine.import_chat(lines, key=key)


def forged(lines: list[str], change: Callable[[dict[str, Any]], object]) -> Iterator[str]:
    """Yield the lines after a change, with hashes made anew: by someone who knows the format, and has no key."""
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
    "a message says something else": (_in("messages", body='{"id":"m1"}'), "messages"),
    "a message loses its salt": (_in("messages", salt=None), "messages"),
    "a message that was not cut is": (_in("messages", cut=3), "messages"),
    "the owner is another": (_in("chats", owner="eve"), "owner"),
    "the state is another": (_in("chats", state="waiting"), "chats"),
    "the state is none": (_in("chats", state="daydreaming"), "chats"),
    "the facts are others": (_in("chats", facts="{}"), "chats"),
    "the chat is settled otherwise": (_in("chats", archived=True), "chats"),
    "an event tells something else": (_in("events", body="{}"), "events"),
    "the profile cannot be read": (_in("profiles", body="{"), "profiles"),
    "a call cannot be read": (_in("calls", body="{"), "calls"),
    "a part of a reply cannot be read": (
        lambda fields: (
            fields.get("table") == "events" and fields["row"]["kind"] == "part" and fields["row"].update(body="{")
        ),
        "body: ",
    ),
    "events were told at another time": (_in("events", at=7), "events"),
    "a call is finished": (_in("calls", status="succeeded"), "calls"),
    "the queue is in another order": (
        lambda fields: fields.get("table") == "queue" and fields["row"].update(rank=-fields["row"]["rank"]),
        "the order is",
    ),
    "the queue is in no order": (_in("queue", rank=7), "two messages of the queue have the same rank"),
    "the usage is less": (_in("usage", body="{}"), "usage"),
    "a record tells something else": (_in("audit", record={}), "cannot be read"),
    "a reason was given": (_in("audit", aside='{"events":"","reason":"x","salt":""}'), "audit"),
    "there is a lease": (
        lambda fields: (
            fields.get("table") == "profiles" and fields.update(table="leases", row={"worker": "w", "token": 9})
        ),
        "profiles",
    ),
    "no messages are there": (_without("messages"), "messages"),
    "no log is there": (_without("audit"), "log"),
    "no profile is there": (_without("profiles"), "profiles"),
    "no events are there": (_without("events"), "events"),
    "no receipts are there": (_without("receipts"), "receipts"),
    "the chat is not there": (_without("chats"), "chat"),
    "a column is missing": (lambda fields: fields.get("table") == "usage" and fields["row"].pop("body"), "columns"),
    "a column is too many": (_in("usage", more=1), "columns"),
    "a number is a text": (_in("messages", position="1"), "whole number"),
    "a number is a truth value": (_in("messages", position=True), "whole number"),
    "a number is too large": (_in("calls", deadline=2**63), "whole number"),
    "there is another table": (
        lambda fields: fields.get("table") == "usage" and fields.update(table="secrets"),
        "one of the tables",
    ),
    "a table has a name of SQL": (
        lambda fields: fields.get("table") == "usage" and fields.update(table="usage; DROP TABLE chats"),
        "one of the tables",
    ),
    "the id is another": (lambda fields: "format" in fields and fields.update(chat_id="another"), "header"),
    "the id is a number": (lambda fields: "format" in fields and fields.update(chat_id=1), "the header holds"),
    "the header says more": (lambda fields: "format" in fields and fields.update(note="mine"), "the header holds"),
    "the format is of tomorrow": (lambda fields: "format" in fields and fields.update(format_version=3), "version 3"),
    "the format is an audit log's": (
        lambda fields: "format" in fields and fields.update(format="turnwise-audit/1"),
        "turnwise-chat",
    ),
    "the head is another": (lambda fields: "rows" in fields and fields.update(head="0" * 64), "head"),
    "files are counted where none are": (
        lambda fields: "rows" in fields and fields.update(blobs=1),
        "counts 1 files, and 0 are there",
    ),
    "the counts are others": (lambda fields: "rows" in fields and fields.update(rows={"messages": 1}), "counts"),
}


@pytest.mark.parametrize("forgery", _FORGERIES)
async def test_who_makes_the_hashes_anew_still_cannot_change_what_the_log_tells(lines: list[str], forgery: str) -> None:
    change, told_of = _FORGERIES[forgery]
    given = [*forged(lines, change)]
    error = await refused(given)
    assert told_of in str(error), error
    assert 1 <= error.line <= len(given) + 1


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "5~x", "-x", "a b", "日本", "x\n", "\x1b[2J", "x" * 256])
async def test_an_id_that_no_path_names_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A service could neither show nor delete such a chat, and a terminal might obey it."""
    error = await refused(await _of_a_chat_named(name, monkeypatch))
    assert (error.line, "is no id of a chat" in error.problem) == (1, True)


@pytest.mark.parametrize("name", ["a", "0", "A-b_9", "x" * 255])
async def test_an_id_need_not_be_one_that_turnwise_would_make(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    given = await _of_a_chat_named(name, monkeypatch)
    async with on("sqlite://", settings=IDLE) as engine:
        assert (await engine.import_chat(given)).id == name


async def _of_a_chat_named(name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("turnwise.engine.chat_ids.new_chat_id", lambda: name)
    async with on("sqlite://", settings=IDLE) as engine:
        return await exported(engine, (await engine.create_chat()).id)


@pytest.mark.parametrize("table", ["messages", "events", "usage", "receipts"])
async def test_a_row_that_differs_from_the_log_is_named_by_its_line(lines: list[str], table: str) -> None:
    """Although every hash of the file is right, so that only the log can tell."""
    rows = [place for place, line in enumerate(lines) if json.loads(line).get("table") == table]
    for place in {rows[0], rows[-1]}:
        row = json.loads(lines[place])["row"]

        def change(fields: dict[str, Any], row: Any = row) -> None:
            if fields.get("table") == table and fields["row"] == row:
                fields["row"] |= {"body": "{}"}

        assert (await refused([*forged(lines, change)])).line == place + 1


async def test_a_row_that_is_doubled_or_of_a_table_that_was_over_is_named_by_its_line(lines: list[str]) -> None:
    """Although every hash of the file is right."""
    at = next(place for place, line in enumerate(lines) if json.loads(line).get("table") == "calls")
    doubled = await refused([*forged([*lines[: at + 1], *lines[at:]], lambda _: None)])
    assert (doubled.line, f"is there twice: first on line {at + 1}" in doubled.problem) == (at + 2, True)
    moved = await refused([*forged([*lines[: at - 1], lines[at], lines[at - 1], *lines[at + 1 :]], lambda _: None)])
    assert (moved.line, "come before those of calls" in moved.problem) == (at + 1, True)


async def test_hashes_made_anew_over_what_was_not_changed_are_as_good(lines: list[str]) -> None:
    """Or the test above would prove nothing."""
    async with on("sqlite://", settings=IDLE) as engine:
        assert await engine.import_chat([*forged(lines, lambda _: None)])
    assert "not signed" in (await refused([*forged(lines, lambda _: None)], KEY)).problem


async def test_a_number_from_which_nobody_could_count_on_is_refused() -> None:
    """Although the log bears it out: the store that takes it in could do nothing with the chat."""
    store, sent = store_from_url("sqlite://", durability="normal", now=None), plans.plan(plans.send("hello"))

    def counting_far(facts: Facts, now: datetime) -> list[Decision]:
        return [replace(decision, facts=replace(decision.facts, fence=2**62)) for decision in sent(facts, now)]

    async with Engine(store, model=ScriptedModel(()), settings=IDLE) as engine:
        await plans.created(store, "chat")
        await store.change("chat", counting_far)
        lines = [*lines_of(WholeChat(await store.rows("chat")))]
        with pytest.raises(ChatUnreadable, match=r"fence: .*no store would take"):
            await exported(engine, "chat")
    assert "chats.facts: fence: " in (await refused(lines)).problem


async def test_a_helper_that_may_have_more_of_them_below_it_than_the_limit_says_is_refused() -> None:
    """Although the log bears its depth out, too."""
    store = store_from_url("sqlite://", durability="normal", now=None)
    profile = Profile(created_at=datetime(2026, 11, 27, tzinfo=UTC), depth=-1)
    async with Engine(store, model=ScriptedModel(()), settings=IDLE):
        await store.create("chat", plans.plan(plans.move(Create(profile=profile))))
        lines = [*lines_of(WholeChat(await store.rows("chat")))]
    assert "cannot be held against the log: depth: " in (await refused(lines)).problem


async def test_a_profile_that_nobody_can_walk_through_is_refused() -> None:
    """Every digest and hash is right: whoever wrote the lines knows the format."""

    def nesting_deep(facts: Facts, now: datetime) -> list[Decision]:
        nested: list[object] = []
        for _ in range(200):
            nested = [nested]
        return [plans.move(Create(profile=Profile(created_at=now, metadata={"k": nested})))(facts, now)]

    store = store_from_url("sqlite://", durability="normal", now=None)
    async with Engine(store, model=ScriptedModel(()), settings=IDLE):
        await store.create("chat", nesting_deep)
        lines = [*lines_of(WholeChat(await store.rows("chat")))]
    refusal = await refused(lines)
    assert "nested deeper" in refusal.problem
    assert json.loads(lines[refusal.line - 1])["table"] == "profiles"


async def test_what_does_not_verify_is_not_exported(either_url: str) -> None:
    """No store would take it in: better to learn that now. `export_rows` still writes it down."""
    async with on(either_url, "one") as engine:
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
async def test_what_could_not_be_read_is_not_exported_although_the_log_does_not_tell_of_it(
    tmp_path: Path, damage: str, column: str, problem: str
) -> None:
    """The pieces of a reply are shown before it is finished: the log tells of the whole."""
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    async with on(url, "one") as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        await by_hand(url, f"UPDATE events SET {damage} WHERE seq = (SELECT min(seq) FROM events WHERE kind = 'part')")  # noqa: S608 - our own
        assert (await engine.verify(chat.id)).ok
        with pytest.raises(ChatUnreadable, match=f"{problem}.*no store would take") as unreadable:
            await exported(engine, chat.id)
    assert unreadable.value.column == column


@pytest.mark.parametrize(
    ("column", "value"), [("version", "'poison'"), ("row", "X'FF00'"), ("problem", "CAST(X'FF41' AS TEXT)")]
)
async def test_what_was_put_aside_and_fits_into_no_line_is_not_exported(
    tmp_path: Path, column: str, value: str
) -> None:
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    async with on(url, settings=IDLE) as engine:
        chat = await engine.create_chat()
        row = {"chat_id": f"'{chat.id}'", "version": "1", "origin": "'messages'", "problem": "'garbled'", "row": "'{}'"}
        values = ", ".join((row | {column: value}).values())
        await by_hand(url, f"INSERT INTO quarantine (chat_id, version, origin, problem, row) VALUES ({values})")  # noqa: S608 - our own
        with pytest.raises(ChatUnreadable, match="belongs here, so no store would take") as unreadable:
            await exported(engine, chat.id)
    assert unreadable.value.column == f"quarantine.{column}"


async def test_a_reply_under_way_that_cannot_be_read_is_not_exported(either_url: str) -> None:
    stalled = Reply(parts=[ModelPart("text_delta", text="Hel")], stall_after=1)
    async with on(either_url, stalled, settings=Settings(coalesce=0)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        async for event in engine.events(chat.id):
            if event.kind == "part":
                break
        await exported(engine, chat.id)
        table = "events" if either_url.startswith("sqlite") else "partial_events"
        await by_hand(either_url, f"UPDATE {table} SET body = 'poison' WHERE kind = 'part'")  # noqa: S608 - our own
        with pytest.raises(ChatUnreadable, match="JSON is malformed") as unreadable:
            await exported(engine, chat.id)
    assert unreadable.value.column == "events.body"


async def test_what_was_put_aside_moves_too(tmp_path: Path) -> None:
    """A repair keeps what it could not read; an erasure has to find it in the new store."""
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    async with on(url, settings=IDLE) as engine, on("sqlite://", settings=IDLE) as elsewhere:
        chat = await engine.create_chat()
        for row in ("{}", "[]", "[]"):
            await by_hand(
                url,
                "INSERT INTO quarantine (chat_id, version, origin, problem, row) "  # noqa: S608 - our own
                f"VALUES ('{chat.id}', 1, 'messages', 'garbled', '{row}')",
            )
        await elsewhere.import_chat(await exported(engine, chat.id))
        assert (await elsewhere.erase(chat.id, what=["quarantine"])).quarantined == 3


async def test_an_import_counts_by_the_clock_of_its_store(tmp_path: Path) -> None:
    clock = ManualClock()
    async with on("sqlite://", "one") as engine:
        chat = await engine.create_chat(client_tools=[ASK])
        await engine.ask(chat.id, "hello")
        lines = await exported(engine, chat.id)
    async with on(f"sqlite:///{tmp_path / 'chats.db'}", settings=IDLE, clock=clock) as elsewhere:
        there = await elsewhere.import_chat(lines)
        assert there.updated_at == clock.now()
        assert there.created_at == chat.created_at
