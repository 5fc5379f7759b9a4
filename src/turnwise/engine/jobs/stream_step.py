"""The job of `streaming`: ask the model for one step, stream the reply, commit it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from functools import partial
from typing import Any, Final, cast

import anyio.lowlevel
from msgspec.structs import replace

from turnwise.engine.agents.answer_format import answer_fault, answer_retries_exhausted
from turnwise.engine.blobs.loaded import message_refused, with_files
from turnwise.engine.blobs.sending import Sending
from turnwise.engine.isolation.user_code import UserCall
from turnwise.engine.jobs.attempts import Attempts, refuse_endless_attempts
from turnwise.engine.jobs.call_names import OF_CALLS, CallNames
from turnwise.engine.jobs.compact import CompactionJob
from turnwise.engine.jobs.context_window import CompactionRule
from turnwise.engine.jobs.endings import error_info
from turnwise.engine.jobs.held_attempt import HeldAttempt
from turnwise.engine.jobs.leased_chat import LeasedChat
from turnwise.engine.jobs.live_parts import LiveParts
from turnwise.engine.jobs.reply import (
    build_origin,
    finish_reason,
    forbidden_calls,
    partial_reply,
    rejected_calls,
    split_calls,
)
from turnwise.engine.jobs.request import Requests
from turnwise.engine.jobs.retries import decide_retry, longer
from turnwise.engine.jobs.watchdog import Watchdog
from turnwise.engine.tools import arguments
from turnwise.logger import logger
from turnwise.providers.failures import classified
from turnwise.providers.protocol import ModelPart, ModelReply, ModelRequest
from turnwise.providers.reply_builder import ReplyBuilder
from turnwise.providers.reply_outcome import ReplyOutcome, outcome_of, stop_reason_of
from turnwise.providers.usage_and_prices import add_reply_cost, valid_token_count
from turnwise.states.arguments import StepReply
from turnwise.states.errors import StoreError
from turnwise.states.messages import CHARACTERS_PER_TOKEN
from turnwise.states.model_errors import CONTEXT_OVERFLOW, ModelError
from turnwise.states.triggers import AttemptDiscarded, Failed, StepFinished
from turnwise.states.turn_limits import may_make_room
from turnwise.states.usage import Usage
from turnwise.states.values.plain import type_name, well_formed
from turnwise.states.values.values import unshared

PAUSE_EVERY: Final = 0.005
"""Seconds of uninterrupted parts after which other tasks get their turn."""


class StepJob:
    """Streams a model step."""

    def __init__(self, leased: LeasedChat) -> None:
        self._leased = leased

    async def run(self) -> None:
        attempts = Attempts(self._leased)
        attempt = Attempt(self._leased, attempts, await attempts.begin())
        try:
            refuse_endless_attempts(self._leased.facts.step)
            await attempt.run()
        except ModelError as error:
            await attempt.fail(error)


class Attempt:
    """One try at a step's model call."""

    def __init__(self, leased: LeasedChat, attempts: Attempts, held: HeldAttempt) -> None:
        self._leased = leased
        self._attempts = attempts
        self._held = held
        self._builder = held.reply = ReplyBuilder(read=self._read_arguments, price=self._priced)
        self._live = LiveParts(leased, self._builder, self._break_off)
        self._call: UserCall[None] | None = None
        self._first_part_after: float | None = None
        self._answered = False
        """Whether the model has started to answer: the attempt is paid."""

    async def run(self) -> None:
        """Stream the reply and commit it."""
        leased = self._leased
        request = await Requests(leased).of_step()
        # If others have moved the chat meanwhile, the request may belong to another job's step.
        await anyio.lowlevel.checkpoint_if_cancelled()
        await leased.ask_again()
        self._held.origin = build_origin(leased.configuration, request)
        try:
            await self._stream_watched(request)
        except Exception:
            await self._live.drain()
            raise
        except BaseException:  # a cancelled job must not wait for the store
            self._live.cancel()
            raise
        rest = await self._live.drain_remaining()
        async with Sending(leased.runtime.files, leased.chat_id) as sending:
            reply = self._reply(request)
            if reply.refused and leased.facts.turn.refused >= leased.configuration.settings.answer_retries:
                fault = answer_fault(leased.configuration.answer, request, reply.parts)
                raise answer_retries_exhausted(leased.facts.turn.refused + 1, fault or "")
            reply = replace(reply, parts=await sending.reply_parts(reply.parts))
            logger.debug("step_streamed", step=leased.facts.step.number, calls=len(reply.calls))
            judged = replace(reply, should_compact=False)  # as if the rule had failed
            try:
                judged = await CompactionRule(leased).judge(reply)
            finally:  # the reply is whole and paid, also if the rule is cancelled
                finished = StepFinished(token=leased.token, reply=judged, starts=self._first_calls(judged))
                await leased.fire(finished, shown=rest)

    def _first_calls(self, reply: StepReply) -> tuple[str, ...]:
        leased, configuration = self._leased, self._leased.configuration
        first = leased.runtime.calls_to_start(
            reply.calls, configuration.toolbox, agent=configuration.agent, deps_agent=leased.deps.open_for
        )
        return tuple(call.call_id for call in first)

    async def fail(self, error: ModelError) -> None:
        leased = self._leased
        # Raises the error that prevented parts from being stored before anything is committed: they are missing from
        # `rest`, and the stored reply must be the one that subscribers saw. The runner reads that from the store.
        rest = await self._live.drain_remaining()
        step, policy = leased.facts.step, leased.configuration.settings.retry
        stays = policy.after_output == "never" and self._builder.visible
        paid, used = self._answered, self._builder.reply().usage
        before = self._attempts.failed_before(error.kind)
        retry = decide_retry(policy, step, error, paid=paid, now=leased.runtime.clock.now(), failed_before=before)
        falls_back = not stays and self._call is not None and self._attempts.may_fall_back(error)
        info = error_info(error if stays or falls_back else retry.error, step, leased.configuration.settings)
        info = replace(info, message_id=message_refused(error, leased.facts))
        may_do = not stays and error.kind != CONTEXT_OVERFLOW  # the same request would be too long again
        refused = () if self._builder.visible else await self._attempts.refused_in(error, leased.configuration.model)
        if refused:
            await self._attempts.leave_out(info, refused, usage=used)
        elif falls_back:
            await self._attempts.fall_back(error, info, usage=used, paid=paid)
        elif may_do and retry.delay is not None:
            await self._attempts.try_again(retry, info, usage=used, paid=paid)
        elif error.kind == CONTEXT_OVERFLOW and not stays and await self._can_make_room():
            await leased.fire(AttemptDiscarded(token=leased.token, error=info, usage=used))
        else:
            parts, toolbox = self._builder.partial_parts(), leased.configuration.toolbox
            partial = partial_reply(parts, leased.facts, toolbox, usage=used, origin=self._held.origin)
            async with Sending(leased.runtime.files, leased.chat_id) as sending:
                partial = await sending.partial(partial)
                await leased.fire(Failed(token=leased.token, error=info, partial=partial), shown=rest)

    async def _can_make_room(self) -> bool:
        limits = self._leased.configuration.limits
        return may_make_room(self._leased.facts, limits) and await CompactionJob(self._leased).can_fold()

    async def _stream_watched(self, request: ModelRequest) -> None:
        with self._leased.runtime.observers.model_call(
            self._leased.configuration.model, request, trace=self._leased.facts.turn.trace
        ) as call:
            try:
                await self._stream(request)
            finally:
                if call is not None:
                    call.first_part_after = self._first_part_after
                    call.reply = unshared(self._builder.reply())

    async def _stream(self, request: ModelRequest) -> None:
        settings = self._leased.configuration.settings
        builder = self._builder
        timeouts = self._leased.facts.step.timeouts
        watchdog = Watchdog(
            self._leased.runtime.clock,
            self._break_off,
            startup=longer(settings.startup_timeout, timeouts),
            idle=longer(settings.idle_timeout, timeouts),
        )
        call = self._call = self._leased.runtime.tasks.user_calls.start(
            partial(self._listen, request, watchdog),
            f"model {request.purpose}",
            chat_id=request.chat_id,
            step=request.step,
            attempt=request.attempt,
        )
        try:
            await call.outcome()
        finally:
            if not builder.finished:
                call.abandon()
            watchdog.stop()
            self._first_part_after = watchdog.first_part_after
        if not builder.finished:
            raise ModelError("network", message="the stream ended without saying why the reply ended")

    def _break_off(self, error: Exception) -> None:
        """End the attempt with an error, without waiting for the model's code."""
        if self._call is not None:
            self._call.fail(error)

    async def _listen(self, request: ModelRequest, watchdog: Watchdog) -> None:
        """Feed the model's parts to the builder, until the reply is finished or the call was abandoned."""
        call, builder = cast("UserCall[None]", self._call), self._builder
        names = CallNames(self._has_call, self._leased.facts.step.number)
        model = self._leased.configuration.model
        loaded = await with_files(self._leased.runtime.files, request, model) if self._may_have_files else request
        paused = self._leased.runtime.clock.monotonic()
        with classified():
            async with _open_stream(model.stream(loaded)) as parts:
                async for part in parts:
                    if call.abandoned:
                        return
                    if not isinstance(part, ModelPart):
                        problem = f"the model yielded {type_name(part)!r} objects; it has to yield ModelPart"
                        raise ModelError("server_error", retryable=False, message=problem)
                    self._answered = True
                    now = watchdog.note(part)
                    if builder.add(await names.renamed(part) if part.type in OF_CALLS else part):
                        self._live.schedule_flush()
                    if builder.finish is not None:
                        call.give(None)  # the reply is complete; the attempt does not wait until the stream has closed
                        return
                    if now - paused >= PAUSE_EVERY:
                        paused = now
                        await anyio.lowlevel.checkpoint()  # a model that makes its words itself may never wait

    @property
    def _may_have_files(self) -> bool:
        """Whether files may have to be loaded, without a look at every message."""
        leased = self._leased
        return leased.view is None or leased.view.has_files or leased.configuration.hooks.prepare_messages is not None

    async def _has_call(self, call_id: str) -> bool:
        try:
            return await self._leased.retry_while_unavailable(partial(self._is_in_history, call_id))
        except StoreError as error:
            self._break_off(error)  # or it would count as an error of the model's code
            raise

    async def _is_in_history(self, call_id: str) -> bool:
        view = await self._leased.current_view()
        return await self._leased.history.has_call(self._leased.facts, view, call_id)

    def _read_arguments(self, name: str, raw: str | Mapping[str, Any], call_id: str) -> dict[str, Any]:
        step, held = self._leased.facts.step, self._leased.facts.profile.client_tools
        log_context = {"step": step.number, "attempt": step.attempt, "tool": name, "call_id": call_id}
        parsed = arguments.parse(raw, **log_context) if isinstance(raw, str) else arguments.to_json_values(raw)
        tool = self._leased.configuration.toolbox.tool_for(name, held)
        return arguments.coerce(tool, parsed)

    def _priced(self, reply: ModelReply) -> ModelReply:
        return add_reply_cost(self._leased.configuration.model, reply, self._leased.runtime.clock.now())

    def _reply(self, request: ModelRequest) -> StepReply:
        leased, reply = self._leased, self._builder.reply()
        finish = reply.finish
        self._warn_of_unknown_cost(finish.usage)
        stop_reason = stop_reason_of(finish.stop_reason)
        rejected = rejected_calls(reply, self._builder.unfinished_calls())
        if request.parameters.get("tool_choice") == "none":
            rejected = {**forbidden_calls(reply, leased.configuration.toolbox), **rejected}
        parts, calls = split_calls(reply.parts, leased.facts, leased.configuration.toolbox, rejected=rejected)
        reported = _prompt_tokens(finish)
        window = valid_token_count(finish.context_limit, "context_limit")
        limit = window and leased.configuration.settings.compaction.strictest(window)
        may_be_refused = not calls and outcome_of(stop_reason) is ReplyOutcome.complete
        return StepReply(
            parts=parts,
            calls=calls,
            refused=may_be_refused and answer_fault(leased.configuration.answer, request, parts) is not None,
            usage=finish.usage,
            stop_reason=stop_reason,
            provider_reason=finish_reason(finish),
            context_tokens=self._estimated_tokens(request) if reported is None else reported,
            context_limit=limit,
            estimated=reported is None,
            origin=self._held.origin and replace(self._held.origin, response_id=_response_id(finish.metadata)),
        )

    def _estimated_tokens(self, request: ModelRequest) -> int:
        """Return a rough count of the prompt's tokens: a quarter of its characters."""
        view = self._leased.view
        characters = view.characters if view is not None else 0
        return (characters + len(request.system or "")) // CHARACTERS_PER_TOKEN

    def _warn_of_unknown_cost(self, usage: Usage | None) -> None:
        """Warn once per model whose calls have no known cost, if a turn has a budget in dollars."""
        leased = self._leased
        model, warned = leased.configuration.model, leased.runtime.warned_unknown_cost
        key = (model.provider, model.name)
        unknown = usage is None or usage.cost is None
        if unknown and leased.configuration.settings.turn_cost is not None and key not in warned:
            warned.add(key)
            logger.warning(
                "cost_unknown",
                provider=model.provider,
                model=model.name,
                problem="calls of unknown cost count nothing for Settings.turn_cost; set turn_tokens, too",
            )


