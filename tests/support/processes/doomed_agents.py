"""What `turnwise worker` runs in a test that kills it: it says half of its reply, and nothing more."""

from typing import Final

from turnwise import Agent
from turnwise.providers.scripted import Reply, ScriptedModel

AGENTS: Final = [Agent("default", ScriptedModel(lambda _: Reply("Half of it. And more.", chunks=12, stall_after=1)))]
