"""The job of `streaming`: ask the model for one step, show what comes, commit the reply."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import anyio

from turnwise.engine import arguments
from turnwise.engine.call_names import CallNames
from turnwise.engine.clock import sleep
from turnwise.engine.hold import Hold
from turnwise.engine.live import LiveParts
from turnwise.engine.log import Log
from turnwise.engine.reply import calls_among, error_info, partial_reply, with_executors
from turnwise.engine.request import build_request
from turnwise.engine.watchdog import Watchdog, startup_limit
from turnwise.providers.joining import ReplyBuilder
from turnwise.providers.protocol import ModelRequest
from turnwise.states.arguments import Reply
from turnwise.states.errors import ModelError
from turnwise.states.names import StopReason, Trigger

_log = Log("turnwise.jobs")

_OF_CALLS = frozenset({"tool_call_start", "tool_call_delta", "tool_call", "provider_result"})
_STOP_REASONS = {
    "length": StopReason.max_tokens,
    "max_tokens": StopReason.max_tokens,
    "content_filter": StopReason.content_filter,
    "refusal": StopReason.content_filter,
}


async def stream_step(hold: Hold) -> None:
    """Stream one model step and commit it by firing `step_finished`; a failure that may pass is tried again."""
    while True:
        await _wait_for_retry(hold)
        if not hold.attempt_is_begun or not hold.facts.step.attempt_open:
            await hold.fire(lambda chain: chain.fire(Trigger.attempt_started, token=hold.token))
        attempt = Attempt(hold)
        try:
            await attempt.run()
        except ModelError as error:
            if not await attempt.fail(error):
                return
        else:
            return


async def _wait_for_retry(hold: Hold) -> None:
    retry_at = hold.facts.step.retry_at
    if retry_at is not None:
        await sleep(hold.desk.clock, (retry_at - hold.desk.clock.now()).total_seconds())


class Attempt:
    """One try at a step's model call."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._client_tools = {tool.name: tool for tool in hold.facts.profile.client_tools}
        self._builder = hold.heard = ReplyBuilder(read=self._read_arguments)
        self._scope = anyio.CancelScope()
        self._live = LiveParts(hold, self._builder, self._scope)
        self._first_part_after: float | None = None

    async def run(self) -> None:
        """Stream the reply, show it, commit it.

        Raises:
            ModelError: the attempt failed.
            Moved: the chat is somewhere else.
        """
        hold = self._hold
        request = await build_request(hold)
        try:
            await self._stream_watched(request)
        except BaseException:
            self._live.stop()
            raise
        rest = await self._live.close()
        reply = self._reply(request)
        _log.debug("step_streamed", chat_id=hold.chat_id, step=hold.facts.step.number, calls=len(reply.calls))
        await hold.fire(lambda chain: chain.fire(Trigger.step_finished, token=hold.token, reply=reply), shown=rest)

    async def fail(self, error: ModelError) -> bool:
        """Commit that the attempt failed; return whether another one is due."""
        hold = self._hold
        rest = await self._live.close()
        step, policy = hold.facts.step, hold.desk.settings.retry
        info = error_info(error, step)
        stays = policy.after_output == "never" and bool(self._builder.partial_parts())
        opened = self._builder.begun
        if error.retryable and not stays and policy.allows(step.failures + 1, step.broken + opened):
            delay = policy.delay(step.failures + 1, error.retry_after)
            await hold.fire(
                lambda chain: chain.fire(
                    Trigger.attempt_discarded,
                    token=hold.token,
                    error=info,
                    opened=opened,
                    delay=delay,
                    retry_at=chain.now + timedelta(seconds=delay),
                    usage=self._builder.reply().usage,
                )
            )
            return True
        partial = partial_reply(
            self._builder.partial_parts(), hold.facts, hold.desk.toolbox, usage=self._builder.reply().usage
        )
        await hold.fire(
            lambda chain: chain.fire(Trigger.failed, token=hold.token, error=info, partial=partial), shown=rest
        )
        return False

    async def _stream_watched(self, request: ModelRequest) -> None:
        with self._hold.desk.observers.model_call(self._hold.desk.model, request) as call:
            try:
                await self._stream(request)
            finally:
                if call is not None:
                    call.first_part_after = self._first_part_after
                    call.reply = self._builder.reply()

    async def _stream(self, request: ModelRequest) -> None:
        settings, model = self._hold.desk.settings, self._hold.desk.model
        builder, live = self._builder, self._live
        names = CallNames(self._hold.knows_call, self._hold.facts.step.number)
        limit = startup_limit(settings.startup_timeout, self._hold.facts.step.startup_timeouts)
        with self._scope:
            watchdog = Watchdog(self._hold.desk.clock, self._scope, startup=limit, idle=settings.idle_timeout)
            try:
                async with aclosing(model.stream(request)) as stream:  # type: ignore[type-var]
                    async for part in stream:
                        if part.type == "heartbeat":
                            continue
                        watchdog.heard()
                        if part.type in _OF_CALLS:
                            part = await names.renamed(part)  # noqa: PLW2901 - the same part, under its name here
                        if builder.add(part):
                            live.changed()
                        if builder.finished:
                            break
            finally:
                watchdog.stop()
                self._first_part_after = watchdog.first_part_after
        if watchdog.bite is not None:
            raise watchdog.bite
        if live.failure is not None:
            raise live.failure
        if not builder.finished:
            raise ModelError("network", message="the stream ended without saying why the reply ended")

    def _read_arguments(self, name: str, given: str | Mapping[str, Any]) -> dict[str, Any]:
        known = arguments.parse(given) if isinstance(given, str) else dict(given)
        return arguments.coerced(self._client_tools.get(name) or self._hold.desk.toolbox.tools.get(name), known)

    def _reply(self, request: ModelRequest) -> Reply:
        hold, reply = self._hold, self._builder.reply()
        finish = reply.finish
        parts = with_executors(reply.parts, hold.facts)
        word = str(finish.stop_reason) if finish.stop_reason is not None else None
        reported = finish.usage.input_tokens if finish.usage is not None else None
        limit = finish.context_limit or hold.desk.model.context_limit
        return Reply(
            parts=parts,
            calls=calls_among(parts, hold.facts, hold.desk.toolbox),
            usage=finish.usage,
            stop_reason=_STOP_REASONS.get(word or "", StopReason.end_turn),
            provider_reason=(finish.metadata or {}).get("reason", word),
            context_tokens=self._estimated_tokens(request) if reported is None else reported,
            context_limit=limit and hold.desk.settings.compaction.strictest(limit),
            estimated=reported is None,
        )

    def _estimated_tokens(self, request: ModelRequest) -> int:
        """Return a rough count of the prompt's tokens: four characters make one."""
        view = self._hold.view
        characters = view.characters if view is not None else 0
        return (characters + len(request.system or "")) // 4
