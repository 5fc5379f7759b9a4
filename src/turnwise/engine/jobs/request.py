"""Builds the request of a model call from the history and the application's hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from turnwise.engine.agents.answer_format import DEMAND
from turnwise.engine.agents.configuration import Configuration
from turnwise.engine.blobs.loaded import without_refused
from turnwise.engine.config.settings import Settings
from turnwise.engine.isolation.clock import time_limit
from turnwise.engine.jobs.leased_chat import LeasedChat
from turnwise.engine.jobs.retries import longer, note_on_rejection
from turnwise.engine.prompt.history import transient, with_continue_prompt
from turnwise.engine.prompt.hooks import RequestContext, collect_reminders, loop_state, run_prepare_hook
from turnwise.engine.tools.toolbox import CLIENT_PREFIX
from turnwise.engine.transactions.runtime import Runtime
from turnwise.foreign import guarded
from turnwise.logger import logger
from turnwise.providers.parameters import forced_tool, without_forced_choice
from turnwise.providers.protocol import Model, ModelRequest, Purpose, SentReminder, refusal_of
from turnwise.providers.repair_history import HistoryRepair
from turnwise.providers.usage_and_prices import is_too_small_for_summary
from turnwise.states.facts import Facts
from turnwise.states.messages import Message
from turnwise.states.model_errors import STARTUP_TIMEOUT, ModelError
from turnwise.states.values.plain import copied

_FORCING: Final = frozenset(
    {
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "response_schema",
        "response_json_schema",
        "response_mime_type",
        "output_format",
        "output_config",
        "text",
        "stop",
        "stop_sequences",
    }
)
"""Parameters that force a tool call, a form of answer or an early stop; a summary needs free and complete text."""
_LIMITS: Final = frozenset({"max_output_tokens", "max_tokens", "max_completion_tokens"})
"""Limits of the output. A large one stays: without it a provider may allow less than the reasoning that other
parameters ask for."""


class Requests:
    """Builds the requests of a chat."""

    def __init__(self, leased: LeasedChat) -> None:
        self._leased = leased

    async def of_step(self) -> ModelRequest:
        hooks = self._leased.configuration.hooks
        view = await self._leased.current_view()
        as_stored = hooks.prepare_messages is None
        sendable = view.to_send(self._leased.configuration.model.provider)
        messages = to_answer(self._leased.configuration, self._leased.facts, sendable)
        messages = await prepared_for(
            self._leased.runtime, self._leased.configuration, self._leased.facts, "step", messages
        )
        sent: tuple[SentReminder, ...] = ()
        if hooks.reminders and view.messages:
            state = loop_state(
                self._leased.facts, await self._leased.history.of_turn(self._leased.facts, view), view.messages
            )
            last = view.messages[-1]
            with _in_time(self._leased.runtime, self._leased.configuration, self._leased.facts, "reminders"):
                texts = await self._leased.runtime.tasks.user_calls.run(
                    partial(collect_reminders, hooks.reminders, state), "reminders", chat_id=self._leased.chat_id
                )
            messages = [*messages, *(transient("system", f"<reminder>{text}</reminder>", last) for text, _ in texts)]
            sent = tuple(reminder for _, reminder in texts)
        if (note := note_on_rejection(self._leased.facts.step)) is not None and messages:
            messages = [*messages, transient("user", note, messages[-1])]
        paired = as_stored and view.is_paired  # a hook may have parted a call from its result
        request = await self.build("step", messages, self._parameters_of_step(), paired=paired)
        return replace(request, reminders=sent) if sent else request

    def _parameters_of_step(self) -> Mapping[str, Any]:
        """Return the chat's parameters: a forced call only until the turn has a result, and of an offered tool."""
        parameters, facts = self._leased.configuration.settings.parameters, self._leased.facts
        if facts.turn.has_results:
            return without_forced_choice(parameters)
        forced = forced_tool(parameters)
        if forced is None:
            return parameters
        name = forced.removeprefix(CLIENT_PREFIX)
        if self._leased.configuration.toolbox.tool_for(name, facts.profile.client_tools) is None:
            logger.warning("tool_choice_not_offered", tool=name, step=facts.step.number)
            return without_forced_choice(parameters)
        return {**parameters, "tool_choice": name}

    async def build(
        self,
        purpose: Purpose,
        messages: list[Message],
        parameters: Mapping[str, Any],
        *,
        paired: bool = False,
        model: Model | None = None,
    ) -> ModelRequest:
        """Return a request with the chat's own system prompt and tools, and a history that any model takes.

        Hooks and strategies may have separated calls from their results: unless the messages are `paired`, this is
        repaired. Content that the provider of the `model`, by default the chat's own, has refused is left out.
        """
        profile, step = self._leased.facts.profile, self._leased.facts.step
        configuration = self._leased.configuration
        native = configuration.answers_natively(profile.client_tools)
        wanted = configuration.answer if native and purpose == "step" else None
        tools = configuration.toolbox.list_offered(profile.client_tools, with_answer=not native)
        with guarded():
            problem = refusal_of(configuration.model, tools, parameters)
        if problem is not None:
            raise ModelError("bad_request", message=problem)
        if self._leased.facts.left_out:
            messages = without_refused(messages, self._leased.facts.left_out, model or configuration.model)
            paired = False
        runtime = self._leased.runtime
        prompts, calls = runtime.system_prompts, runtime.tasks.user_calls
        in_time = partial(
            _in_time, runtime, configuration, self._leased.facts, "the function that makes the system prompt"
        )
        system = await prompts.prompt_of(self._leased.facts, configuration, calls, in_time)
        request = ModelRequest(
            purpose=purpose,
            chat_id=self._leased.chat_id,
            messages=messages,
            step=step.number,
            attempt=step.attempt,
            system=system if system and not system.isspace() else None,  # some providers refuse a blank one
            tools=tools,
            parameters=copied(dict(parameters)),  # a model may change its request, but not the settings of all chats
            has_results=self._leased.facts.turn.has_results,
            answer_schema=None if wanted is None else copied(dict(wanted.tool.schema)),
        )
        return request if paired else replace(request, messages=HistoryRepair().pair_results(request))

    def parameters_for_summaries(self) -> dict[str, Any]:
        """Return the chat's parameters, without those that force tools, a form of the answer or an early end.

        The provider's own options and its web search are left out if another model writes the summaries.
        """
        settings = self._leased.configuration.settings
        return _free_parameters(settings, with_options=settings.compaction.model is None)


