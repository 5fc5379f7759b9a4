"""Documents: every accepted value was checked, unreadable pages are errors of their own, and no page is read twice."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.examples.examples import Example

from turnwise import Message

STORE = "sqlite:///documents.db"
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
    """Return version and history of each document's one chat; verify the chats."""
    async with office.opened(STORE) as engine:
        found = {}
        for chat in (await engine.list_chats(limit=10_000)).items:
            verdict = await engine.verify(chat.id)
            assert verdict.ok, verdict
            name = chat.metadata["document"].split()[0]
            assert name not in found
            found[name] = (chat.version, await engine.messages(chat.id))
        return found


async def test_each_document_becomes_a_row_or_an_error(office: Example) -> None:
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


@pytest.mark.deep
async def test_only_changed_documents_are_read_again(office: Example) -> None:
    office.run()
    first, rows = await histories(office), rows_of(office)
    assert office.run().code == 0
    assert (await histories(office), rows_of(office)) == (first, rows)
    (office.folder / "invoices" / "doubtful.txt").write_text("Invoice 9 of Swift & Co: advice 99.00. Total 99.00")
    office.run()
    changed = {row["document"]: row for row in rows_of(office) if row not in rows}
    assert {name: row["invoice"]["total"] for name, row in changed.items()} == {"doubtful.txt": "99.00"}
