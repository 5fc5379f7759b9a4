// The types of turnwise's chats, events, messages and parts as they are in JSON, and of the functions that read them.
//
// A field that is optional is left out where it has its default; `GET /chats/{id}/transcript` spells it out.
// The types are generated from turnwise's classes by generate.py.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export type ChatState =
  | "waiting"
  | "pending"
  | "streaming"
  | "executing_tools"
  | "compacting"
  | "requires_action"
  | "interrupted"
  | "error";
export type StopReason =
  | "end_turn"
  | "max_steps"
  | "stop_after_tool"
  | "max_tokens"
  | "content_filter"
  | "unknown"
  | "token_budget"
  | "time_budget"
  | "cost_budget"
  | "interrupted"
  | "error";
export type Audience = "everyone" | "model" | "user";
export type Executor = "local" | "client" | "provider" | "chat";
export type CallStatus =
  | "planned"
  | "started"
  | "succeeded"
  | "failed"
  | "interrupted"
  | "cancelled"
  | "timed_out"
  | "unknown";
export type Approval = "asked" | "granted";
export type Approver = "operator" | "owner";
export type Crash = "at_most_once" | "at_least_once";
export type SubagentAction = "ask" | "start" | "wait" | "message" | "stop" | "list";
export type Awaited = "client" | "subagents" | "both";
export type BoundaryReason = "compaction" | "clear";
export type CompactionPhase = "started" | "summarised" | "stored" | "finished" | "failed" | "declined" | "unproductive";
export type QueueChange = "added" | "edited" | "moved" | "taken" | "deleted" | "kept";
export type Role = "system" | "user" | "assistant" | "tool";

export interface Usage {
  /** All prompt tokens, cached ones included. */
  input_tokens?: number | null;
  /** Tokens of the reply. */
  output_tokens?: number | null;
  /** Tokens of reasoning. */
  reasoning_tokens?: number | null;
  /** Prompt tokens that were read from the provider's cache. */
  cache_read_tokens?: number | null;
  /** Prompt tokens that were written to the provider's cache. */
  cache_write_tokens?: number | null;
  /** True when a call is missing from the sums: interrupted, discarded, or silent about its usage. */
  partial?: boolean;
  /** US dollars, by the list prices at the time of the calls: a decimal number, in JSON as text. */
  cost?: string | null;
  /** True when `cost` leaves something out: a call without a known price, or one that is missing from the sums. */
  cost_partial?: boolean;
  /** The share of these figures that was spent on compactions. */
  compaction?: Usage | null;
}

export interface TextPart {
  type: "text";
  /** The text. */
  text: string;
}

export interface ReasoningPart {
  type: "reasoning";
  /** The text, where the provider shows it. */
  text?: string;
  /** The provider's signature. */
  signature?: string | null;
}

export interface ToolCallPart {
  type: "tool_call";
  /** The call's id. */
  call_id: string;
  /** The tool's name. */
  name: string;
  /** The arguments, as JSON. */
  arguments: { [key: string]: Json };
  /** Who runs the call. */
  executor?: Executor;
}

export interface ToolResultPart {
  type: "tool_result";
  /** The call's id. */
  call_id: string;
  /** The tool's name. */
  name: string;
  /** The result, as JSON. */
  output: Json;
  /** Whether the call failed. */
  is_error?: boolean;
  /** How the call ended. */
  outcome?: CallStatus;
  /** Files that the tool returned. */
  attachments?: FilePart[];
  /** The arguments of the call, if the approval changed the model's. */
  edited_arguments?: { [key: string]: Json } | null;
}

export interface SourcePart {
  type: "source";
  /** Where it is; blank for a document that has no address. */
  url?: string;
  /** The title of the source. */
  title?: string | null;
  /** The provider's own id of the source, such as that of a file in its store. */
  id?: string | null;
  /** Whether it is a web page or a document. */
  source_type?: "url" | "document";
}

