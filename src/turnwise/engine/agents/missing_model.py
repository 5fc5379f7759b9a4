"""A model that cannot be asked in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

from turnwise.providers.protocol import ModelPart, ModelReply, ModelRequest, ProviderDefinition
from turnwise.states.errors import ModelError, ModelErrorKind


class MissingModel:
    """Stands for a model that cannot be asked here: for lack of a library or a key, or not as its chat says."""

    context_limit = None
    takes_answer_schema = "always"
    """So that no agent is refused for it: that the model is missing is reported first, and only where it is asked."""

    def __init__(self, name: str, problem: str, kind: ModelErrorKind = "authentication") -> None:
        self.provider, _, self.name = name.rpartition(":")
        self._problem, self._kind = problem, kind

    def refuses(self, definition: ProviderDefinition) -> str | None:  # noqa: ARG002 - as every model is asked
        """Return `None`: that the model is missing is reported first."""
        return None

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Raise what is missing."""
        await self.generate(request)
        yield ModelPart("heartbeat")

    async def generate(self, request: ModelRequest) -> ModelReply:  # noqa: ARG002 - as every model is asked
        """Raise what is missing."""
        raise ModelError(self._kind, retryable=False, message=self._problem)
