"""The agents of `turnwise worker` in a test that kills it: the model sends half of its reply, then hangs."""

from typing import Final

from turnwise import Agent
from turnwise.providers.scripted import Reply, ScriptedModel

AGENTS: Final = [Agent("default", ScriptedModel(lambda _: Reply("Half of it. And more.", chunks=12, stall_after=1)))]
