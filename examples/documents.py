"""Documents in, data out: the invoices in a folder become lines of JSON, each checked before it is believed.

Run it as it is, on the invoices that it makes for itself, or on yours: `--model anthropic:claude-sonnet-4-5 --folder
~/invoices`. A document that cannot be read is an error of its own. What was read once is not paid for again, also if
it was killed on the way: chats are kept in `documents.db`. What failed by the provider is tried again in the next run.
"""

import argparse
import base64
import hashlib
import json
import re
import struct
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from pydantic import BaseModel, Field, model_validator
from rich.console import Console

from turnwise import Agent, Chat, Engine, FilePart, Settings, TextPart, TurnwiseError
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.scripted import Call, Reply, ScriptedModel

SAMPLES = {
    "apples.txt": "Invoice 2026-17 of Orchard Ltd: apples 12.50, pears 7.30. Total 19.80",
    "bread.png": "Invoice B/88 of Mill & Sons: rye 4.20, wheat 3.90, oats 2.00. Total 10.10",
    "candles.pdf": "Invoice 301 of Lux Inc: wax 30.00, wicks 1.25. Total 31.25",
    "doubtful.txt": "Invoice 9 of Swift & Co: advice 100.00. Total 1000.00",
    "empty.txt": "",
    "fog.png": "",
    "garden.sketch": "a bench under a tree",
}
console = Console(highlight=False, markup=False)


class Line(BaseModel):
    """A line of an invoice."""

    what: str
    price: Decimal = Field(ge=0, decimal_places=2)


class Invoice(BaseModel):
    """An invoice, exactly as it is printed."""

    number: str = Field(min_length=1)
    supplier: str
    lines: list[Line] = Field(min_length=1)
    total: Decimal

    @model_validator(mode="after")
    def adds_up(self) -> "Invoice":
        """Believe no invoice whose lines are not its total."""
        if (found := sum(line.price for line in self.lines)) != self.total:
            raise ValueError(f"the lines add up to {found}, but the total is {self.total}; look again")
        return self


def bookkeeper(request: ModelRequest) -> Reply | str:
    """Answer as a model might, that overlooks the last of many lines at first."""
    (file,) = [part for part in request.messages[0].parts if isinstance(part, FilePart)]
    text = base64.b64decode(file.data or "").decode("latin-1")
    found = re.search(r"Invoice (\S+) of ([^:]+): (.+)\. Total ([\d.]+)", text)
    if found is None:
        return "I see no invoice."
    number, supplier, lines, total = found.groups()
    read = [dict(zip(("what", "price"), line.rsplit(" ", 1), strict=True)) for line in lines.split(", ")]
    first = not any(message.result for message in request.messages)
    answer = {"number": number, "supplier": supplier, "lines": read[:2] if first else read, "total": total}
    return Reply(calls=[Call("final_answer", answer)])


def sample(name: str, text: str) -> bytes:
    """Return a document that says a text, in the format of its name."""
    if name.endswith(".png"):
        size = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
        chunks = [b"IHDR" + size, b"tEXt" + b"Comment\0" + text.encode(), b"IDAT" + zlib.compress(b"\0\xff"), b"IEND"]
        framed = (struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in chunks)
        return b"\x89PNG\r\n\x1a\n" + b"".join(framed)
    if name.endswith(".pdf"):
        shown = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET"
        font = "<</Font<</F1<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>"
        page = f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 500 200]/Contents 4 0 R/Resources{font}>>"
        pages = ["<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Kids[3 0 R]/Count 1>>", page]
        bodies = [*pages, f"<</Length {len(shown)}>>stream\n{shown}\nendstream"]
        objects = "".join(f"{number} 0 obj{body}endobj\n" for number, body in enumerate(bodies, 1))
        return f"%PDF-1.4\n{objects}trailer<</Root 1 0 R>>".encode()
    return text.encode()


async def read(engine: Engine, agent: Agent[Any, Invoice], document: Path, known: dict[str, Chat]) -> dict[str, Any]:
    """Return what a document holds, or why that cannot be said. A document that was read before is not read again."""
    try:
        file = await anyio.to_thread.run_sync(FilePart.from_path, document)
        key = f"{document.name} {hashlib.sha256((file.data or '').encode()).hexdigest()}"
        chat = known.get(key) or await engine.create_chat(metadata={"document": key})
        if chat.last_error and chat.last_error.kind != "invalid_answer":
            await engine.resume(chat.id)
        said = (TextPart(text="What does this invoice say?"), file)
        result = await engine.ask(chat.id, said, client_id="read", agent=agent)
    except TurnwiseError as error:
        return {"document": document.name, "error": str(error)}
    checked = [message.result for message in result.messages if message.result]
    if result.output is None:
        return {"document": document.name, "error": str(checked[-1].output) if checked else result.text}
    return {"document": document.name, "answers": len(checked), "invoice": result.output.model_dump(mode="json")}


async def main(documents: list[Path], model: str | None) -> list[dict[str, Any]]:
    """Return a row for every document, in their order, and print each as it comes."""
    system = "You read invoices. Give every line, and the total as it is printed."
    answering = model or ScriptedModel(bookkeeper, context_limit=100_000)
    agent = Agent("bookkeeper", answering, system=system, output=Invoice, settings=Settings(answer_retries=2))
    rows: dict[Path, dict[str, Any]] = {}
    free = anyio.CapacityLimiter(10)
    async with Engine("sqlite:///documents.db", agents=[agent]) as engine:
        known = {chat.metadata["document"]: chat for chat in (await engine.list_chats(limit=10_000)).items}

        async def add(document: Path) -> None:
            async with free:
                row = rows[document] = await read(engine, agent, document, known)
            shown = row.get("invoice") or {"number": "-", "total": row.get("error")}
            console.print(f"{document.name:>14}  {shown['number']:<8}  {shown['total']}")

        async with anyio.create_task_group() as group:
            for document in documents:
                group.start_soon(add, document)
    return [rows[document] for document in documents]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="your invoices")
    parser.add_argument("--model", help="whom to ask, such as anthropic:claude-sonnet-4-5")
    options = parser.parse_args()
    folder = options.folder or Path("invoices")
    if not folder.exists():
        folder.mkdir()
        for name, text in SAMPLES.items():
            (folder / name).write_bytes(sample(name, text))
    found = anyio.run(main, sorted(folder.iterdir()), options.model)
    Path("invoices.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in found))
