"""Asks several models in their order until one answers, within one call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final, cast

from msgspec.structs import replace

from turnwise.providers.protocol import Model, ModelPart, ModelReply, ModelRequest
from turnwise.providers.usage_and_prices import add_cost, add_reply_cost
from turnwise.states.model_errors import FALLBACK_KINDS, ModelError

_SILENT: Final = frozenset({"heartbeat", "usage"})


async def stream_of_first(models: Sequence[Model], request: ModelRequest) -> AsyncIterator[ModelPart]:
    """Yield the parts of the first model that answers, with its own price. After its first part no other is asked."""
    for model in models:
        speaks = False
        try:
            async with aclosing(cast("Any", model.stream(request))) as parts:
                async for part in parts:
                    speaks = speaks or part.type not in _SILENT
                    is_end = part.type == "finish"
                    yield replace(part, usage=add_cost(model, part.usage, datetime.now(UTC))) if is_end else part
        except ModelError as error:
            if speaks or model is models[-1] or error.kind not in FALLBACK_KINDS:
                raise
        else:
            return


async def reply_of_first(models: Sequence[Model], request: ModelRequest) -> ModelReply:
    """Return the reply of the first model that gives one, with its own price."""
    for model in models[:-1]:
        try:
            return add_reply_cost(model, await model.generate(request), datetime.now(UTC))
        except ModelError as error:
            if error.kind not in FALLBACK_KINDS:
                raise
    return add_reply_cost(models[-1], await models[-1].generate(request), datetime.now(UTC))