def _open_stream(answer: object) -> AbstractAsyncContextManager[AsyncIterable[object]]:
    """Return the iterator of a model's `stream`, which is closed in the end if it has `aclose`."""
    if not isinstance(answer, AsyncIterable):
        if inspect.iscoroutine(answer):
            answer.close()
        problem = f"the model's stream returned {type_name(answer)!r}; it has to be an asynchronous iterator"
        raise ModelError("server_error", retryable=False, message=f"{problem} of ModelPart")
    parts = aiter(answer)
    return aclosing(parts) if hasattr(parts, "aclose") else nullcontext(parts)  # type: ignore[type-var]


def _prompt_tokens(finish: ModelPart) -> int | None:
    """Return the tokens of the prompt; of a reply that took several requests, the last one's."""
    used = finish.usage.input_tokens if finish.usage is not None else None
    return valid_token_count(_metadata_field(finish.metadata, "context_tokens", used), "context_tokens")


def _response_id(metadata: Mapping[str, Any] | None) -> str | None:
    response_id = _metadata_field(metadata, "response_id")
    return well_formed(response_id) if isinstance(response_id, str) else None


def _metadata_field(metadata: Mapping[str, Any] | None, name: str, otherwise: Any = None) -> Any:
    return metadata.get(name, otherwise) if isinstance(metadata, Mapping) else otherwise
