"""Customer service: people log in, an agent looks their orders up, and a person approves what is paid back.

Run it as it is, or with the name of a model, such as `anthropic:claude-sonnet-4-5`. With CRASH=before or
CRASH=after in the environment it dies before or after the money has left; start it again. It keeps `shop.db` and
`shop-chats.db` in the current folder.
"""

import hashlib
import hmac
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiosqlite
import anyio
from rich.console import Console
from rich.table import Table

from turnwise import (
    Agent,
    Chat,
    ChatNotFound,
    Engine,
    Event,
    Reconciled,
    ToolContext,
    ToolFailed,
    ToolResult,
    tool,
    verify_export,
)
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.scripted import Call, Reply, ScriptedModel

AUDITORS_KEY = os.environ.get("AUDITORS_KEY", "for the demonstration only").encode()
PASSWORDS = {"ann": "c23a8dd7969ec4f8b5609773fec596d4", "bob": "f6dc4b373c7843d9ab0153c54dc1461d"}
BOOKS = """
CREATE TABLE IF NOT EXISTS orders (number TEXT PRIMARY KEY, customer TEXT, item TEXT, cents INTEGER);
CREATE TABLE IF NOT EXISTS refunds (key TEXT PRIMARY KEY, number TEXT, cents INTEGER);
INSERT OR IGNORE INTO orders VALUES ('4711', 'ann', 'a blue vase', 4980), ('4712', 'bob', 'a tin drum', 2500);
"""
REFUND = """INSERT INTO refunds SELECT :key, number, :cents FROM orders WHERE number = :order AND customer = :customer
AND :cents BETWEEN 1 AND cents - (SELECT coalesce(sum(cents), 0) FROM refunds WHERE number = :order)
ON CONFLICT (key) DO NOTHING"""
console = Console(highlight=False, markup=False)


class Deps(NamedTuple):
    """What the tools of a chat have: the shop's books, and whose chat it is, whatever a model says."""

    books: aiosqlite.Connection
    customer: str | None


@asynccontextmanager
async def open_deps(chat: Chat) -> AsyncIterator[Deps]:
    async with aiosqlite.connect("shop.db") as books:
        await books.executescript(BOOKS)
        yield Deps(books, chat.owner)


@tool(crash="at_least_once")
async def lookup(ctx: ToolContext[Deps], order: str) -> dict[str, Any]:
    """Look up an order of the customer by its number."""
    mine = "SELECT item, cents FROM orders WHERE number = ? AND customer = ?"
    for item, cents in await ctx.deps.books.execute_fetchall(mine, (order, ctx.deps.customer)):
        return {"order": order, "item": item, "cents": cents}
    raise ToolFailed(f"You have no order {order}.")


async def find_refund(ctx: ToolContext[Deps]) -> str | None:
    """Return the receipt of this call's refund, if it was paid."""
    paid = await ctx.deps.books.execute_fetchall("SELECT cents FROM refunds WHERE key = ?", (ctx.key,))
    return next((f"{cents / 100:.2f} euros were paid back." for (cents,) in paid), None)


async def reconcile_refund(ctx: ToolContext[Deps]) -> Reconciled:
    """Say what became of a refund whose process died. The books tell: the refund and its key are one row."""
    receipt = await find_refund(ctx)
    return Reconciled.not_done() if receipt is None else Reconciled.done(receipt)


@tool(policy="ask", crash="at_least_once", reconcile=reconcile_refund)
async def refund(ctx: ToolContext[Deps], order: str, cents: int) -> str:
    """Pay an order back, or a part of it. A person looks at each refund first."""
    if os.environ.get("CRASH") == "before":
        os.kill(os.getpid(), 9)
    given = {"key": ctx.key, "order": order, "cents": cents, "customer": ctx.deps.customer}
    await ctx.deps.books.execute(REFUND, given)  # under the same key a second time, it changes nothing
    await ctx.deps.books.commit()
    if os.environ.get("CRASH") == "after":
        os.kill(os.getpid(), 9)
    if (receipt := await find_refund(ctx)) is None:
        raise ToolFailed(f"{cents / 100:.2f} euros of order {order} cannot be paid back.")
    return receipt


