"""turnwise runs the life of an LLM chat as an explicit, declared, durable state machine.

The stored state is where the chat is; a declared table says what may happen; a state's job runs while the chat is
in it.
"""

from turnwise.engine.admin.erase import Erasure
from turnwise.engine.admin.explain import Explanation
from turnwise.engine.agents.agent import Agent
from turnwise.engine.agents.delegate import delegate
from turnwise.engine.chats.chats import Chats
from turnwise.engine.checkpoints.checkpoints import Checkpoints
from turnwise.engine.config.results import (
    Budget,
    Chat,
    ChatChange,
    Compaction,
    InboxItem,
    Page,
    SendReceipt,
    SubmissionReceipt,
    TurnResult,
    UsageEntry,
)
from turnwise.engine.config.settings import CompactionInput, CompactionPolicy, CompactionResult, RetryPolicy, Settings
from turnwise.engine.engine import Engine
from turnwise.engine.observers.observer import CompactionRun, ModelCall, Observer, ToolRun
from turnwise.engine.prompt.hooks import LoopState, PastCall, ReminderText, RequestContext, history_was_compacted
from turnwise.engine.tools.context import ToolContext, ToolOutput
from turnwise.engine.tools.declare import Reconciled, Tool, tool, wake_me
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.audit.signing import SigningKey
from turnwise.persistence.audit.verify import Verdict, verify_export
from turnwise.persistence.blobs.bucket import BucketFiles
from turnwise.persistence.blobs.folder import FolderFiles
from turnwise.persistence.blobs.protocol import FileStore
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.reading import Consumer, Undelivered
from turnwise.persistence.tombstone import Tombstone
from turnwise.providers.protocol import Model, ModelPart, ModelReply, ModelRequest, ProviderDefinition, ToolSpec
from turnwise.states.calls import ClientTool, ToolCall, ToolResult
from turnwise.states.errors import (
    BrokenInvariant,
    BudgetSpent,
    ChatArchived,
    ChatBusy,
    ChatDeleted,
    ChatExists,
    ChatNotFound,
    ChatUnreadable,
    ConflictingReplay,
    DeadlineExpired,
    EngineClosed,
    EngineInUse,
    FatalToolError,
    FileNotFound,
    IllegalTransition,
    ImportRefused,
    InvalidArgument,
    InvalidContent,
    MessageNotFound,
    NothingToCompact,
    NotResting,
    QueueFull,
    SettingsError,
    StaleLease,
    StoreError,
    ToolFailed,
    ToolOutcomeUnknown,
    ToolResultMismatch,
    TurnwiseError,
    VersionMismatch,
    WrongCall,
)
from turnwise.states.events import ErrorInfo, Event
from turnwise.states.messages import FilePart, Message, ModelFailure, QueuedMessage, ScheduledMessage, TextPart
from turnwise.states.model_errors import ModelError, RefusedPart
from turnwise.states.names import RESTING, ChatState, StopReason
from turnwise.states.transcript import Transcript, fold
from turnwise.states.triggers import Trigger
from turnwise.states.usage import Usage

__all__ = [
    "RESTING",
    "Agent",
    "AuditRecord",
    "BrokenInvariant",
    "BucketFiles",
    "Budget",
    "BudgetSpent",
    "Chat",
    "ChatArchived",
    "ChatBusy",
    "ChatChange",
    "ChatDeleted",
    "ChatExists",
    "ChatNotFound",
    "ChatState",
    "ChatStore",
    "ChatUnreadable",
    "Chats",
    "Checkpoints",
    "ClientTool",
    "Compaction",
    "CompactionInput",
    "CompactionPolicy",
    "CompactionResult",
    "CompactionRun",
    "ConflictingReplay",
    "Consumer",
    "DeadlineExpired",
    "Engine",
    "EngineClosed",
    "EngineInUse",
    "Erasure",
    "ErrorInfo",
    "Event",
    "Explanation",
    "FatalToolError",
    "FileNotFound",
    "FilePart",
    "FileStore",
    "FolderFiles",
    "IllegalTransition",
    "ImportRefused",
    "InboxItem",
    "InvalidArgument",
    "InvalidContent",
    "LoopState",
    "Message",
    "MessageNotFound",
    "Model",
    "ModelCall",
    "ModelError",
    "ModelFailure",
    "ModelPart",
    "ModelReply",
    "ModelRequest",
    "NotResting",
    "NothingToCompact",
    "Observer",
    "Page",
    "PastCall",
    "ProviderDefinition",
    "QueueFull",
    "QueuedMessage",
    "Reconciled",
    "RefusedPart",
    "ReminderText",
    "RequestContext",
    "RetryPolicy",
    "ScheduledMessage",
    "SendReceipt",
    "Settings",
    "SettingsError",
    "SigningKey",
    "StaleLease",
    "StopReason",
    "StoreError",
    "SubmissionReceipt",
    "TextPart",
    "Tombstone",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolFailed",
    "ToolOutcomeUnknown",
    "ToolOutput",
    "ToolResult",
    "ToolResultMismatch",
    "ToolRun",
    "ToolSpec",
    "Transcript",
    "Trigger",
    "TurnResult",
    "TurnwiseError",
    "Undelivered",
    "Usage",
    "UsageEntry",
    "Verdict",
    "VersionMismatch",
    "WrongCall",
    "delegate",
    "fold",
    "history_was_compacted",
    "tool",
    "verify_export",
    "wake_me",
]


def __getattr__(name: str) -> str:
    """Return the version that is installed: finding it takes long, and few ask."""
    if name != "__version__":
        raise AttributeError(f"module 'turnwise' has no attribute {name!r}")
    from importlib.metadata import version  # noqa: PLC0415 - as above

    return version("turnwise")
