"""Validated configuration of engine and agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, field, fields, replace
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field

from turnwise.persistence.shares import Caps
from turnwise.providers.parameters import check_parameters
from turnwise.providers.protocol import Model, ToolSpec
from turnwise.providers.usage_and_prices import context_window
from turnwise.states.errors import SettingsError
from turnwise.states.facts import Limits
from turnwise.states.files import is_type_pattern
from turnwise.states.messages import Message
from turnwise.states.model_errors import FALLBACK_KINDS
from turnwise.states.names import AfterFinalStep
from turnwise.states.usage import Usage
from turnwise.states.values.checked import checked, configuration
from turnwise.states.values.limits import Count, Positive, fair_key, not_blank
from turnwise.states.values.values import CheckedCall, Value

SUMMARY_PROMPT: Final = """\
The conversation above is about to be replaced by your summary; nothing else of it will be kept. Write for the \
assistant who will go on from here. State, in this order and without preamble: the user's goal; decisions that \
were taken and why; facts, names, paths and figures that will be needed; errors met and how they were dealt with; \
what is done, what is under way, what is left; and the very action in flight."""


class CompactionInput(Value, frozen=True, kw_only=True):
    """The figures that a compaction strategy gets beside the messages."""

    context_tokens: int | None
    context_limit: int | None
    compactions: int
    """Compactions committed in this chat so far."""
    system: str | None = None
    """The system prompt of the chat's requests; `should_compact` does not get it."""
    tools: Sequence[ToolSpec] = ()
    """The tools that the model is offered, likewise."""
    model: Model | None = None
    """The model that answers in the chat."""


class CompactionResult(Value, metaclass=CheckedCall, frozen=True, kw_only=True):
    """The result of a compaction strategy.

    The model sees these messages, in this order and with these roles. An unchanged message is carried; a changed one is
    used as it is now; one without a position (0) is new. Messages that are left out are folded, except user messages
    without an answer and open calls, which stay.
    """

    messages: Sequence[Message]
    usage: Usage | None = None
    """What the strategy's own model calls used; `None` if it made none."""


ShouldCompact = Callable[[Sequence[Message], CompactionInput], bool | Awaitable[bool]]
"""Decides after a step whether to compact, from the messages that the model saw and the figures."""

Folding = CompactionResult | None
"""What a compaction strategy returns; `None` means that nothing was folded."""

CompactionStrategy = Callable[[list[Message], CompactionInput], Folding | Awaitable[Folding]]
"""Folds a history, of which it gets a list of its own."""

ENGINE_SCOPE: Final = {"scope": "engine"}
"""Marks a setting that is the same for every agent of an engine; the others are an agent's own."""

LONGEST: Final = 946_684_800.0
"""Seconds that any time may last, 30 years: a date can be made of them."""

FairKey = Annotated[str, AfterValidator(fair_key)]
PositiveSeconds = Annotated[float, Field(gt=0, le=LONGEST)]
"""Seconds."""
NonNegativeSeconds = Annotated[float, Field(ge=0, le=LONGEST)]
"""Seconds, perhaps none."""


