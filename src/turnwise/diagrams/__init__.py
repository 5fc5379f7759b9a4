"""The declared machine, and the lives of chats, as pictures.

`svg()` and `mermaid()` draw the machine, `slide()` its happy path, `table()` its rows; a state is lit on request.
`machine_json()` is the same as data. `path` and `timeline` draw what a chat has lived through, from its events;
`sticker` is a badge of a state.
"""

from turnwise.diagrams.path import path
from turnwise.diagrams.slide import slide, sticker
from turnwise.diagrams.svg import svg, table
from turnwise.diagrams.texts import machine_json, mermaid
from turnwise.diagrams.timeline import timeline

__all__ = ["machine_json", "mermaid", "path", "slide", "sticker", "svg", "table", "timeline"]
