"""Schedules: requests of callers, models and attackers, and schedules of closed or deleted chats."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.engines import OpenEngine
from support.served import served
from support.sql_by_hand import raw
from turnwise import Engine, FilePart, QueueFull, Settings, TextPart, time_zones, wake_me
from turnwise.client import Client
from turnwise.engine.transactions.schedules import Times
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.messages import Wakeup
from turnwise.testing import ManualClock

LATER = datetime(2026, 1, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("every", "zone", "now", "due"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z", "2026-03-29T01:00Z"),  # skipped: right after the gap
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", "2026-10-25T00:30Z"),  # repeated: at the first
        ("45 2 * * *", "Europe/Berlin", "2026-10-25T01:15Z", "2026-10-26T01:45Z"),  # not again, nor in the past
        ("0 9 * * 1", "UTC", "2026-11-30T09:00Z", "2026-12-07T09:00Z"),
    ],
)
def test_daylight_saving_repeats_and_loses_no_time(every: str, zone: str, now: str, due: str) -> None:
    assert Times.of(None, every, zone).after(datetime.fromisoformat(now)) == datetime.fromisoformat(due)


async def test_scheduled_message_lives_and_ends_with_its_chat(open_engine: OpenEngine, database: Path) -> None:
    clock, settings = ManualClock(), Settings(schedule_limit=2, archive_after=60, poll_interval=1)
    image = FilePart.from_bytes(b"secret-bytes" * 9000, "text/plain")
    async with open_engine(ScriptedModel(["ok"]), clock=clock, settings=settings) as engine:
        chat = await engine.create_chat()
        await engine.schedule(chat.id, [TextPart(text="secret-words"), image], at=LATER, id="a")
        await engine.schedule(chat.id, "b", every="0 9 * * *", id="b")
        with pytest.raises(QueueFull, match="at most 2 scheduled messages"):
            await engine.schedule(chat.id, "c", at=LATER)
        with pytest.raises(QueueFull, match="65536 bytes"):
            await engine.schedule(chat.id, "b" * 70_000, at=LATER, id="b")
        await clock.advance(200)
        assert not (await engine.get_chat(chat.id)).archived, "it is not abandoned"
        async with open_engine(ScriptedModel([]), store="sqlite://", clock=clock) as other:
            moved = await other.import_chat([line async for line in engine.export_chat(chat.id)])
            assert await other.schedules(moved.id) == await engine.schedules(chat.id)
            assert (await other.explain(moved.id)).next_timer == LATER
        assert await engine.schedules((await engine.fork(chat.id, at_version=1)).id) == []
        await engine.erase(chat.id, what=["messages"])
        assert await engine.schedules(chat.id) == []
        await engine.schedule(chat.id, "a", at=LATER, id="a")
        await engine.delete_chat(chat.id)
        await clock.advance(4000)
    assert b"secret-" not in raw(database)


async def test_message_waits_while_a_budget_is_spent() -> None:
    async with Engine("sqlite://", model=ScriptedModel(["ok"]), settings=Settings(poll_interval=0.05)) as engine:
        chat = await engine.create_chat()
        await engine.set_budget(chat_id=chat.id, tokens=1)
        due = await engine.schedule(chat.id, "spend", at=LATER)
        for _ in range(3):
            await engine._worker._sweeper.sweep()  # type: ignore[union-attr]
        assert await engine.schedules(chat.id) == [due]
        await engine.set_budget(chat_id=chat.id, tokens=1000)
        async for event in engine.events(chat.id):
            if event.kind == "turn_finished":
                break
        assert (await engine.messages(chat.id))[0].wakeup == due.wakeup


async def test_message_that_stays_due_delays_no_other_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep reads a limited number of chats: the next ones skip a chat that cannot be changed."""
    monkeypatch.setattr("turnwise.engine.worker.sweep.SWEEP_LIMIT", 1)
    async with Engine("sqlite://", model=ScriptedModel(["ok"])) as engine:
        poor, other = [(await engine.create_chat()).id for _ in range(2)]
        await engine.set_budget(chat_id=poor, tokens=1)
        for chat_id in (poor, other):
            await engine.schedule(chat_id, "hi", at=LATER)
        for _ in range(3):
            await engine._worker._sweeper.sweep()  # type: ignore[union-attr]
        assert [len(await engine.schedules(chat_id)) for chat_id in (poor, other)] == [1, 0]
        await engine.wait(other)