export interface FilePart {
  type: "file";
  /** The media type, such as `image/png`. */
  media_type: string;
  /** The bytes, as base64. */
  data?: string | null;
  /** The address of the file. */
  url?: string | null;
  /** The file's name. */
  name?: string | null;
  /** The SHA-256, as hex, of the bytes: see `Engine.put_file` and `Engine.open_file`. */
  blob?: string | null;
  /** How many bytes a blob has; turnwise fills it in. */
  size?: number | null;
  /** The first and the last line that the model reads of a text file, counted from 1; `null` for all of the file. */
  lines?: [number, number] | null;
}

export interface MarkerPart {
  type: "marker";
  /** What was done to the context. */
  reason: BoundaryReason;
  /** The line, for users. */
  text: string;
  /**
   * Positions of what the model sees from here on, in its order: earlier messages that stay, and the new ones that a
   * compaction put right after the marker.
   */
  carried?: number[];
}

export type Part = TextPart | ReasoningPart | ToolCallPart | ToolResultPart | SourcePart | FilePart | MarkerPart;

export interface Wakeup {
  /** The id of the schedule. */
  schedule: string;
  /** Who scheduled it: the actor of that record of the audit log. */
  by: string;
  /** When it was due. */
  due: string;
}

export interface ModelFailure {
  /** The provider of the model. */
  provider: string;
  /** The name of the model. */
  model: string;
  /** The kind of its `ModelError`. */
  kind: string;
  /** The provider's HTTP status, where there was one. */
  status?: number | null;
  /** The seconds for which the provider asked to wait. */
  retry_after?: number | null;
}

export interface Message {
  /** The message's id. */
  id: string;
  /** The sender. */
  role: Role;
  /** The content. */
  parts: Part[];
  /** The turn of the message. */
  turn: number;
  /** The step of the message; 0 for a message that begins a turn. */
  step: number;
  /** When the message was stored. */
  created_at: string;
  /** The place in the history, rising with every stored message; 0 for a message that is not stored. */
  position?: number;
  /** Who may see the message. */
  audience?: Audience;
  /** For a tool message, the place of its call among the calls of the step. */
  call_index?: number | null;
  /** True for the part of a reply that had been shown when it was cut short. */
  partial?: boolean;
  /**
   * True when turnwise wrote the message: a result for an interrupted call, a summary, a marker. Of messages from
   * elsewhere also true of those for the model alone.
   */
  synthetic?: boolean;
  /** True for a user's message that entered a turn under way: it came with `when_busy="steer"`. */
  steered?: boolean;
  /** Whether the content was erased. */
  erased?: boolean;
  /** True when the message was imported as the chat was created. */
  imported?: boolean;
  /** The schedule that sent the message, if one did. */
  wakeup?: Wakeup | null;
  /** The agent in whose name the model answered. This and the following fields are set only in a model's messages. */
  agent?: string | null;
  /** That agent's version. */
  agent_version?: string | null;
  /** The model that answered. */
  model?: string | null;
  /** The provider of that model. */
  provider?: string | null;
  /** The provider's own id of the reply, where it gives one. */
  response_id?: string | null;
  /** Why the reply ended, in the provider's word. */
  finish_reason?: string | null;
  /** The usage that the provider reported for this reply. */
  usage?: Usage | null;
  /** The SHA-256 of the canonical JSON of the parameters that the model was asked with, and of `answer_schema`. */
  parameters_digest?: string | null;
  /** The same of the tools that it was offered: names, descriptions and schemas, in order. */
  tools_digest?: string | null;
  /** The models that come before this one in the agent's order, and why each did not answer. */
  fallback_from?: ModelFailure[];
}

export interface QueuedMessage {
  /** The id the message will keep in the history. */
  id: string;
  /** The content. */
  parts: Part[];
  /** When the message was accepted. */
  accepted_at: string;
  /** Whether it enters the next model request of the turn under way; if that ends first, it begins the next one. */
  steers?: boolean;
  /** The schedule that sent the message; `null` if someone sent it. */
  wakeup?: Wakeup | null;
}

export interface Answer {
  /** The salted digest of the answer; empty once the answer is erased. */
  digest: string;
  /** The receipt of the submission. */
  receipt_id: string;
  /** When it was stored. */
  at: string;
  /** Random text that the digest covers, so that it does not reveal the answer. */
  salt?: string;
}

