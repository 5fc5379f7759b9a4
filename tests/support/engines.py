"""Types of the fixtures `open_engine`, `open_chat` and `strict_model`."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from turnwise import Chat, Engine
from turnwise.testing.strict import StrictModel

OpenEngine = Callable[..., AbstractAsyncContextManager[Engine]]
"""Opens an engine on the test's database file, or on `store`; further options are the engine's."""

MakeModel = Callable[..., StrictModel]
"""Makes a model that checks every request by a strict provider's rules."""

OpenChat = Callable[..., AbstractAsyncContextManager[tuple[Engine, Chat, Any]]]
"""Opens an engine with a strict model of a script, or with the given model, and a chat; options are those of each."""