@configuration(within="retry.")
class RetryPolicy:
    """The retries of a failed model call: after 1, 2, 4 ... seconds, without jitter."""

    first_delay: PositiveSeconds = 1
    """The wait before the second attempt; each further wait is twice as long."""
    max_delay: PositiveSeconds = 60
    """The longest wait between two attempts, unless the provider asks for a longer one."""
    attempts: Positive | None = 25
    """How many attempts a step gets in all; `None` sets no limit."""
    openings: Positive | None = None
    """How many attempts may fail before their stream is open; `None` leaves it to `attempts`."""
    reconnects: Positive | None = None
    """How often a stream that broke once it was open is opened again; `None` leaves it to `attempts`."""
    alike: Positive | None = 3
    """How many attempts may fail with the same kind of error after the model had started to answer: each of them is
    paid. `None` leaves it to `attempts`."""
    max_retry_after: PositiveSeconds | None = 3600
    """The longest wait that a provider may ask for (`Retry-After`); a longer one ends in `error`, with the time until
    which the provider asks to wait. `None` waits as long as it asks."""
    after_output: Literal["reset", "never"] = "reset"
    """After visible output: take it back and try again, or end in `error` with the partial text kept."""
    fallback_on: Collection[str] = FALLBACK_KINDS
    """The kinds of `ModelError` after which an agent with several models asks the next one at once; they are tried
    again, from the first on, once all of them have failed. After any other kind the same model is tried again, if that
    may help."""

    @classmethod
    @checked
    def persistent(cls) -> Self:
        """Return a schedule for a service that never gives up while no model is reached.

        There is at most a minute between attempts, or as long as the provider asks for. Paid attempts that fail alike
        are limited.
        """
        return cls(attempts=None, max_retry_after=None)

    @classmethod
    @checked
    def interactive(cls) -> Self:
        """Return a schedule for a waiting user: 4 openings, 6 streams, at most 16 s apart, none after output.

        A provider may ask for up to a minute between two.
        """
        return cls(attempts=None, openings=4, reconnects=5, max_delay=16, after_output="never", max_retry_after=60)

    @checked
    def allows(self, failures: int, broken: int) -> bool:
        """Whether to retry after `failures` consecutive failures, `broken` of them after the stream had opened.

        `alike` is enforced elsewhere.
        """
        opened_in_vain = failures - broken
        return (
            (self.attempts is None or failures < self.attempts)
            and (self.openings is None or opened_in_vain < self.openings)
            and (self.reconnects is None or broken <= self.reconnects)
        )

    @checked
    def delay(self, failures: int, retry_after: float | None = None) -> float:
        """Return the seconds to wait after so many `failures` in a row; the provider's wish is a minimum."""
        doubled = self.first_delay * 2.0 ** min(failures - 1, 62)
        return max(min(doubled, self.max_delay), min(retry_after or 0, LONGEST))


@configuration(within="compaction.")
class CompactionPolicy:
    """When and how a history is summarised before it outgrows the context window."""

    threshold_percent: Annotated[float, Field(gt=0, le=100)] = 80
    """Share of the context limit at which a compaction is due; 100 turns compaction off."""
    context_limit: Count | None = None
    """Tokens; used where the provider reports none with its replies. 0 turns compaction off."""
    prompt: Annotated[str, AfterValidator(not_blank)] = SUMMARY_PROMPT
    """The instruction that asks the model for a summary."""
    timeout: PositiveSeconds = 90
    """For each request of a summary, for a strategy as a whole, and for `should_compact`."""
    model: Model | None = None
    """A model for the summaries; the chat's own by default."""
    after_final_step: AfterFinalStep = "continue"
    """What a turn does when its final step triggers compaction. Turns with structured output and subagent turns always
    stop there."""
    max_reentries: Count = 3
    """How often a turn may go on after a compaction that followed its final step."""
    max_per_turn: Count | None = 10
    """After how many compactions, those that failed included, a turn makes no more; `None` sets no limit. A prompt that
    the provider then refuses as too long ends the turn in `error`."""
    strategy: CompactionStrategy | None = None
    """Folds the history instead of a summary."""
    should_compact: ShouldCompact | None = None
    """Decides when a compaction is due, instead of the threshold, unless compaction is off. Everything else about
    compactions stays: a step is compacted once at most, and a turn no more after a compaction that this rule finds was
    not enough."""

    def strictest(self, context_limit: int | None) -> int | None:
        """Return the smaller of a context limit and the summary model's own; `None` if neither is known."""
        own = context_window(self.model) if self.model is not None else None
        return min((limit for limit in (context_limit, own) if limit is not None), default=None)


