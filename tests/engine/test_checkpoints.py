"""Checkpoints are published as logs grow, whether or not the destination works, and reveal rewritten logs."""

import json
import logging
import os
import socket
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from support.rewriting import rewrite
from support.sql_by_hand import by_hand
from support.stores import Delegate, stored_at
from support.wire.server import Answer, Server, serving
from turnwise import Checkpoints, Engine, Settings, SettingsError, SigningKey, StoreError, verify_export
from turnwise.engine.checkpoints import publisher
from turnwise.engine.checkpoints.checkpoints import PublishedFile
from turnwise.persistence.audit.checkpoints import Head
from turnwise.persistence.audit.record import GENESIS
from turnwise.providers.scripted import ScriptedModel
from turnwise.testing import ManualClock

KEY = SigningKey.generate()
PUBLIC = KEY.public_pem


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints.jsonl"


def engine_of(folder: Path, checkpoints: Checkpoints | None = None, **options: Any) -> Engine:
    model = ScriptedModel(lambda request: f"answer {len(request.messages)}")
    return Engine(f"sqlite:///{folder / 'chats.db'}", model=model, checkpoints=checkpoints, **options)


def text_of(file: Path) -> str:
    return file.read_text()


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text_of(file).splitlines()]


async def talk(engine: Engine, times: int = 1, chat_id: str | None = None) -> str:
    if chat_id is None:
        chat_id = (await engine.create_chat()).id
    for number in range(times):
        await engine.ask(chat_id, f"question {number}")
    return chat_id


async def test_checkpoint_is_published_when_a_chat_comes_to_rest(tmp_path: Path, file: Path) -> None:
    async with engine_of(tmp_path, Checkpoints(KEY, file)) as engine:
        chat_id = await talk(engine, 3)
        records = await engine.audit(chat_id)
    last = lines_of(file)[-1]
    assert (last["chat_id"], last["count"], last["head"]) == (chat_id, len(records), records[-1].hash)
    hashes = {record.version: record.hash for record in records}
    assert all(hashes[line["count"]] == line["head"] for line in lines_of(file))
    assert last["key_id"] == KEY.key_id
    async with engine_of(tmp_path) as engine:
        verdict = await engine.verify(chat_id, checkpoints=text_of(file), public_key=PUBLIC)
        assert (verdict.ok, verdict.covered) == (True, len(records))
        assert verdict == await engine.verify(
            chat_id, family=True, files=True, checkpoints=text_of(file), public_key=PUBLIC
        )
        log = await engine.export_audit(chat_id)
    assert verify_export(log, checkpoints=text_of(file), public_key=PUBLIC).covered == len(records)


@pytest.mark.parametrize("version", [1, 5])
async def test_rewritten_log_contradicts_its_checkpoints(tmp_path: Path, file: Path, version: int) -> None:
    """All hashes are recomputed, so log and rows are consistent in themselves."""
    async with engine_of(tmp_path, Checkpoints(KEY, file)) as engine:
        chat_id = await talk(engine)
        first = len(await engine.audit(chat_id))
    async with engine_of(tmp_path, Checkpoints(KEY, file)) as engine:
        await talk(engine, chat_id=chat_id)
        last = len(await engine.audit(chat_id))
    async with engine_of(tmp_path) as engine:
        rewrite(tmp_path / "chats.db", chat_id, version, actor="mallory")
        assert (await engine.verify(chat_id)).ok
        log = await engine.export_audit(chat_id)
        assert verify_export(log).ok
        verdict = await engine.verify(chat_id, checkpoints=text_of(file), public_key=PUBLIC)
        assert not verdict.ok
        counts = sorted({line["count"] for line in lines_of(file)})
        assert {first, last} <= set(counts)
        assert verdict.position == next(count for count in counts if count >= version)
        assert f"version {verdict.position} had the hash" in str(verdict.problem)
        assert verdict == verify_export(log, checkpoints=text_of(file), public_key=PUBLIC)


