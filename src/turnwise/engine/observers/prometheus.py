"""Metrics for Prometheus. Labels name triggers, states, models, providers and declared tools, but never a chat."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import get_args

from turnwise.engine.config.results import Budget
from turnwise.engine.observers.observer import ChatFigures, Ended, ModelCall, Observer, ToolRun
from turnwise.extras import needing
from turnwise.states import triggers as t
from turnwise.states.decide import Decision
from turnwise.states.errors import InvalidArgument, TurnwiseError
from turnwise.states.events import RetryEvent
from turnwise.states.names import LEASED, ActionOf, ChatState, snake_case
from turnwise.states.table import TABLE
from turnwise.states.values.checked import checked

with needing("observability", __name__):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_MESSAGES = (1, 3, 10, 30, 100, 300, 1000, 3000)
_CHARACTERS = (1e2, 1e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7)
_CHATS = 10_000
"""The most chats whose last model is remembered; a chat at rest is forgotten."""
_NO_MODEL = ("none", "none")
"""Provider and model under which a compaction is counted if no model was asked."""
_COMPACTIONS: dict[type[t.Trigger], str] = {t.Compacted: "compacted", t.CompactionFailed: "failed"}


class PrometheusObserver(Observer):
    """Counts and measures what an engine does.

    | metric | labels |
    | --- | --- |
    | `turnwise_transitions_total` | `trigger`, `source`, `target` |
    | `turnwise_retries_total` | `provider`, `model`, `kind`: of the error |
    | `turnwise_compactions_total` | `provider`, `model`, `outcome`: `compacted`, `declined`, `failed` |
    | `turnwise_steps_total` | `provider`, `model` |
    | `turnwise_failed_steps_total` | `provider`, `model`, `kind`: of the error |
    | `turnwise_step_seconds` | `provider`, `model`, `outcome`: `finished`, `failed`; from its first attempt here on |
    | `turnwise_reminders_total` | `provider`, `model`, `producer`: the function's name, `severity` |
    | `turnwise_prompt_messages`, `turnwise_prompt_characters` | `provider`, `model`, `purpose` |
    | `turnwise_running_chats` | |
    | `turnwise_waiting_seconds` | `agent`: the longest wait of its chats for a worker, in the whole store |
    | `turnwise_budgets` | `scope`, `unit`, `figure` (as `spent`, `left`): sums over the budgets of the whole store |
    | `turnwise_chats` | `state`: of the whole store; `archived` for archived chats in any state |
    | `turnwise_oldest_action_seconds` | `answerer`: whose action a chat in `requires_action` needs, `operator`,
      `owner`, `client` or `subagents`; the longest wait |
    | `turnwise_oldest_work_seconds` | `state`: the longest time that a worker's chat is in it |
    | `turnwise_refusals_total` | `command`: the method, `error`: its error, such as `queue_full` |
    | `turnwise_model_call_seconds` | `provider`, `model`, `purpose`, `outcome`: see `ModelCall` |
    | `turnwise_first_part_seconds` | `provider`, `model` |
    | `turnwise_tokens_total` | `provider`, `model`, `direction`: `input`, `output` |
    | `turnwise_cost_dollars_total` | `provider`, `model`: calls of unknown price count nothing |
    | `turnwise_tool_seconds` | `tool`: `unknown` for a name the model made up, `outcome`: see `ToolRun` |

    Args:
        registry: where the metrics are registered; it takes those of one observer only.

    Raises:
        InvalidArgument: `registry` is none, or has metrics of these names already.
    """

    @checked
    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        try:
            self._register(registry)
        except ValueError as error:
            problem = f"must have no metrics of turnwise yet, give each observer a registry of its own: {error}"
            raise InvalidArgument("registry", problem) from error
        self._waited: set[str] = set()
        """The agents that were observed."""
        self._last_models: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """Provider and model that each chat asked last: its steps, retries and compactions are counted under them."""
        self._started: OrderedDict[str, tuple[int, datetime]] = OrderedDict()
        """The step of each chat that runs, and when its first attempt here began."""

    def _register(self, registry: CollectorRegistry) -> None:
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        model = ["provider", "model"]
        prompt, times = [*model, "purpose"], partial(histogram, buckets=_SECONDS)
        self._transitions = counter("turnwise_transitions", "Committed transitions.", ["trigger", "source", "target"])
        for row in TABLE:  # exported as 0 from the start: Prometheus sees no increase in the first value of a series
            if row.target is ChatState.error and row.source != row.target:
                self._transitions.labels(row.trigger.name, row.source, row.target.value)
        self._retries = counter("turnwise_retries", "Attempts made again, by error.", [*model, "kind"])
        self._compactions = counter("turnwise_compactions", "Compactions.", [*model, "outcome"])
        self._steps = counter("turnwise_steps", "Finished steps.", model)
        self._failed_steps = counter("turnwise_failed_steps", "Steps that ended in an error.", [*model, "kind"])
        self._step_seconds = times(
            "turnwise_step_seconds", "Time of a step, its retries included.", [*model, "outcome"]
        )
        self._reminders = counter(
            "turnwise_reminders", "Reminders put into requests.", (*model, "producer", "severity")
        )
        self._prompt_messages = histogram(
            "turnwise_prompt_messages", "Messages of a request.", prompt, buckets=_MESSAGES
        )
        self._prompt_characters = histogram(
            "turnwise_prompt_characters", "Characters of a request, about.", prompt, buckets=_CHARACTERS
        )
        self._running = Gauge("turnwise_running_chats", "Chats that run in this process.", registry=registry)
        self._waiting = Gauge(
            "turnwise_waiting_seconds", "Longest wait of a chat for a worker.", ["agent"], registry=registry
        )
        self._budgets = Gauge("turnwise_budgets", "Budgets, in sums.", ["scope", "unit", "figure"], registry=registry)
        gauge = partial(Gauge, registry=registry)
        self._chats = gauge("turnwise_chats", "Chats of the store, by state.", ["state"])
        self._oldest_action = gauge(
            "turnwise_oldest_action_seconds", "Longest wait in requires_action, by whose action it needs.", ["answerer"]
        )
        self._oldest_work = gauge("turnwise_oldest_work_seconds", "Longest time of a held chat in a state.", ["state"])
        self._refusals = counter("turnwise_refusals", "Errors that methods raised.", ["command", "error"])
        self._model_calls = times("turnwise_model_call_seconds", "Time of a model call.", [*prompt, "outcome"])
        self._first_parts = times("turnwise_first_part_seconds", "Time until a model's first part.", model)
        self._tokens = counter("turnwise_tokens", "Tokens, as reported.", [*model, "direction"])
        self._costs = counter("turnwise_cost_dollars", "US dollars, by list prices.", model)
        self._tools = times("turnwise_tool_seconds", "Time of a tool run.", ["tool", "outcome"])

    def transitioned(self, decision: Decision) -> None:
        self._transitions.labels(decision.trigger.name, decision.source or "new", decision.target.value).inc()
        model = self._last_models.get(decision.facts.chat_id, _NO_MODEL)
        if decision.trigger in (t.AttemptDiscarded, t.FallbackStarted):
            for event in decision.events:
                if isinstance(event, RetryEvent):
                    self._retries.labels(*model, event.error.kind).inc()
        elif decision.begins_attempt and decision.target is ChatState.streaming:
            self._note_step(decision)
        elif decision.trigger is t.StepFinished:
            self._steps.labels(*model).inc()
            self._measure_step(decision, model, "finished")
        elif decision.trigger is t.Failed and decision.error is not None:
            self._failed_steps.labels(*model, decision.error.kind).inc()
            self._measure_step(decision, model, "failed")
        elif decision.trigger in _COMPACTIONS:
            declined = decision.trigger is t.CompactionFailed and decision.error is None
            self._compactions.labels(*model, "declined" if declined else _COMPACTIONS[decision.trigger]).inc()
        if decision.facts.lease is None:
            self._last_models.pop(decision.facts.chat_id, None)
            self._started.pop(decision.facts.chat_id, None)

    def _note_step(self, decision: Decision) -> None:
        facts = decision.facts
        known = self._started.get(facts.chat_id)
        if facts.updated_at is not None and (known is None or known[0] != facts.step.number):
            self._started[facts.chat_id] = (facts.step.number, facts.updated_at)
            if len(self._started) > _CHATS:
                self._started.popitem(last=False)

    def _measure_step(self, decision: Decision, model: tuple[str, str], outcome: str) -> None:
        started = self._started.pop(decision.facts.chat_id, None)
        if started is not None and decision.facts.updated_at is not None:
            seconds = (decision.facts.updated_at - started[1]).total_seconds()
            self._step_seconds.labels(*model, outcome).observe(max(seconds, 0))

    def running(self, chats: int) -> None:
        self._running.set(chats)

    def waiting(self, seconds: Mapping[str, float]) -> None:
        for agent in self._waited - seconds.keys():
            self._waiting.labels(agent).set(0)
        for agent, longest in seconds.items():
            self._waiting.labels(agent).set(longest)
        self._waited |= seconds.keys()

    def budgets(self, budgets: Sequence[Budget]) -> None:
        self._budgets.clear()
        for one in budgets:
            scope = "chat" if one.owner is None else "owner"
            self._budgets.labels(scope, "calls", "unknown price").inc(one.unpriced)
            for figure in ("spent", "reserved", "left"):
                amount = getattr(one, figure)
                if one.tokens is not None:
                    self._budgets.labels(scope, "tokens", figure).inc(amount.tokens)
                if one.cost is not None:
                    self._budgets.labels(scope, "dollars", figure).inc(float(amount.cost))

    def measured(self, figures: ChatFigures) -> None:
        _set(self._chats, list(ChatState), {**figures.states, "archived": figures.archived})
        _set(self._oldest_action, get_args(ActionOf), figures.oldest_actions)
        _set(self._oldest_work, LEASED, figures.oldest_work)

    def refused(self, command: str, error: TurnwiseError) -> None:
        self._refusals.labels(command, snake_case(type(error).__name__)).inc()

    def model_called(self, call: ModelCall) -> Ended:
        labels = (call.provider, call.model, call.request.purpose)
        self._prompt_messages.labels(*labels).observe(len(call.request.messages))
        self._prompt_characters.labels(*labels).observe(call.characters)
        for reminder in call.request.reminders:
            self._reminders.labels(call.provider, call.model, reminder.producer, reminder.severity).inc()
        self._last_models[call.request.chat_id] = (call.provider, call.model)
        self._last_models.move_to_end(call.request.chat_id)
        if len(self._last_models) > _CHATS:
            self._last_models.popitem(last=False)
        return partial(self._measure_model, call)

    def tool_started(self, run: ToolRun) -> Ended:
        tool = run.call.name if run.known else "unknown"
        return lambda: self._tools.labels(tool, run.outcome).observe(run.seconds)

    def _measure_model(self, call: ModelCall) -> None:
        self._model_calls.labels(call.provider, call.model, call.request.purpose, call.outcome).observe(call.seconds)
        if call.first_part_after is not None:
            self._first_parts.labels(call.provider, call.model).observe(call.first_part_after)
        usage = call.reply.usage if call.reply is not None else None
        if usage is not None:
            self._tokens.labels(call.provider, call.model, "input").inc(usage.input_tokens or 0)
            self._tokens.labels(call.provider, call.model, "output").inc(usage.output_tokens or 0)
            if usage.cost is not None:
                self._costs.labels(call.provider, call.model).inc(float(usage.cost))


def _set(gauge: Gauge, known: Collection[str], values: Mapping[str, float]) -> None:
    """Set a gauge with one label; what is known and has no value is 0."""
    for label in {*known, *values}:
        gauge.labels(label).set(values.get(label, 0))