export interface ToolCall {
  /** The call's id, unique in its chat. */
  call_id: string;
  /** The tool's name. */
  name: string;
  /** The arguments, as JSON. */
  arguments: { [key: string]: Json };
  /** Who runs the call. */
  executor: Executor;
  /** The place of the call in its step, from 0. */
  index: number;
  /** The step that asked for the call. */
  step: number;
  /** How far the call has come. */
  status?: CallStatus;
  /** What becomes of the call if its worker crashes after the start. */
  crash?: Crash;
  /** Whether a success ends the turn. */
  stop_after?: boolean;
  /** Whether the call gives the turn's answer, as typed output (`Agent.output`). */
  answers?: boolean;
  /** While "asked", the client has to answer the call; once "granted", the call is local; `null` if none is needed. */
  approval?: Approval | null;
  /** Who may approve the call over HTTP. An operator always may. */
  approver?: Approver;
  /** The model's arguments, if the client allowed the call with other `arguments`. */
  asked_arguments?: { [key: string]: Json } | null;
  /** Why the call is answered without being run: the tool was not offered, or the arguments do not fit. */
  refusal?: string | null;
  /** Whether the tool is asked, after a crash, what became of the call. */
  reconciles?: boolean;
  /** The agent of the subagent that the call asks or starts. */
  subagent?: string | null;
  /** For a call of a subagent: what it does. */
  subagent_action?: SubagentAction;
  /** Whether the subagent works on if the call is closed without its answer. */
  subagent_detached?: boolean;
  /** Seconds a client has to answer once asked. */
  within?: number | null;
  /** How many bytes of the result are stored. */
  output_limit_bytes?: number;
  /** The agent that asked for the call; `null` if it is not known. */
  agent?: string | null;
  /** When an open client call will be answered `timed_out`. */
  deadline?: string | null;
  /** How the call was answered by a client. */
  answer?: Answer | null;
  /** The salt of the call's digests in the log; erased with the arguments, and shown to no client. */
  salt?: string;
}

export interface ErrorInfo {
  /** The kind of a `ModelError`, or an `OwnErrorKind`: `tool`, `deps`, `internal`, `unreadable`, `repaired`. */
  kind: string;
  /** A text for users: what happened and what to do. */
  message: string;
  /** The step that failed. */
  step?: number | null;
  /** The attempt that failed. */
  attempt?: number | null;
  /** Whether another attempt may help. */
  retryable?: boolean;
  /** The provider's HTTP status, where there was one. */
  status?: number | null;
  /** The message of the chat that the provider refused, where it named one. */
  message_id?: string | null;
  /** The words of the provider, or of the code that failed: for operators. Only `Engine.explain` has it. */
  detail?: string | null;
}

export interface PartDelta {
  /** The kind of part. */
  type: "text" | "reasoning" | "tool_call" | "tool_result" | "source" | "file";
  /** Text, reasoning, or a fragment of a tool call's arguments. */
  delta?: string | null;
  /** The call's id, of a tool call or its result. */
  call_id?: string | null;
  /** The name of the tool or file. */
  name?: string | null;
  /** Who runs the call. */
  executor?: Executor | null;
  /** The finished part, as it will be in the message. */
  complete?: { [key: string]: Json } | null;
}

interface Numbered {
  /** The place in the chat's sequence, from 1. */
  seq: number;
  chat_id: string;
  at: string;
}

/** The chat's state changed. */
export interface StatusEvent extends Numbered {
  kind: "status";
  /** The new state. */
  state: ChatState;
  /** The state before; `null` for a new chat. */
  previous?: ChatState | null;
}

/** A message entered the history, or replaced the message of the same id (an erasure). */
export interface MessageEvent extends Numbered {
  kind: "message";
  /** The message. */
  message: Message;
}

/** A piece of the reply that the model is giving. */
export interface PartEvent extends Numbered {
  kind: "part";
  /** The step. */
  step: number;
  /** The attempt. */
  attempt: number;
  /** The place of the part in the reply. */
  index: number;
  /** What is added to the part. */
  part: PartDelta;
}

