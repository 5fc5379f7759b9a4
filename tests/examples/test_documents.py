"""Documents: what is believed was checked, what cannot be read is an error of its own, and nothing is read twice."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.examples.examples import Example, module_of

from turnwise import Agent, Engine, FilePart, Message, ModelError
from turnwise.providers.scripted import Reply, ScriptedModel

pytestmark = pytest.mark.timeout(600)
STORE = "sqlite:///documents.db"
PATIENCE = 300
READ = {
    "apples.txt": ("2026-17", "Orchard Ltd", {"apples": "12.50", "pears": "7.30"}, "19.80", 1),
    "bread.png": ("B/88", "Mill & Sons", {"rye": "4.20", "wheat": "3.90", "oats": "2.00"}, "10.10", 2),
    "candles.pdf": ("301", "Lux Inc", {"wax": "30.00", "wicks": "1.25"}, "31.25", 1),
}
NOT_READ = {
    "doubtful.txt": "the lines add up to 100.00, but the total is 1000.00",
    "empty.txt": "the file 'empty.txt' is empty",
    "fog.png": "I see no invoice.",
    "garden.sketch": "the name 'garden.sketch' does not tell what is in the file",
}


@pytest.fixture
def office(tmp_path: Path) -> Example:
    return Example("documents", tmp_path)


def rows_of(office: Example) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (office.folder / "invoices.jsonl").read_text().splitlines()]


async def histories(office: Example) -> dict[str, tuple[int, list[Message]]]:
    """Return the version and the history of each document's one chat; the chats must be sound."""
    async with office.opened(STORE) as engine:
        found = {}
        for chat in (await engine.list_chats(limit=10_000)).items:
            verdict = await engine.verify(chat.id)
            assert verdict.ok, verdict
            name = chat.metadata["document"].split()[0]
            assert name not in found
            found[name] = (chat.version, await engine.messages(chat.id))
        return found


async def test_every_document_becomes_a_row_or_an_error_of_its_own(office: Example) -> None:
    done = office.run()
    assert done.code == 0
    rows = {row.pop("document"): row for row in rows_of(office)}
    assert list(rows) == sorted({**READ, **NOT_READ})
    for name, (number, supplier, lines, total, answers) in READ.items():
        wanted = [{"what": what, "price": price} for what, price in lines.items()]
        invoice = {"number": number, "supplier": supplier, "lines": wanted, "total": total}
        assert rows[name] == {"answers": answers, "invoice": invoice}
        assert sum(map(Decimal, lines.values())) == Decimal(total)
        assert f"{name:>14}  {number:<8}  {total}\n" in done.out
    for name, problem in NOT_READ.items():
        assert list(rows[name]) == ["error"]
        assert problem in rows[name]["error"]
        assert f"{name:>14}  -         {rows[name]['error']}\n" in done.out


async def test_the_model_gets_the_files_themselves_and_is_told_what_is_wrong(office: Example) -> None:
    office.run()
    found = await histories(office)
    assert set(found) == {*READ, "doubtful.txt", "fog.png"}
    for name, kind in {"apples.txt": "text/plain", "bread.png": "image/png", "candles.pdf": "application/pdf"}.items():
        (file,) = [part for part in found[name][1][0].parts if isinstance(part, FilePart)]
        on_disk = FilePart.from_path(office.folder / "invoices" / name)
        assert (file.media_type, file.name, file.data) == (kind, name, on_disk.data)
    said = [message.result for message in found["bread.png"][1] if message.result]
    assert [result.is_error for result in said] == [True, False]
    assert "the lines add up to 8.10, but the total is 10.10" in str(said[0].output)


async def test_what_was_read_is_not_read_again_and_what_has_changed_is(office: Example) -> None:
    office.run()
    first, rows = await histories(office), rows_of(office)
    assert office.run().code == 0
    assert (await histories(office), rows_of(office)) == (first, rows)
    (office.folder / "invoices" / "doubtful.txt").write_text("Invoice 9 of Swift & Co: advice 99.00. Total 99.00")
    office.run()
    changed = {row["document"]: row for row in rows_of(office) if row not in rows}
    assert {name: row["invoice"]["total"] for name, row in changed.items()} == {"doubtful.txt": "99.00"}


async def test_a_document_whose_chat_has_failed_is_read_in_a_later_run(office: Example) -> None:
    """A key was wrong, or had expired: the next run, with a right one, must not say so again."""
    module = module_of("documents")
    document = office.folder / "invoices" / "apples.txt"
    document.parent.mkdir()
    document.write_bytes(module.sample(document.name, module.SAMPLES[document.name]))
    refusal = Reply(error=ModelError("authentication", message="invalid x-api-key"))
    agent = Agent("bookkeeper", ScriptedModel([refusal]), output=module.Invoice)
    async with Engine(f"sqlite:///{office.folder}/documents.db", agents=[agent]) as engine:
        row = await module.read(engine, agent, document, {})
    assert "invoice" not in row
    office.run()
    (row,) = rows_of(office)
    assert row["invoice"]["number"] == READ[document.name][0]


async def test_a_folder_of_ones_own_survives_kills_and_what_is_no_document(office: Example) -> None:
    folder = office.folder / "mine"
    (folder / "a folder.txt").mkdir(parents=True)
    (folder / "nowhere.txt").symlink_to("gone")
    names = [f"{number:03}.txt" for number in range(150)]
    for number, name in enumerate(names):
        (folder / name).write_text(f"Invoice {number} of Me: work {number}.00. Total {number}.00")
    running = office.start("--folder", "mine")
    limit = time.monotonic() + PATIENCE
    try:
        while not chats_in(office.folder / "documents.db") > 20:
            assert time.monotonic() < limit, "nothing is read"
            time.sleep(0.005)  # noqa: ASYNC251 - nothing else runs
    finally:
        running.kill()
        running.wait()
    assert not (office.folder / "invoices.jsonl").exists()
    assert office.run("--folder", "mine").code == 0
    rows = {row["document"]: row for row in rows_of(office)}
    assert [rows[name]["invoice"]["number"] for name in names] == [str(number) for number in range(150)]
    assert all("cannot be read" in rows[name]["error"] for name in ("a folder.txt", "nowhere.txt"))
    roles = {tuple(message.role for message in history) for _, history in (await histories(office)).values()}
    assert roles == {("user", "assistant", "tool")}


def chats_in(file: Path) -> int:
    """Return how many chats a store has; none if it is not there yet."""
    if not file.exists():
        return 0
    with closing(sqlite3.connect(file)) as store:
        try:
            return int(store.execute("SELECT count(*) FROM chats").fetchone()[0])
        except sqlite3.OperationalError:
            return 0