async def test_series_outlives_a_machine_without_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker without the time zone leaves the series due; other messages of the chat are sent."""
    clock, settings = ManualClock(), Settings(poll_interval=0.05)
    async with Engine("sqlite://", model=ScriptedModel(["ok"] * 2), settings=settings, clock=clock) as engine:
        chat = await engine.create_chat()
        series = await engine.schedule(chat.id, "weekly", every="* * * * *", timezone="Europe/Berlin")
        with monkeypatch.context() as slim:
            slim.setattr(time_zones, "ZoneInfo", {}.__getitem__)
            await clock.advance(3600)
            await engine.schedule(chat.id, "once", at=clock.now())
            await engine._worker._sweeper.sweep()  # type: ignore[union-attr]
            await engine.wait(chat.id)
            assert [one.text for one in await engine.messages(chat.id) if one.role == "user"] == ["once"]
            assert await engine.schedules(chat.id) == [series]
        for _ in range(9):  # the chat is skipped for a few sweeps
            await engine._worker._sweeper.sweep()  # type: ignore[union-attr]
        assert (await engine.schedules(chat.id))[0].due > clock.now()


async def test_model_has_itself_woken_up() -> None:
    calls = [Call("wake_me", {"at": at, "note": "look"}, id=at) for at in ("2025-01-01T00:00Z", LATER.isoformat())]
    model = ScriptedModel([Reply(calls=calls), "good night", "good morning"])
    clock = ManualClock()
    async with Engine("sqlite://", model=model, tools=[wake_me], clock=clock) as engine:
        chat = await engine.create_chat()
        late, accepted = [one.result for one in (await engine.ask(chat.id, "hi")).messages if one.result]
        assert "in the future" in str(late.output)
        assert accepted.output == f"You will be woken up at {LATER.isoformat()}."
        await clock.advance(3700)
        async for event in engine.events(chat.id):
            if event.kind == "turn_finished" and event.turn == 2:
                break
        message = (await engine.messages(chat.id))[-2]
        assert message.text == "You asked to be woken up: look"
        assert message.wakeup == Wakeup(schedule=message.wakeup.schedule, by="agent:default", due=LATER)


HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({}, "at"),
    ({"at": "2030-01-01T00:00:00Z", "every": "* * * * *"}, "at"),
    ({"at": "2030-01-01T00:00:00"}, "at"),
    ({"at": "9999-12-31T23:59:59", "timezone": "America/New_York"}, "at"),
    *(({"every": every}, "every") for every in ("", "@daily", "* * * * * *", "0 0 30 2 *", "1#" * 9000, "é * * * *")),
    *(({"every": "* * * * *", "timezone": zone}, "timezone") for zone in ("../passwd", "America", "\0", "x" * 9000)),
    *(({"every": "* * * * *", "timezone": zone}, "timezone") for zone in ("", "localtime", "posix/UTC", "right/UTC")),
    ({"at": "2030-01-01T00:00:00", "timezone": ""}, "timezone"),
    ({"at": "2030-01-01T00:00:00Z", "id": "x" * 65}, "id"),
    ({"at": "2030-01-01T00:00:00Z", "id": "a/b"}, "id"),
]


async def test_service_schedules_and_refuses_nonsense() -> None:
    async with (
        served(Engine("sqlite://", model="demo")) as service,
        service.client("bob") as bob,
        service.client() as ada,
        Client(service.url, token="ada-token") as client,  # noqa: S106 - of the test
    ):
        chat = await client.create_chat()
        path = f"/chats/{chat.id}/schedules"
        for body, field in HOSTILE:
            refused = await ada.post(path, json={"content": "hi", **body})
            assert (refused.status_code, field in refused.json()["detail"]) == (400, True), refused.text
        response = await ada.post(path, json={"content": "hi", "at": "2030-01-01T00:00:00Z", "id": "new-year"})
        assert (response.status_code, response.json()["by"]) == (201, "user:ada")
        weekly = await client.schedule(chat.id, "weekly", every="0 9 * * 1", timezone="Europe/Berlin")
        assert (weekly.every, weekly.timezone) == ("0 9 * * 1", "Europe/Berlin")
        assert [one.id for one in await client.schedules(chat.id)] == [weekly.id, "new-year"]
        assert (await bob.get(path)).status_code == (await bob.delete(f"{path}/new-year")).status_code == 404
        gone = await ada.delete(f"{path}/new-year")
        assert (gone.status_code, gone.content) == (204, b"")
        await client.unschedule(chat.id, weekly.id)
        assert (await ada.delete(f"{path}/new-year")).status_code == 404
        assert (await client.schedule(chat.id, "now", at=datetime.now(UTC) - timedelta(days=1))).due >= chat.created_at