/** A call of the current step has its result. */
export interface ToolResultEvent extends Numbered {
  kind: "tool_result";
  /** The step. */
  step: number;
  /** The call's id. */
  call_id: string;
  /** The place of the call in its step. */
  index: number;
  /** The tool's name. */
  name: string;
  /** The result, as JSON. */
  output: Json;
  /** Whether the call failed. */
  is_error: boolean;
  /** How the call ended. */
  outcome: CallStatus;
}

/** A running tool reported progress. */
export interface ToolProgressEvent extends Numbered {
  kind: "tool_progress";
  /** The step. */
  step: number;
  /** The call's id. */
  call_id: string;
  /** What the tool reported, as JSON. */
  progress: Json;
}

/** The queue changed. It says what changed, and not what else waits: `fold` keeps the queue. */
export interface QueueEvent extends Numbered {
  kind: "queue";
  /**
   * `added`, `edited` and `moved` are about one message. Those `taken` enter the history, those `deleted` never will.
   * `kept` follows a repair: messages that are not among `ids` are lost.
   */
  change: QueueChange;
  /** The messages that the change is about. */
  ids: string[];
  /** The message that was added, or what an edited one says now. */
  message?: QueuedMessage | null;
  /** The message before which an added or moved one stands; `null` for the last place. */
  before?: string | null;
}

/** All open calls, which the client has to answer; published again if an erasure blanks some of them. */
export interface ActionRequiredEvent extends Numbered {
  kind: "action_required";
  /** The open calls. */
  calls: ToolCall[];
}

/** An attempt failed and another will be made. */
export interface RetryEvent extends Numbered {
  kind: "retry";
  /** The step. */
  step: number;
  /** The attempt that failed. */
  attempt: number;
  /** Seconds until the next attempt. */
  delay: number;
  /** Why the attempt failed. */
  error: ErrorInfo;
  /** When the next attempt begins. */
  retry_at: string;
  /** The name of the model that is asked next, if it is another one: the agent's next. */
  next_model?: string | null;
}

/** The parts of this attempt are taken back. */
export interface AttemptDiscardedEvent extends Numbered {
  kind: "attempt_discarded";
  /** The step. */
  step: number;
  /** The attempt whose parts are removed. */
  attempt: number;
  /** Why they are removed. */
  reason: string;
}

/** A compaction started, got its summary, was stored, finished, failed, was declined or proved unproductive. */
export interface CompactionEvent extends Numbered {
  kind: "compaction";
  /** What has happened. */
  phase: CompactionPhase;
  /** The step before which the history is compacted. */
  step: number;
  /** Context tokens as a share of the limit, in percent. */
  percent?: number | null;
  /** The tokens of the context before. */
  context_tokens?: number | null;
  /** The model's limit of the context, in tokens. */
  context_limit?: number | null;
  /** True when the tokens are turnwise's estimate and not the provider's figure. */
  estimated?: boolean;
  /** How many messages the summary stands for. */
  folded?: number | null;
  /** How many messages were carried past the boundary verbatim. */
  carried?: number | null;
  /** How many messages the model sees from now on. */
  messages_after?: number | null;
  /** About how many tokens these have: an estimate, the next step brings the provider's figure. */
  tokens_after?: number | null;
  /** Why it failed. */
  error?: ErrorInfo | null;
}

/**
 * The history was cut: the message `first_removed` and all after it are gone. `seq` 0 marks an unstored full reset: the
 * database lost commits this subscriber had seen. Discard all local state; events restart at `seq` 1.
 */
export interface HistoryResetEvent extends Numbered {
  kind: "history_reset";
  /** The id of the first message that is gone. */
  first_removed: string;
}

/** A turn ended. `provider_reason` is the provider's own word for it. */
export interface TurnFinishedEvent extends Numbered {
  kind: "turn_finished";
  /** The number of the turn. */
  turn: number;
  /** Why the turn ended. */
  stop_reason: StopReason;
  /** The same in the provider's word. */
  provider_reason?: string | null;
  /** What the turn used. */
  usage: Usage;
}

/** The chat cannot continue without the user; published again if the text of the error is erased. */
export interface ErrorEvent extends Numbered {
  kind: "error";
  /** Why the turn failed. */
  error: ErrorInfo;
}

