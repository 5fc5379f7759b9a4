"""`turnwise migrate`: bring a store to this version's schema."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import anyio
from rich.text import Text

from turnwise.cli.chat_argument import every_chat
from turnwise.cli.file_folder import FileFolderOption, files_in, naming_the_option
from turnwise.cli.options import DEFAULT_STORE, JsonOption, StoreOption
from turnwise.cli.style import clean, console, print_json, state_text
from turnwise.engine.config.settings import Settings
from turnwise.engine.engine import Engine
from turnwise.persistence.store_url import without_password


def migrate(
    *, store: StoreOption = DEFAULT_STORE, file_folder: FileFolderOption = None, as_json: JsonOption = False
) -> None:
    """Create a store or bring it up to date, and say what is in it. A folder for its files is created, too."""
    counts = anyio.run(_count, store, file_folder)
    url = without_password(store)
    if as_json:
        print_json({"store": url, "chats": dict(counts)})
        return
    console.print(Text.assemble(("✓ ", "green"), f"{clean(url)} has the schema of this version"), soft_wrap=True)
    for state, count in counts.most_common():
        console.print(Text.assemble(f"  {count:>6,} ", state_text(state)))
    if not counts:
        console.print("  no chats yet")


async def _count(store: str, file_folder: Path | None) -> Counter[str]:
    files = await files_in(file_folder, create=True)
    with naming_the_option():
        async with Engine(store, files=files, model="demo", settings=Settings(run_worker=False)) as engine:
            if files is not None:
                await engine.check_files()
            return Counter([chat.state.value async for chat in every_chat(engine)])