@configuration()
class Settings:
    """The settings of an engine and its agents. Times are in seconds unless the name says otherwise.

    Each setting has a scope, the engine's or an agent's: `Settings.scope` tells it. An agent's own settings may hold
    those of an agent's scope alone; what they leave out is as the engine's settings have it.

    Raises:
        SettingsError: a value is invalid; the text names it and says what would be right.
    """

    run_worker: bool = field(default=True, metadata=ENGINE_SCOPE)
    """Whether the engine runs chats; without, it only writes and reads."""
    max_running: Positive = field(default=100, metadata=ENGINE_SCOPE)
    """Chats one worker runs at once."""
    fair_by: FairKey | None = None
    """Claims go round the owners (`"owner"`), or the values of an entry of the chats' metadata (`"metadata.team"`), and
    take the chat of each that waits longest. An agent's own setting is the key of its chats. With `None` the chat
    that waits longest comes first, of any owner; with a cap below, `None` means `"owner"`."""
    weights: Mapping[str, float] = field(default_factory=dict, metadata=ENGINE_SCOPE)
    """How many chats of an owner, or another key, are claimed in a round, in proportion; 1 where none is set."""
    max_running_per_owner: Positive | None = field(default=None, metadata=ENGINE_SCOPE)
    """Chats of one owner, or of what `fair_by` names instead, at work at once on all workers; `None` sets no cap."""
    max_running_per_agent: Positive | None = field(default=None, metadata=ENGINE_SCOPE)
    """Chats of one agent at work at once on all workers; `None` sets no cap."""
    max_running_per_model: Positive | None = field(default=None, metadata=ENGINE_SCOPE)
    """Chats of one model of one provider at work at once on all workers; `None` sets no cap."""
    poll_interval: PositiveSeconds = field(default=1, metadata=ENGINE_SCOPE)
    """How often a worker looks for chats, expired leases and deadlines, beside being notified."""
    lease: PositiveSeconds = field(default=30, metadata=ENGINE_SCOPE)
    """How long a worker may hold a chat without renewing its lease; then another worker takes the chat over."""
    renew_every: PositiveSeconds = field(default=10, metadata=ENGINE_SCOPE)
    """How often a worker renews its leases; must be shorter than `lease`."""
    shutdown_grace: NonNegativeSeconds = field(default=5, metadata=ENGINE_SCOPE)
    """How long running jobs may go on after a stop; then their chats are released for other workers."""
    durability: Literal["full", "normal"] = field(default="full", metadata=ENGINE_SCOPE)
    """SQLite only: with `"normal"` a power failure may lose the last commits, a killed process loses none."""
    max_steps: Positive | None = 50
    """Model calls of one turn; `None` sets no limit."""
    turn_tokens: Positive | None = None
    """Tokens that a turn may use, compactions included; `None` sets no limit."""
    turn_seconds: PositiveSeconds | None = None
    """How long a turn may take from its first step on; waiting for a client does not count. `None` sets no limit."""
    answer_retries: Positive = 3
    """How often in a turn an agent's answer without its form goes back to the model; then the chat fails."""
    subagent_depth: Positive = 3
    """How many chats may stand above a subagent; a subagent at that depth is refused subagents of its own."""
    subagents_at_once: Positive = 10
    """How many subagents of one chat work at a time; further tasks wait until one has ended."""
    turn_cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """US dollars that a turn may cost, compactions included; calls of unknown price count nothing."""
    tools_parallel: Literal["safe", "all"] = "safe"
    """Which calls of a step run side by side: with `"safe"` only if every one is `parallel_safe`."""
    parallel_cap: Positive = 10
    """Calls of a step that run side by side."""
    tool_timeout: PositiveSeconds | None = 120
    """For each call of a tool that has no limit of its own, and before it for opening deps."""
    output_limit_bytes: Positive = 65536
    """The limit for a call's output, an error's text and a progress report; the rest is cut, with a note."""
    message_limit_bytes: Positive = field(default=33_554_432, metadata=ENGINE_SCOPE)
    """The largest message of a user, system prompt, and edited arguments of a call. Of a message everything counts that
    its parts say: text, inline files in base64, names, addresses and metadata."""
    attachment_limit_bytes: Positive = 10 * 1024 * 1024
    """The limit for the bytes of all files together that one tool call returns inline; one above it is left out, with
    a note. Files that the tool has put into the file store do not count."""
    inline_file_bytes: Positive = field(default=65536, metadata=ENGINE_SCOPE)
    """Files of at most so many bytes may stay inside messages and results; turnwise keeps larger ones apart from them,
    in the file store, and the message refers to them."""
    file_limit_bytes: Positive = field(default=100 * 1024 * 1024, metadata=ENGINE_SCOPE)
    """The largest file."""
    file_types: Sequence[str] | None = field(default=None, metadata=ENGINE_SCOPE)
    """Media types that files may have, such as `image/png` or `image/*`; `None` allows all."""
    picture_limit_pixels: Positive | None = field(default=8000, metadata=ENGINE_SCOPE)
    """The most pixels of a picture on each side, as far as its first bytes tell them; `None` for no limit."""
    request_file_bytes: Positive = field(default=20 * 1024 * 1024, metadata=ENGINE_SCOPE)
    """The bytes of all files together that are loaded from the file store for one request, the newest first; a note
    takes the place of any other."""
    keep_unsent_files: PositiveSeconds = field(default=86400, metadata=ENGINE_SCOPE)
    """How long a file is kept that was put and never sent."""
    describe_error: Callable[[BaseException], str] | None = None
    """Says what the model and the clients see of an error that a tool, deps, a model, a compaction or code around them
    raised. By default the model sees a tool error's type and truncated message. For other errors, clients see the kind
    and what to do; operators see the details."""
    startup_timeout: PositiveSeconds | None = 60
    """Opening the stream plus its first part. A function that makes the system prompt has as long before that, and so
    have `prepare_messages` and `reminders`. This, `idle_timeout` and `CompactionPolicy.timeout` double after each
    attempt in a row that one of them ended, up to 600."""
    idle_timeout: PositiveSeconds | None = 90
    """Between two parts."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """How failed model calls are tried again."""
    compaction: CompactionPolicy = field(default_factory=CompactionPolicy)
    """When and how a history is summarised."""
    queue_limit: Positive = 20
    """Messages that may wait in the queue of a chat."""
    queue_limit_bytes: Positive = 104_857_600
    """What all messages of a queue may hold together; their parts count as in `message_limit_bytes`."""
    schedule_limit: Count = 20
    """How many messages may be scheduled in a chat."""
    promote_after_interrupt: bool = False
    """Whether the queue goes on by itself after an interrupt."""
    action_deadline: PositiveSeconds | None = None
    """How long a client has to answer a call that has no limit of its own; `None` sets no limit."""
    coalesce: NonNegativeSeconds = 0.03
    """How long text deltas are gathered before they are stored and shown."""
    keep_parts: PositiveSeconds | None = field(default=86400, metadata=ENGINE_SCOPE)
    """How long the deltas of a reply that is over are kept; its message stays. `None` keeps them for ever."""
    archive_after: PositiveSeconds | None = field(default=None, metadata=ENGINE_SCOPE)
    """How long a resting chat may be unchanged before a worker archives it; `None` archives none."""
    delete_after: PositiveSeconds | None = field(default=None, metadata=ENGINE_SCOPE)
    """How long an archived chat may be unchanged before a worker deletes it, for good; `None` deletes none. Being
    archived is a change: what is archived after 30 days and deleted after 60 is gone after 90."""
    continue_prompt: Annotated[str, AfterValidator(not_blank)] = "Continue."
    """What asks the model to continue a partial answer; it is sent, and not stored."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the model with every step: `max_output_tokens`, `temperature`, `top_p`, `top_k`, `presence_penalty`,
    `frequency_penalty`, `tool_choice`, `parallel_tool_calls`, `web_search`; in `provider_options` what only one
    provider knows.

    `web_search` has the provider search the web: `True`, or options (`allowed_domains`, `blocked_domains`, `max_uses`,
    `user_location`, `search_context_size`); `False` turns off what the model was made with.
    `tool_choice` is `"auto"`, `"none"`, `"required"` or the name of a tool; `None` leaves any to the provider.
    `openai_previous_response_id` and `openai_conversation_id` count for the first step of a turn: the others bring the
    whole history.
    """
    title: Literal["model", "first_line"] | None = None
    """How a chat without a title gets one after its first answer, in the background, once: the model is asked, or the
    first line of the first message is taken."""
    active_tools: Sequence[str] | None = None
    """Names of the tools that are offered to the model, and may run; `None` offers all. Calls that were approved run
    in any case.

    A client's tool NAME is called `client:NAME` here. Another name than of a tool is refused when the engine is made.
    """

    _explicit: frozenset[str] = field(init=False, repr=False, compare=False)
    """The names of the settings that the caller passed."""

    def __new__(cls, *_by_place: object, **given: Any) -> Self:
        """Note which settings are explicit.

        `dataclasses.replace` passes every field; then only non-default values count as explicit.
        """
        settings = object.__new__(cls)
        names = frozenset(given)
        if names == _DEFAULTS.keys():
            names = frozenset(name for name in names if given[name] != _DEFAULTS[name])
        object.__setattr__(settings, "_explicit", names)
        return settings

    def __post_init__(self) -> None:
        if self.renew_every >= self.lease:
            raise SettingsError("renew_every", f"must be shorter than lease ({self.lease}); it was {self.renew_every}")
        for key, weight in self.weights.items():
            if type(weight) not in (int, float) or not _LEAST_WEIGHT <= weight <= _MOST_WEIGHT:
                problem = f"must be numbers from {_LEAST_WEIGHT} to {_MOST_WEIGHT}; that of {key!r} was {weight!r:.80}"
                raise SettingsError("weights", problem)
        for one in self.file_types or ():
            if not is_type_pattern(one):
                raise SettingsError(
                    "file_types", f"must be media types such as 'image/png' or 'image/*'; one was {one!r}"
                )
        check_parameters(self.parameters)

    @classmethod
    def for_reasoning(cls, **settings: Any) -> Self:
        """Return settings for models that reason for a long time before they answer: both timeouts are ten minutes."""
        return cls(**{"startup_timeout": 600, "idle_timeout": 600, **settings})

    @staticmethod
    def scope(name: str) -> Literal["engine", "agent"]:
        """Whether a setting is the engine's, for all of its agents, or may differ between them."""
        return "engine" if name in _ENGINE_NAMES else "agent"

    @property
    def misplaced(self) -> tuple[str, ...]:
        """The explicit settings that are the engine's: an agent's own settings may hold none."""
        return tuple(name for name in _DEFAULTS if name in self._explicit and name in _ENGINE_NAMES)

    def over(self, engine: Settings) -> Settings:
        """Return an agent's settings: the explicit ones, and the engine's for all others."""
        return replace(engine, **{name: getattr(self, name) for name in self._explicit})

    @property
    def caps(self) -> Caps:
        """The caps on chats at work."""
        return Caps(self.max_running_per_owner, self.max_running_per_agent, self.max_running_per_model)

    def limits(self, context_limit: int | None) -> Limits:
        """Return the limits for guards and actions, for a model with that context window."""
        compaction = self.compaction
        limits = {name: getattr(compaction, name) for name in _LIMITS if hasattr(compaction, name)}
        limits |= {name: getattr(self, name) for name in _LIMITS & _DEFAULTS.keys()}
        configured = compaction.context_limit
        limits["context_limit"] = compaction.strictest(configured if configured is not None else context_limit)
        return Limits(**limits)


_LEAST_WEIGHT: Final = 0.001
_MOST_WEIGHT: Final = 1000
_LIMITS: Final = frozenset(Limits.__struct_fields__)
_DEFAULTS: Final[Mapping[str, Any]] = {
    one.name: one.default if one.default_factory is MISSING else one.default_factory()
    for one in fields(Settings)
    if one.init
}
_ENGINE_NAMES: Final = frozenset(one.name for one in fields(Settings) if one.metadata == ENGINE_SCOPE)
