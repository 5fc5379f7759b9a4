"""The agents of `turnwise worker` in tests without their own: the demo model with tools for this folder."""

from pathlib import Path
from typing import Final

from turnwise import Agent
from turnwise.cli.target import file_tools

AGENTS: Final = [Agent("default", "demo", tools=file_tools(Path.cwd()))]
