"""turnwise runs the life of an LLM chat as an explicit, declared, durable state machine.

The stored state is where the chat is; a declared table says what may happen; a state's job runs while the chat is
in it.
"""

from turnwise.engine.chat import Chat, Page, SendReceipt, SubmissionReceipt, TurnResult
from turnwise.engine.engine import Engine, EngineClosed
from turnwise.engine.explain import Explanation
from turnwise.engine.hooks import LoopState, history_was_compacted
from turnwise.engine.observation import ModelCall, Observer, ToolRun
from turnwise.engine.settings import Budget, CompactionPolicy, Folded, RetryPolicy, Settings
from turnwise.engine.tools import Tool, ToolContext, ToolOutput, tool
from turnwise.persistence.audit import AuditRecord
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.verification import Verdict, verify_export
from turnwise.providers.protocol import Model, ModelPart, ModelReply, ModelRequest, ToolSpec
from turnwise.states.calls import ClientTool, ToolCall, ToolResult
from turnwise.states.errors import (
    BrokenPromise,
    ChatArchived,
    ChatBusy,
    ChatNotFound,
    ConflictingReplay,
    DeadlineExpired,
    FatalToolError,
    IllegalTransition,
    InvalidContent,
    MessageNotFound,
    ModelError,
    NothingToCompact,
    QueueFull,
    SettingsError,
    StaleLease,
    StoreError,
    ToolResultMismatch,
    TurnwiseError,
)
from turnwise.states.events import ErrorInfo, Event
from turnwise.states.messages import FilePart, Message, QueuedMessage, TextPart
from turnwise.states.names import RESTING, ChatState, StopReason, Trigger
from turnwise.states.transcript import Transcript, fold
from turnwise.states.usage import Usage

__all__ = [
    "RESTING",
    "AuditRecord",
    "BrokenPromise",
    "Budget",
    "Chat",
    "ChatArchived",
    "ChatBusy",
    "ChatNotFound",
    "ChatState",
    "ChatStore",
    "ClientTool",
    "CompactionPolicy",
    "ConflictingReplay",
    "DeadlineExpired",
    "Engine",
    "EngineClosed",
    "ErrorInfo",
    "Event",
    "Explanation",
    "FatalToolError",
    "FilePart",
    "Folded",
    "IllegalTransition",
    "InvalidContent",
    "LoopState",
    "Message",
    "MessageNotFound",
    "Model",
    "ModelCall",
    "ModelError",
    "ModelPart",
    "ModelReply",
    "ModelRequest",
    "NothingToCompact",
    "Observer",
    "Page",
    "QueueFull",
    "QueuedMessage",
    "RetryPolicy",
    "SendReceipt",
    "Settings",
    "SettingsError",
    "StaleLease",
    "StopReason",
    "StoreError",
    "SubmissionReceipt",
    "TextPart",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolOutput",
    "ToolResult",
    "ToolResultMismatch",
    "ToolRun",
    "ToolSpec",
    "Transcript",
    "Trigger",
    "TurnResult",
    "TurnwiseError",
    "Usage",
    "Verdict",
    "fold",
    "history_was_compacted",
    "tool",
    "verify_export",
]
