"""Real providers through pydantic-ai's direct API: OpenAI, Anthropic, Google and what else it speaks to.

Importing this package imports pydantic-ai, which takes seconds; nothing else of turnwise does.
"""

from turnwise.extras import needing

with needing("models", __name__):
    from turnwise.providers.pydantic_ai.model import PydanticAIModel

__all__ = ["PydanticAIModel"]
