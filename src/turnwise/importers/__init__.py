"""Importers: histories of other libraries, as a chat may begin with.

Each takes the messages as objects of the library or as their JSON; the library itself is not imported. Pass the result
to `Engine.create_chat(system=imported.system, history=imported.history)`.
"""

from turnwise.importers.history import ImportedChat
from turnwise.importers.langchain import from_langchain
from turnwise.importers.openai_agents import from_openai_agents
from turnwise.importers.pydantic_ai import from_pydantic_ai

__all__ = ["ImportedChat", "from_langchain", "from_openai_agents", "from_pydantic_ai"]
