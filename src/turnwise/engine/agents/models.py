"""The models that an engine has made from names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from turnwise.engine.isolation.tasks import run_in_thread
from turnwise.providers.failures import CannotAsk
from turnwise.providers.from_name import model_named
from turnwise.providers.protocol import (
    Model,
    ModelPart,
    ModelReply,
    ModelRequest,
    ProviderDefinition,
    alternatives_of,
)
from turnwise.providers.usage_and_prices import load_prices
from turnwise.states.errors import SettingsError
from turnwise.states.model_errors import ModelError, ModelErrorKind


class Models:
    """Models by their names, each made once. Unless they are `asked` here, libraries and keys may be missing."""

    def __init__(self, *, asked: bool) -> None:
        self._asked = asked
        self._made: dict[str, Model] = {}

    @property
    def names(self) -> Collection[str]:
        return frozenset(self._made)

    def named(self, name: str) -> Model:
        """Return the model of that name, or a `MissingModel` if none is asked in this process."""
        if name not in self._made:
            try:
                self._made[name] = model_named(name)
            except CannotAsk as error:
                if self._asked:
                    raise
                self._made[name] = MissingModel(name, error.problem)
        return self._made[name]

    def listed(self, given: Model | str | Sequence[Model | str] | None) -> list[Model]:
        """Return the models of an agent in their order: each given itself, or by its name."""
        several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        models = [self.named(one) if isinstance(one, str) else one for one in several if one is not None]
        return [one for model in models for one in alternatives_of(model)]

    def or_missing(self, name: str) -> Model:
        try:
            return self.named(name)
        except SettingsError as error:
            return MissingModel(name, error.problem)

    def if_made(self, name: str) -> Model | None:
        """Return the model of that name if it is made already: it may take seconds to make."""
        return self._made.get(name)

    async def check(self, name: str) -> None:
        """Make a model and load its prices, off the event loop: a provider's library takes seconds to import."""
        await run_in_thread(lambda: load_prices(self.named(name)))

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Hold the connections of the models; on leaving, close them."""
        async with AsyncExitStack() as opened:
            for model in self._connections():
                await opened.enter_async_context(model)
            at_first = self._connections()
            try:
                yield
            finally:
                for model in self._connections():  # models that chats have named since: entering allows to close them
                    if model not in at_first:
                        await opened.enter_async_context(model)

    def _connections(self) -> list[AbstractAsyncContextManager[object]]:
        return [model for model in self._made.values() if isinstance(model, AbstractAsyncContextManager)]


class MissingModel:
    """Stands for a model that cannot be asked here; raises the problem when it is asked."""

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
        await self.generate(request)
        yield ModelPart("heartbeat")

    async def generate(self, request: ModelRequest) -> ModelReply:  # noqa: ARG002 - as every model is asked
        raise ModelError(self._kind, retryable=False, message=self._problem)
