"""Customer service: no payment is doubled or unapproved, and customers see only their own chats."""

import sqlite3
from pathlib import Path

import pytest
from tests.examples.examples import Example

from support.terminal import Finished
from turnwise import Chat, Message

PAID = "refund: 24.90 euros were paid back."


@pytest.fixture
def shop(tmp_path: Path) -> Example:
    return Example("customer_service", tmp_path)


def refunds(shop: Example) -> list[tuple[str, int]]:
    with sqlite3.connect(shop.folder / "shop.db") as books:
        found = books.execute("SELECT number, cents FROM refunds").fetchall()
    books.close()
    return found


async def chat_of(shop: Example, owner: str) -> tuple[Chat, list[Message]]:
    """Return a customer's one chat, verified, and its history."""
    async with shop.opened("sqlite:///shop-chats.db") as engine:
        (chat,) = (await engine.list_chats(owner=owner)).items
        verdict = await engine.verify(chat.id)
        assert verdict.ok, verdict
        return chat, await engine.messages(chat.id)


def lines_of(done: Finished) -> list[str]:
    return [line.strip() for line in done.out.splitlines()]


async def test_a_day_at_the_shop(shop: Example) -> None:
    done = shop.run()
    assert (done.code, done.err) == (0, "")
    lines = lines_of(done)
    chat, history = await chat_of(shop, "ann")
    assert lines[0] == "user: My vase came broken, order 4711!"
    assert "lookup: {'order': '4711', 'item': 'a blue vase', 'cents': 4980}" in lines
    assert f"Bob opens Ann's chat: there is no chat '{chat.id}' in this store; nothing was written" in lines
    assert "lookup: You have no order 4711." in lines
    assert lines.index(next(line for line in lines if line.startswith("Eve says:"))) < lines.index(PAID)
    result = history[-2].result
    assert (result.edited_arguments, refunds(shop)) == ({"order": "4711", "cents": 2490}, [("4711", 2490)])
    expected = ("assistant", "I am sorry for the trouble. You have no order 4711.")
    assert [(message.role, message.text) for message in (await chat_of(shop, "bob"))[1]][-1] == expected


@pytest.mark.deep
@pytest.mark.parametrize("when", ["before", "after"])
async def test_killed_at_a_refund_it_pays_exactly_once(shop: Example, when: str) -> None:
    """An approved refund is paid after a crash, too, and only once."""
    died = shop.run(CRASH=when)
    assert died.code == -9
    assert PAID not in lines_of(died)
    assert refunds(shop) == ([("4711", 2490)] if when == "after" else [])
    again = shop.run(**({"CRASH": when} if when == "after" else {}))
    assert again.code == 0
    assert PAID in lines_of(again)
    assert refunds(shop) == [("4711", 2490)]
    _, history = await chat_of(shop, "ann")
    assert history[-2].result.outcome == "succeeded"


@pytest.mark.deep
@pytest.mark.parametrize(
    ("typed", "paid", "reported"),
    [
        ("1000\r", [("4711", 1000)], "10.00 euros were paid back."),
        ("no\r", [], "I am sorry for the trouble."),
        ("4981\r", [], "49.81 euros of order 4711 cannot be paid back."),
    ],
)
def test_operator_at_the_keyboard_decides(shop: Example, typed: str, paid: object, reported: str) -> None:
    with shop.at_a_keyboard() as keyboard:
        keyboard.see("Eve, {'order': '4711', 'cents': 4980} is asked for. How many cents?")
        keyboard.type(typed)
        keyboard.see(reported)
        keyboard.see("Verdict(ok=True")
    assert refunds(shop) == paid