def clerk(request: ModelRequest) -> Reply | str:
    """Answer as a model might: look the order up, ask for the refund, tell what came of it."""
    order = "".join(filter(str.isdigit, request.messages[0].text))
    match [message.result.output for message in request.messages if message.result]:
        case []:
            return Reply("Let me look.", calls=[Call("lookup", {"order": order})])
        case [{"cents": price}]:
            return Reply("A colleague decides.", calls=[Call("refund", {"order": order, "cents": price})])
        case outputs:
            return f"I am sorry for the trouble. {str(outputs[-1]).splitlines()[-1]}"


def log_in(name: str, password: str) -> str:
    """Return the name under which somebody acts and owns chats."""
    given = hashlib.scrypt(password.encode(), salt=name.encode(), n=2**14, r=8, p=1, dklen=16).hex()
    if not hmac.compare_digest(PASSWORDS.get(name, ""), given):
        raise PermissionError(f"{name} cannot log in: wrong password")
    return name


async def chat_of(engine: Engine, customer: str, chat_id: str | None = None) -> Chat:
    """Return the customer's chat. Another's is as good as not there, whoever knows its id."""
    mine = (await engine.list_chats(owner=customer)).items or [await engine.create_chat(owner=customer)]
    chat = await engine.get_chat(chat_id or mine[0].id)
    if chat.owner != customer:
        raise ChatNotFound(chat.id)
    return chat


def decision(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return what Eve says to a refund: half of it is fair, unless somebody at the keyboard thinks otherwise."""
    fair = str(wanted["cents"] // 2)
    said = (input(f"Eve, {wanted} is asked for. How many cents? [{fair}] ") if sys.stdin.isatty() else "") or fair
    return {"approved": True, "arguments": {**wanted, "cents": int(said)}} if said.isdecimal() else {"approved": False}


async def show(events: AsyncIterator[Event]) -> None:
    async for event in events:
        if event.kind == "message" and event.message.text:
            console.print(f"{event.message.role:>9}: {event.message.text}")
        elif event.kind == "tool_result":
            console.print(f"{event.name:>9}: {event.output}", style="dim")


async def main(model: str | None) -> None:
    answering = model or ScriptedModel(clerk, context_limit=200_000)
    support = Agent("support", answering, system="You serve customers of a shop.", tools=[lookup, refund])
    async with Engine("sqlite:///shop-chats.db", agents=[support], deps=open_deps) as engine:
        ann, bob = log_in("ann", "blue vase"), log_in("bob", "tin drum")
        chat, other = await chat_of(engine, ann), await chat_of(engine, bob)
        await show(engine.acting(ann).stream(chat.id, "My vase came broken, order 4711!", client_id="broken"))
        try:
            await chat_of(engine, bob, chat.id)
        except ChatNotFound as refusal:
            console.print(f"Bob opens Ann's chat: {refusal}")
        await show(engine.acting(bob).stream(other.id, "Pay order 4711 back to me!", client_id="greedy"))
        for asking in (await engine.list_chats(awaiting="client")).items:
            answers = [ToolResult(call.call_id, decision(call.arguments)) for call in asking.open_calls]
            console.print("Eve says:", *(str(answer.output) for answer in answers))
            await engine.acting("eve").submit_tool_results(asking.id, answers)
            await show(engine.events(asking.id, after=asking.last_seq, until_rest=True))
        log = await engine.export_audit(chat.id, key=AUDITORS_KEY)
    table = Table("", "who", "what", "state", title="The log of Ann's chat")
    for record in map(json.loads, log.splitlines()[1:-1]):
        table.add_row(str(record["version"]), record["actor"].split("/")[0], record["trigger"], record["target"])
    console.print(table, verify_export(log, key=AUDITORS_KEY))
    console.print("With Ann in place of Eve:", verify_export(log.replace('"eve"', '"ann"'), key=AUDITORS_KEY))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if sys.argv[1:] else None)