async def test_erasure_and_deletion_agree_with_checkpoints(tmp_path: Path, file: Path) -> None:
    async with engine_of(tmp_path, Checkpoints(KEY, file)) as engine:
        chat_id = await talk(engine)
        await engine.erase(chat_id, what=["everything"])
        log = await engine.export_audit(chat_id)
        assert (await engine.verify(chat_id)).ok
        left = await engine.delete_chat(chat_id)
    assert (lines_of(file)[-1]["count"], lines_of(file)[-1]["head"]) == (left.records, left.head)
    assert verify_export(log, checkpoints=text_of(file), public_key=PUBLIC).covered == left.records


async def test_diagnosis_compares_the_store_with_checkpoints(tmp_path: Path, file: Path) -> None:
    """A restored backup lacks a chat and the end of another; a deleted chat is no loss."""
    async with engine_of(tmp_path, Checkpoints(KEY, file)) as engine:
        cut_short, whole = await talk(engine), await talk(engine)
    backup = (tmp_path / "chats.db").read_bytes()
    async with engine_of(tmp_path, Checkpoints(KEY, file)) as engine:
        lost = await talk(engine)
        await talk(engine, chat_id=cut_short)
    (tmp_path / "chats.db").write_bytes(backup)
    async with engine_of(tmp_path) as engine:
        await engine.delete_chat(whole)
        assert [diagnosis async for diagnosis in engine.diagnose()] == []
        compared = {"checkpoints": text_of(file), "public_key": PUBLIC}
        found = {each.chat_id: each.issues async for each in engine.diagnose(**compared)}
        expected = {cut_short: "audit.hash", lost: "chats.id"}
        assert {chat_id: issues[0].column for chat_id, issues in found.items()} == expected
        compared["public_key"] = SigningKey.generate().public_pem
        (unreliable,) = [each async for each in engine.diagnose(**compared)]
        assert "not signed with a key" in unreliable.issues[0].problem


