"""`turnwise migrate`: bring a store to this version's schema."""

from __future__ import annotations

from collections import Counter

import anyio
from rich.text import Text

from turnwise.cli.chat_argument import every_chat
from turnwise.cli.options import DEFAULT_STORE, JsonOption, StoreOption
from turnwise.cli.style import console, print_json, state_text
from turnwise.engine.engine import Engine
from turnwise.engine.settings import Settings
from turnwise.persistence.store_url import without_password


def migrate(*, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """Create a store or bring it up to date, and say what is in it."""
    found = anyio.run(_count, store)
    url = without_password(store)
    if as_json:
        print_json({"store": url, "chats": dict(found)})
        return
    console.print(Text.assemble(("✓ ", "green"), f"{url} has the schema of this version"), soft_wrap=True)
    for state, count in found.most_common():
        console.print(Text.assemble(f"  {count:>6,} ", state_text(state)))
    if not found:
        console.print("  no chats yet")


async def _count(store: str) -> Counter[str]:
    async with Engine(store, model="demo", settings=Settings(run_worker=False)) as engine:
        return Counter([chat.state.value async for chat in every_chat(engine)])
