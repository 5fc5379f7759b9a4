"""A provider's model behind pydantic-ai's direct API, as the engine asks it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, cast

from pydantic_ai import direct
from pydantic_ai import messages as theirs
from pydantic_ai.models import Model as TheirModel
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.native_tools import AbstractNativeTool, WebSearchTool
from pydantic_ai.settings import ModelSettings

from turnwise.providers.parameters import without_forced_choice
from turnwise.providers.protocol import (
    ModelPart,
    ModelReply,
    ModelRequest,
    ProviderDefinition,
    TakesAnswerSchema,
    refusal_of,
)
from turnwise.providers.pydantic_ai.anthropic import (
    CacheTTL,
    is_anthropic_model,
    with_history_cache,
    with_provider_defined_tools,
)
from turnwise.providers.pydantic_ai.errors import classified, writing
from turnwise.providers.pydantic_ai.files import limits_of, refusal_of_file, taken_by
from turnwise.providers.pydantic_ai.naming import classes_of, their_model
from turnwise.providers.pydantic_ai.parameters import (
    known_to_take_schema,
    offer_of,
    searches_web,
    settings_of,
    with_web_search,
)
from turnwise.providers.pydantic_ai.provider_data import ProviderOrigin
from turnwise.providers.pydantic_ai.request_writer import RequestWriter
from turnwise.providers.pydantic_ai.response_reader import ResponseReader
from turnwise.providers.pydantic_ai.streams import WatchedStream, reply_of_first, stream_of_first
from turnwise.providers.repair_history import HistoryRepair
from turnwise.providers.reply_builder import join
from turnwise.providers.usage_and_prices import add_cost
from turnwise.states.errors import SettingsError
from turnwise.states.model_errors import ModelError
from turnwise.states.values.checked import checked
from turnwise.states.values.limits import Count

_MOST_RESPONSES: Final = 16
"""How many responses may make one reply: a provider pauses it for tools of its own, and is asked to go on."""
_IN_MEMORY: Final = frozenset({"TestModel", "FunctionModel"})
"""Models of pydantic-ai for tests: they give no finish reason, and their streams are never cut."""


class PydanticAIModel:
    """Asks a real provider. Use it as an async context manager to close its connections in the end.

    The whole history is sent each time, made valid for the provider before; its own data about its parts goes back
    to it, and to no other. Nothing of pydantic-ai's is stored. The provider's SDK does not retry.

    Args:
        model: a name as `model_named` takes it, or a model of pydantic-ai, configured as you like. Of a `FallbackModel`
            the engine takes the `alternatives`, as if they had been given to it as a list.
        context_limit: in tokens; what pydantic-ai knows of the model by default.
        settings: pydantic-ai's `ModelSettings`, for every call; a request's parameters win.
        native_tools: tools that the provider runs itself, such as pydantic-ai's `WebSearchTool()`; beside tools that
            have a `ProviderDefinition` that one alone. The parameter `web_search` needs none.
        takes_answer_schema: when the model keeps answers to a schema; what pydantic-ai knows of it by default, and that
            it never does for `openai-compatible:`, whose models are unknown.

    Raises:
        SettingsError: the name names no model that can be asked, the model wraps a `FallbackModel`, or another argument
            is not what it may be.
    """

    @checked
    def __init__(
        self,
        model: TheirModel | str,
        *,
        context_limit: Count | None = None,
        settings: ModelSettings | None = None,
        native_tools: Sequence[AbstractNativeTool] = (),
        takes_answer_schema: TakesAnswerSchema | None = None,
    ) -> None:
        given = their_model(model) if isinstance(model, str) else model
        several = given.models if isinstance(given, FallbackModel) else []
        options: dict[str, Any] = {"settings": settings, "takes_answer_schema": takes_answer_schema}
        options |= {"context_limit": context_limit, "native_tools": native_tools}
        self.alternatives: tuple[PydanticAIModel, ...] = tuple(PydanticAIModel(one, **options) for one in several)
        """The models of a `FallbackModel`; the first of them gives this one's attributes."""
        self._held, self._model = given, several[0] if several else given
        if "FallbackModel" in classes_of(self._model):
            raise SettingsError("model", "wraps a FallbackModel; wrap each of its models instead")
        self._settings = settings or ModelSettings()
        self._native_tools = tuple(native_tools)
        self._origin = ProviderOrigin(self._model.system, self._model.base_url or "")
        self._history_repair = HistoryRepair()
        self.searches_web = searches_web(self._model)
        self._is_anthropic_model = is_anthropic_model(self._model)
        anthropic = self._model.system == "anthropic"
        self._writer = RequestWriter(
            self._origin,
            takes_system=self._model.profile.get("supports_inline_system_prompts", False),
            needs_signature=anthropic,
            keeps_items=not anthropic,
            short_ids=self._model.system == "mistral",
            takes=taken_by(self._model),
            limits=limits_of(self._model),
        )
        self._last_word = None if classes_of(self._model).isdisjoint(_IN_MEMORY) else "stop"
        self.name = self._model.model_name
        self.provider = self._model.system
        self.address = self._model.base_url
        """The base URL of the provider, if pydantic-ai knows it."""
        self.context_limit = context_limit or self._model.context_window
        self.takes_answer_schema = takes_answer_schema or known_to_take_schema(self._model, self._native_tools)

    async def __aenter__(self) -> Self:
        """Hold the provider's client."""
        await self._held.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the provider's connections."""
        await self._held.__aexit__(exc_type, exc, traceback)

    def refuses(self, definition: ProviderDefinition) -> str | None:  # noqa: ARG002 - as every model is asked
        """Return why the model cannot be offered a tool of its provider; `None` if it can."""
        if not self._is_anthropic_model:
            return "turnwise sends definitions to Anthropic's Messages API only"
        others = [type(one).__name__ for one in self._native_tools if not isinstance(one, WebSearchTool)]
        return f"it has native_tools ({', '.join(others)}), which cannot be sent beside one" if others else None

    def refuses_file(self, media_type: str, size: int) -> str | None:
        """Return why the provider does not take a file; `None` if it may."""
        return refusal_of_file(self._model, media_type, size)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Yield the parts of the reply as they arrive."""
        if self.alternatives:
            async for part in stream_of_first(self.alternatives, request):
                yield part
            return
        history, settings, offer = self._ask(request)
        reader = ResponseReader(self._origin, partial(add_cost, self))
        for more in reversed(range(_MOST_RESPONSES)):
            try:
                with classified(request.messages) as exchange:
                    async with (
                        direct.model_request_stream(
                            self._model, history, model_settings=settings, model_request_parameters=offer
                        ) as stream,
                        aclosing(_read_parts(reader, stream)) as parts,
                    ):
                        watched = WatchedStream(stream)
                        exchange.answered = True
                        yield ModelPart("heartbeat")  # from now on the attempt is paid
                        async for part in parts:
                            yield part
                    response = stream.get()
            except ModelError:
                if exchange.answered:
                    yield ModelPart("heartbeat")  # an answer that holds no event of a stream is paid, too
                raise
            if response.state != "suspended" or not more:
                break
            for part in reader.pause(response):
                yield part
            history.append(response)
            settings = cast("ModelSettings", without_forced_choice(settings))
        for part in reader.finish(response, closed=watched.closed, otherwise=self._last_word):
            yield part

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Return the whole reply, asked for without streaming."""
        if self.alternatives:
            return await reply_of_first(self.alternatives, request)
        history, settings, offer = self._ask(request)
        reader = ResponseReader(self._origin, partial(add_cost, self))
        parts: list[ModelPart] = []
        for more in reversed(range(_MOST_RESPONSES)):
            with classified(request.messages):
                response = await direct.model_request(
                    self._model, history, model_settings=settings, model_request_parameters=offer
                )
            for index, part in enumerate(response.parts):
                parts.extend(reader.begin(index, part))
            if response.state != "suspended" or not more:
                break
            parts.extend(reader.pause(response))
            history.append(response)
            settings = cast("ModelSettings", without_forced_choice(settings))
        parts.extend(reader.finish(response, closed=True, otherwise=self._last_word))
        return join(parts)

    def _ask(self, request: ModelRequest) -> tuple[list[theirs.ModelMessage], ModelSettings, ModelRequestParameters]:
        with writing():
            settings, marks = self._build_settings(request)
            history = self._writer.history(self._history_repair.repair(request), marks)
            return history, settings, offer_of(request, self._native_tools)

    def _build_settings(self, request: ModelRequest) -> tuple[ModelSettings, CacheTTL | None]:
        """Return the settings of a call, and how long marks keep its history in the prompt cache."""
        problem = refusal_of(self, request.tools, request.parameters)
        if problem is not None:
            raise ModelError("bad_request", message=problem)
        model_settings, marks = self._model.settings, None
        settings = settings_of(request, self._settings, model_settings)
        if self._model.system == "anthropic":
            settings, marks = with_history_cache(settings, model_settings)
        native_tools = with_web_search(self._native_tools, request.parameters.get("web_search"))
        return with_provider_defined_tools(settings, request.tools, model_settings, native_tools), marks


async def _read_parts(reader: ResponseReader, stream: StreamedResponse) -> AsyncGenerator[ModelPart]:
    """Yield the parts of a stream, and its usage as soon as that is known: the stream may never come to its end."""
    try:
        async for event in stream:
            for part in (*reader.measure(stream), *reader.read(event)):
                yield part
    except Exception:
        for part in reader.measure(stream):
            yield part
        raise
    for part in reader.measure(stream):
        yield part
