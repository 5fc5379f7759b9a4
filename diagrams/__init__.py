"""The declared machine as pictures: `mermaid()` and `svg()` draw it, with the state of a chat lit on request."""

from turnwise.diagrams.mermaid import mermaid
from turnwise.diagrams.svg import svg

__all__ = ["mermaid", "svg"]