export type ChatEvent =
  | StatusEvent
  | MessageEvent
  | PartEvent
  | ToolResultEvent
  | ToolProgressEvent
  | QueueEvent
  | ActionRequiredEvent
  | RetryEvent
  | AttemptDiscardedEvent
  | CompactionEvent
  | HistoryResetEvent
  | TurnFinishedEvent
  | ErrorEvent;

/** A part of the reply under way: its type and the join of its deltas. */
export interface LivePart {
  /** The type of the part. */
  type: PartDelta["type"];
  /** What has come so far. */
  text: string;
}

/** What a reader sees of a chat, made from its events. */
export interface Transcript {
  /** The chat's state. */
  state: ChatState | null;
  /** Finished messages, in order; results in the order of their calls. */
  messages: Message[];
  /** The parts of the reply under way, by index. Empty as soon as the reply is a message. */
  live: { [key: string]: LivePart };
  /** The step of the reply under way. */
  live_step: number | null;
  /** The attempt of the reply under way. */
  live_attempt: number | null;
  /** The messages that wait in the queue. */
  queue: QueuedMessage[];
  /** The calls that the client has to answer. */
  open_calls: ToolCall[];
  /** Why the last finished turn ended. */
  stop_reason: StopReason | null;
  /** Why the last turn failed. */
  error: ErrorInfo | null;
  /** The number of the last event in it. */
  last_seq: number;
}

export interface ClientTool {
  /** The tool's name. */
  name: string;
  /** What the tool does; the model chooses by it. */
  description: string;
  /** JSON schema of the arguments: an object schema. */
  input_schema: { [key: string]: Json };
  /** Seconds the client has to answer; `null` waits for ever. */
  deadline?: number | null;
  /** JSON schema of its results, but for errors: one that does not fit is refused. `null` takes any. */
  output_schema?: { [key: string]: Json } | null;
}

export interface Chat {
  /** The chat's id. */
  id: string;
  /** The agent that answers. */
  agent: string;
  /** The state of the chat. */
  state: ChatState;
  /** How many transitions the chat has made: the version of its last audit record. */
  version: number;
  /** The version that last changed messages. */
  history_version: number;
  /** The number of the last event: `events(after=last_seq)` yields what comes after it. */
  last_seq: number;
  /** The number of the current or last turn, from 1; 0 before the first message. */
  turn: number;
  /** The number of the current or last step, counted through the whole chat; 0 before the first. */
  step: number;
  /** The number of the current or last attempt of that step, from 1; 0 before its first. */
  attempt: number;
  /** The owner, such as a user of your application; `null` for a chat without one. */
  owner: string | null;
  /** A title for users. */
  title: string | null;
  /** JSON values that the application keeps with the chat. */
  metadata: { [key: string]: Json };
  /** Whether the chat is archived: it accepts nothing but `unarchive`. */
  archived: boolean;
  /** Why the turn failed, in the state `error`. */
  last_error: ErrorInfo | null;
  /** Why the last turn ended; `null` while one is under way. */
  stop_reason: StopReason | null;
  /** What all model calls of the chat have used. */
  usage: Usage;
  /** The calls of the current step that have no result yet. */
  open_calls: ToolCall[];
  /** Messages that wait in the queue. */
  queued: number;
  /** False only in `interrupted`, until the partial reply is stored and the chat rests. */
  settled: boolean;
  /** The id of another chat: of the parent for a subagent, else what `create_chat` was given. */
  parent: string | null;
  /** Whether a turn has ended since the chat was last marked as read (`mark_read`); never of a subagent. */
  unread?: boolean;
  /** Who has to answer the open calls in `requires_action`: the client, subagents or both. */
  awaits?: Awaited | null;
  /** About how many tokens the next prompt has; `null` if the model reports no usage. */
  context_tokens?: number | null;
  /** The size of the context window, as the model reported it last or as it is set; `null` if it is unknown. */
  context_limit?: number | null;
  /** For a subagent: the call of its parent that it answers. */
  parent_call?: string | null;
  /** What its subagents, at every depth, have used, as far as the chat has read their answers. */
  subagents_usage?: Usage;
  /** The model that is asked instead of the agent's; `null` for the agent's. */
  model?: string | null;
  /** Parameters of model calls, each instead of the agent's of that name. */
  parameters?: { [key: string]: Json } | null;
  /** The tools that are offered instead of the agent's active ones. */
  active_tools?: string[] | null;
  /** The tools that only the client can run. */
  client_tools?: ClientTool[];
  /** When the chat was created. */
  created_at: string;
  /** When the chat last changed. */
  updated_at: string;
  /** Why the chat cannot be read, and where in the store; `null` for a sound chat. Other fields may be empty. */
  unreadable?: string | null;
}