async def test_every_n_versions_make_a_checkpoint(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    monkeypatch.setattr(publisher.Publisher, "note", lambda _, chat_id: noted.append(chat_id))
    checkpoints, settings = Checkpoints(KEY, file, every=3), Settings(run_worker=False)
    async with engine_of(tmp_path, checkpoints, settings=settings) as engine:
        chat_id = (await engine.create_chat()).id
        counts = [len(noted)]
        for number in range(5):
            await engine.send_message(chat_id, f"message {number}")
            counts.append(len(noted))
        assert (await engine.get_chat(chat_id)).version == len(counts)
    assert counts == [1, 1, 2, 2, 2, 3], "at rest, and at the versions 3 and 6"


async def test_processes_that_share_a_file_write_one_chain(tmp_path: Path, file: Path) -> None:
    """So a removed line is noticed in any case."""
    checkpoints = Checkpoints(KEY, file)
    async with engine_of(tmp_path, checkpoints) as one, engine_of(tmp_path, checkpoints) as other:
        async with anyio.create_task_group() as tasks:
            for engine in (one, other, one, other):
                tasks.start_soon(talk, engine, 2)
        chat_id = await talk(one)
    lines = text_of(file).splitlines(keepends=True)
    assert [line["prev"] == GENESIS for line in lines_of(file)] == [True, *[False] * (len(lines) - 1)]
    async with engine_of(tmp_path) as engine:
        log = await engine.export_audit(chat_id)
    assert verify_export(log, checkpoints="".join(lines), public_key=PUBLIC).ok
    for taken in range(len(lines) - 1):
        verdict = verify_export(log, checkpoints="".join(lines[:taken] + lines[taken + 1 :]), public_key=PUBLIC)
        assert not verdict.ok
        assert f"line {taken + 1} follows a line that is missing" in str(verdict.problem)


async def test_engine_start_publishes_missing_checkpoints_once(tmp_path: Path, file: Path) -> None:
    async with engine_of(tmp_path) as engine:
        ids = {await talk(engine) for _ in range(3)}
    for _ in range(2):
        async with engine_of(tmp_path, Checkpoints(KEY, file)):
            pass
        assert {line["chat_id"] for line in lines_of(file)} == ids
        assert len(lines_of(file)) == 3
    async with engine_of(tmp_path, Checkpoints(KEY, file.with_name("others.jsonl"), catch_up=2)):
        pass
    assert len(lines_of(file.with_name("others.jsonl"))) == 2


async def test_half_a_line_of_a_dead_process_is_skipped(tmp_path: Path, file: Path) -> None:
    async with engine_of(tmp_path, Checkpoints(KEY, file)) as engine:
        chat_id = await talk(engine)
    half = text_of(file) + '{"at":"2026'
    await anyio.Path(file).write_text(half)
    async with engine_of(tmp_path, Checkpoints(KEY, file)) as engine:
        await talk(engine, chat_id=chat_id)
        log = await engine.export_audit(chat_id)
    logged = text_of(file)
    assert logged.startswith(half + "\n")
    assert verify_export(log, checkpoints=logged, public_key=PUBLIC).ok
    assert verify_export(log, checkpoints=half, public_key=PUBLIC).ok, "it may be under way"
    forged = logged.replace('{"at":"2026\n', '{"at":"2027\n')
    assert not verify_export(log, checkpoints=forged, public_key=PUBLIC).ok


async def test_published_line_is_synced_to_disk(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr("turnwise.engine.checkpoints.checkpoints.os.fsync", lambda _: synced.append(text_of(file)))
    await PublishedFile(str(file)).publish([Head("c", 1, "0" * 64)], at=ManualClock().now(), key=KEY)
    assert synced == [text_of(file)] != [""]


# What fails


async def test_unreadable_chat_does_not_block_other_checkpoints(tmp_path: Path, file: Path) -> None:
    async with engine_of(tmp_path) as engine:
        bad, good = [await talk(engine) for _ in range(2)]
    await by_hand(f"sqlite:///{tmp_path / 'chats.db'}", f"UPDATE chats SET head = x'ff' WHERE id = '{bad}'")  # noqa: S608
    async with engine_of(tmp_path, Checkpoints(KEY, file)) as engine:
        log = await engine.export_audit(good)
    assert [line["chat_id"] for line in lines_of(file)] == [good]
    assert verify_export(log, checkpoints=text_of(file), public_key=PUBLIC).ok


async def test_transient_store_error_delays_the_checkpoint(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publisher, "FIRST_DELAY", 0.01)

    class Away(Delegate):
        failures = [StoreError("it is away", passing=True)]  # noqa: RUF012

        async def head(self, chat_id: str) -> tuple[int, str]:
            if self.failures:
                raise self.failures.pop()
            return await self._store.head(chat_id)

    store: Any = Away(stored_at(tmp_path / "chats.db"))
    async with Engine(store, model="demo", checkpoints=Checkpoints(KEY, file)) as engine:
        chat = await engine.get_chat(await talk(engine))
    assert "it is away" in caplog.text
    assert (lines_of(file)[-1]["chat_id"], lines_of(file)[-1]["count"]) == (chat.id, chat.version)


async def test_disk_failure_fails_no_turn(tmp_path: Path, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with engine_of(tmp_path, Checkpoints(KEY, file)) as engine:
        await anyio.Path(file).unlink()
        await anyio.Path(file).mkdir()
        chat_id = await talk(engine)
        assert (await engine.get_chat(chat_id)).state == "waiting"
    assert "cannot be written: Is a directory" in caplog.text


# Over HTTP


def kept_by(server: Server, *refused: int) -> str:
    """Return the lines that a server received, except for the requests with these numbers."""
    return "".join(asked.content.decode() for number, asked in enumerate(server.asked) if number not in refused)


async def test_checkpoints_are_posted_with_their_headers(tmp_path: Path, file: Path) -> None:
    async with serving() as server:
        server.script = [Answer()]
        checkpoints = Checkpoints(KEY, [server.url, file], headers={"Authorization": "Bearer s3cret"})
        async with engine_of(tmp_path, checkpoints) as engine:
            chat_id = await talk(engine, 2)
            log = await engine.export_audit(chat_id)
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer s3cret"}
    assert {asked.headers["content-type"] for asked in server.asked} == {"application/jsonl"}
    for text in (kept_by(server), text_of(file)):
        assert verify_export(log, checkpoints=text, public_key=PUBLIC).covered == len(log.splitlines()) - 2
    assert "s3cret" not in repr(checkpoints)


async def test_refused_post_is_retried_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publisher, "FIRST_DELAY", 0.01)
    caplog.set_level(logging.INFO)
    async with serving() as server:
        server.script = [Answer(status=500), Answer(status=302, headers={"location": f"{server.url}/other"}), Answer()]
        async with engine_of(tmp_path, Checkpoints(KEY, server.url)) as engine:
            chat_id = await talk(engine)
            first, second, third = [(await server.request(number)).content.splitlines() for number in (1, 2, 3)]
            log = await engine.export_audit(chat_id)
        assert first == second == third[: len(first)], "the same lines, so that the receiver can tell them"
        assert not verify_export(log, checkpoints="", public_key=PUBLIC).ok
        assert verify_export(log, checkpoints=kept_by(server, 0, 1), public_key=PUBLIC).ok
    logged = [record.getMessage() for record in caplog.records if "checkpoints" in record.getMessage()]
    assert "answered 500" in logged[0]
    assert "answered 302" in logged[1], "a header must not go elsewhere"
    assert "published_again" in logged[-1]


async def test_silent_server_delays_no_turn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server:
        server.script, settings = [Answer(None)], Settings(shutdown_grace=0.1)
        async with engine_of(tmp_path, Checkpoints(KEY, server.url, timeout=0.1), settings=settings) as engine:
            chat_id = (await engine.create_chat()).id
            await server.request(1)
            await talk(engine, 2, chat_id)
            assert (await engine.get_chat(chat_id)).state == "waiting"
    assert "did not answer within 0.1 s" in caplog.text


async def test_server_that_was_down_gets_missing_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publisher, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(publisher, "LONGEST_DELAY", 0.001)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    address = f"http://127.0.0.1:{port}/hooks/s3cret?token=t0ken"
    async with engine_of(tmp_path, Checkpoints(KEY, address)) as engine:
        chat_id = await talk(engine, 3)
        log = await engine.export_audit(chat_id)
    logged = [record.getMessage() for record in caplog.records if "checkpoints_not_published" in record.getMessage()]
    assert 1 <= len(logged) <= 2, "once when it began, once when the engine was left"
    assert f"http://127.0.0.1:{port} cannot be reached: ConnectionRefusedError" in logged[0]
    for secret in ("s3cret", "t0ken"):
        assert secret not in caplog.text
    async with serving() as server:
        server.script = [Answer()]
        async with engine_of(tmp_path, Checkpoints(KEY, server.url)):
            pass
        assert verify_export(log, checkpoints=kept_by(server), public_key=PUBLIC).ok


# What is wrong from the start


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("ftp://example.org/x", "must be an address as https"),
        ("https:///path", "must be an address as https"),
        ("https://me:secret@example.org/", "must name no user"),
        ("https://exa mple.org/", "must be an address as https"),
        ([], "must be a path or an address"),
        ("a\0b", "must be a path or an address"),
    ],
)
def test_invalid_destination_is_refused(to: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Checkpoints(KEY, to)


@pytest.mark.parametrize("headers", [{"A B": "x"}, {"A": "x\r\nB: y"}, {"A": "\u20ac"}, {"": "x"}])
def test_invalid_header_is_refused_and_not_quoted(headers: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="cannot be sent") as refused:
        Checkpoints(KEY, "https://example.org", headers=headers)
    assert "\u20ac" not in str(refused.value)


@pytest.mark.parametrize("timeout", [0, -1, 1e9, float("nan")])
def test_invalid_timeout_is_refused(timeout: float) -> None:
    with pytest.raises(SettingsError, match="timeout"):
        Checkpoints(KEY, "https://example.org", timeout=timeout)


async def test_unwritable_file_is_refused_at_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "none" / "file", tmp_path, tmp_path / "pipe", "/dev/null"):
        with pytest.raises(SettingsError, match="cannot be written"):
            async with engine_of(tmp_path, Checkpoints(KEY, place)):
                pass