def to_answer(configuration: Configuration, facts: Facts, messages: list[Message]) -> list[Message]:
    """Return the messages of a step, followed by turnwise's own request to the model, if any."""
    demand = _demand(configuration, facts, messages)
    if demand is None:
        return with_continue_prompt(messages, configuration.settings.continue_prompt)
    return [*messages, transient("user", demand, messages[-1])]


def _demand(configuration: Configuration, facts: Facts, messages: Sequence[Message]) -> str | None:
    """Return the text for a model whose answer did not have the form; `None` after a result, or if none is needed."""
    was_refused = facts.turn.open and facts.turn.refused > 0  # one that is resumed begins to count anew
    if not was_refused or configuration.answer is None or not messages or messages[-1].result is not None:
        return None
    if not configuration.answers_natively(facts.profile.client_tools):
        return DEMAND
    return configuration.answer.demand(messages[-1].text if messages[-1].role == "assistant" else None)


async def prepared_for(
    runtime: Runtime, configuration: Configuration, facts: Facts, purpose: Purpose, messages: list[Message]
) -> list[Message]:
    """Return the messages of a request after the agent's `prepare_messages`."""
    profile, prepare = facts.profile, configuration.hooks.prepare_messages
    if prepare is None:
        return messages
    context = RequestContext(
        chat_id=facts.chat_id,
        owner=profile.owner,
        metadata=copied(dict(profile.metadata)),
        purpose=purpose,
        step=facts.step.number,
    )
    with _in_time(runtime, configuration, facts, "prepare_messages"):
        return await runtime.tasks.user_calls.run(
            partial(run_prepare_hook, prepare, messages, context), "prepare_messages", chat_id=facts.chat_id
        )


def _in_time(runtime: Runtime, configuration: Configuration, facts: Facts, name: str) -> AbstractContextManager[None]:
    """Limit user code that prepares a request to the time in which the model has to begin."""
    limit = longer(configuration.settings.startup_timeout, facts.step.timeouts)
    return time_limit(runtime.clock, limit, STARTUP_TIMEOUT, f"{name} gave nothing")


def parameters_for_titles(settings: Settings) -> dict[str, Any]:
    """Return the parameters, without those that force tools, a form or an early end, and without web search."""
    parameters = _free_parameters(settings, with_options=True)
    parameters.pop("web_search", None)
    return parameters


def _free_parameters(settings: Settings, *, with_options: bool) -> dict[str, Any]:
    parameters: dict[str, Any] = copied(_drop_answer_limits(settings.parameters))
    options = parameters.pop("provider_options", None)
    if isinstance(options, Mapping) and with_options:
        freed = _drop_answer_limits(options)
        if isinstance(freed.get("extra_body"), Mapping):
            freed["extra_body"] = _drop_answer_limits(freed["extra_body"])
        parameters["provider_options"] = freed
    if not with_options:
        parameters.pop("web_search", None)
    return parameters


def _drop_answer_limits(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in parameters.items()
        if name not in _FORCING and not (name in _LIMITS and is_too_small_for_summary(value))
    }