export interface ChatChange {
  /** `watch(after=number)` goes on after it. */
  number: number;
  /** Empty if the database was restored to an earlier state: discard all chats. The current ones follow. */
  chat_id: string;
  /** `null` if the chat is gone: it was deleted, or another agent answers than the one that is watched. */
  chat: Chat | null;
}

// What follows is written by hand.

/**
 * Return the transcript that `events` make, continuing from `transcript` if one is given. Neither is changed.
 *
 * Events that `transcript` has already are passed over, and so are kinds of a newer service.
 *
 * @throws {TypeError} one of them is no event
 */
export function fold(events: Iterable<ChatEvent>, transcript?: Transcript): Transcript;

/** Return the text of the reply under way. */
export function liveText(transcript: Transcript): string;

/** What the service answers instead of events, or ends a stream with (RFC 9457); beside these the error's own fields. */
export interface ProblemFields {
  type: string;
  title: string;
  status: number;
  detail: string;
  [field: string]: Json;
}

/** The service refuses: the chat is not there (404), the token is invalid (401), no event has that number (400). */
export class Problem extends Error {
  constructor(fields: ProblemFields);
  /** Names the error, as in `urn:turnwise:problem:chat-not-found`. */
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  /** All that was said. */
  readonly fields: ProblemFields;
}

export interface StreamOptions {
  /**
   * The bearer token, or a function that returns a fresh one for every connection. If it fails, or does not return one
   * within `silence`, that is told to `onDrop`, and it is asked again for the next try.
   */
  token?: string | (() => string | Promise<string>);
  /** The number of the last event or change that was seen. */
  after?: number;
  /** Ends it: what was waited for throws the signal's reason. */
  signal?: AbortSignal;
  fetch?: typeof fetch;
  /** Reads the JSON of an event; `JSON.parse` by default, which reads whole numbers above 2^53 inexactly. */
  parse?: (text: string) => any;
  /**
   * Milliseconds without a byte after which the connection is taken for dead; `Infinity` for never. The service sends one
   * every 15 s.
   */
  silence?: number;
  /**
   * The longest pause before a connection is tried again, in milliseconds; 3,000 by default. A longer `Retry-After` of the
   * service is heeded, up to a minute.
   */
  maxDelay?: number;
  /** Is called whenever a connection stands. */
  onConnect?: () => void;
  /** Is told why a connection was lost, and in how many milliseconds the next is tried. What it throws ends it all. */
  onDrop?: (error: Error, delay: number) => void;
}

export interface FollowOptions extends StreamOptions {
  /** End once the chat rests. */
  untilRest?: boolean;
}

export interface WatchOptions extends StreamOptions {
  /** Whose chats, for operators and auditors; all by default. Owners see their own. */
  owner?: string;
  /** Only chats that this agent answers. */
  agent?: string;
  /** Whether to go on with new changes, which is the default, or to end at the present. */
  follow?: boolean;
}

/**
 * Yield a chat's events after number `after`, each once, in order, and go on with new ones.
 *
 * It comes back by itself, after growing pauses, when the connection drops, the service stops, or the answer is a 429 or
 * of 500 and above.
 *
 * @param url the address of the chat's events: `https://.../chats/{id}/events`
 * @throws {Problem} the service refuses
 */
export function follow(url: string | URL, options?: FollowOptions): AsyncGenerator<ChatEvent, void, undefined>;

/**
 * Yield the chats that changed after number `after`, each as it stands, then every chat that changes. From 0 on it yields
 * all chats first. It comes back by itself, as `follow` does.
 *
 * @param url the address of the changes of all chats: `https://.../events`
 * @throws {Problem} the service refuses
 */
export function watch(url: string | URL, options?: WatchOptions): AsyncGenerator<ChatChange, void, undefined>;
