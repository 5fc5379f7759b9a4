"""What is right for everything public, by parameter: the fuzz puts what is wrong in its places."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI
from obstore.store import MemoryStore
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry
from pydantic_ai.models.test import TestModel
from pydantic_ai.native_tools import WebSearchTool
from pydantic_ai.settings import ModelSettings

import turnwise
from turnwise import ClientTool, FilePart, ToolResult, client, service
from turnwise.persistence.conformance.importing import exported_lines
from turnwise.providers import scripted
from turnwise.states.events import StatusEvent
from turnwise.states.facts import Facts, Profile
from turnwise.states.messages import TextPart
from turnwise.states.names import ChatState
from turnwise.states.triggers import Circumstances, Create
from turnwise.testing import ManualClock


async def search(query: str) -> str:
    """Search."""
    return query


OBJECT: Final = {"type": "object"}
KEY: Final = turnwise.SigningKey.generate()
CLOCK: Final = ManualClock()
PROFILE: Final = Profile(created_at=CLOCK.now())
EVENT: Final = StatusEvent(state=ChatState.waiting, at=CLOCK.now())
MODEL: Final = scripted.ScriptedModel("ok")
SERVED: Final = {
    "engine": turnwise.Engine("sqlite://", model=MODEL),
    "auth": service.StaticTokens({"token": service.Principal("ada")}),
    "settings": service.ServiceSettings(),
}
SCRIPT: Final = {
    "replies": ["ok"],
    "summary": "s",
    "title": "t",
    "context_limit": 9,
    "name": "n",
    "provider": "p",
    "takes_answer_schema": None,
    "sleep": search,
}
OWNERS: Final[Mapping[str, Any]] = {
    "AGUIEncoder": service.AGUIEncoder("t", "r"),
    "AISDKEncoder": service.AISDKEncoder(),
    "ManualClock": CLOCK,
    "ManualClock.call_later": ManualClock(),
    "RetryPolicy": turnwise.RetryPolicy(),
    "SigningKey": KEY,
}
"""Whose methods are called. The clock that is moved is another than the one which keeps odd callbacks."""
RIGHT: Final[Mapping[str, Mapping[str, Any]]] = {
    "Engine": {
        "store": "sqlite://",
        "files": turnwise.FolderFiles("files"),
        "model": MODEL,
        "tools": [search],
        "agents": [turnwise.Agent("support", "demo")],
        "deps": 7,
        "settings": turnwise.Settings(run_worker=False),
        "reminders": [turnwise.history_was_compacted],
        "prepare_messages": lambda messages: messages,
        "observers": [turnwise.Observer()],
        "checkpoints": turnwise.Checkpoints(KEY, "checkpoints.jsonl"),
        "clock": CLOCK,
    },
    "Agent": {
        "name": "support",
        "model": "demo",
        "system": "Be brief.",
        "tools": [search],
        "output": OBJECT,
        "output_mode": "tool",
        "settings": turnwise.Settings(),
        "version": "1",
        "reminders": [turnwise.history_was_compacted],
        "prepare_messages": lambda messages: messages,
    },
    "delegate": {
        "agent": "support",
        "name": "ask_support",
        "description": "Helps.",
        "on_interrupt": "leave",
        "background": False,
    },
    "tool": {
        "function": search,
        "name": "search",
        "description": "Searches.",
        "schema": OBJECT,
        "parallel_safe": True,
        "timeout": 3,
        "crash": "at_least_once",
        "stop_after": False,
        "policy": "ask",
        "reconcile": search,
        "definition": None,
    },
    "ProviderDefinition": {"provider": "scripted", "tool": {"type": "t", "name": "search"}, "betas": ["b"]},
    "Tool": {
        "name": "search",
        "description": "Searches.",
        "schema": OBJECT,
        "run": search,
    },
    "ClientTool": {"name": "ask", "description": "Asks.", "input_schema": OBJECT, "deadline": 3},
    "ToolResult": {"call_id": "call_1", "output": {"a": [1]}, "is_error": False},
    "ToolOutput": {"output": 1, "attachments": ()},
    "CompactionResult": {"messages": [], "usage": None},
    "verify_export": {"text": "{}", "key": b"k", "public_key": KEY.public_pem, "checkpoints": ""},
    "SigningKey": {"pem": KEY.private_pem},
    "SigningKey.from_file": {"path": "turnwise-key.pem"},
    "SigningKey.generate": {},
    "SigningKey.signature_of": {"content": b"hi"},
    "Checkpoints": {
        "key": KEY,
        "to": "checkpoints.jsonl",
        "every": 10,
        "headers": {"A": "b"},
        "timeout": 3,
        "catch_up": 5,
    },
    "MCPTools": {"connect": search, "name": "tools", "prefix": "their_", "connect_timeout": 3},
    "MCPTools.http": {
        "url": "https://example.org/mcp",
        "headers": {"A": "b"},
        "prefix": "their_",
        "connect_timeout": 3,
    },
    "MCPTools.stdio": {
        "command": "server",
        "arguments": ["-v"],
        "env": {"A": "b"},
        "cwd": "/",
        "prefix": "their_",
        "connect_timeout": 3,
    },
    "OpenTelemetryObserver": {"tracer_provider": TracerProvider(), "record_content": True},
    "PrometheusObserver": {"registry": CollectorRegistry()},
    "SQLiteStore": {"path": None, "now": CLOCK.now},
    "PostgresStore": {"url": "postgresql://ada@db.example/chats", "now": CLOCK.now},
    "DemoModel": {"name": "demo", "context_limit": 9, "pace": 1},
    "PydanticAIModel": {
        "model": TestModel(),
        "context_limit": 9,
        "settings": ModelSettings(temperature=0),
        "native_tools": [WebSearchTool()],
        "takes_answer_schema": "always",
    },
    "fold": {"events": [EVENT], "transcript": None},
    "mermaid": {"state": "waiting", "simple": True},
    "path": {"events": [EVENT]},
    "timeline": {"events": [EVENT]},
    "slide": {"state": "waiting"},
    "sticker": {"state": "waiting"},
    "table": {},
    "machine_json": {},
    "svg": {"state": "waiting", "rows": False},
    "ScriptedModel": SCRIPT,
    "StrictModel": SCRIPT,
    "Reply": {
        "text": "hi",
        "reasoning": "hm",
        "calls": [],
        "usage": (1, 2),
        "chunks": 2,
        "delay": 0,
        "stall_after": 3,
    },
    "Call": {"name": "search", "arguments": {}, "id": "call_1"},
    "TextPart": {"text": "hi", "metadata": {"k": 1}},
    "FilePart": {"media_type": "image/png", "data": "aGk=", "name": "cat.png"},
    "FilePart.from_bytes": {"data": b"hi", "media_type": "image/png", "name": "cat.png"},
    "FilePart.from_path": {"path": __file__, "media_type": "text/plain", "name": "public_surface.py"},
    "Message": {
        "id": "m1",
        "role": "user",
        "parts": (TextPart(text="hi"),),
        "turn": 1,
        "step": 0,
        "created_at": CLOCK.now(),
    },
    "Usage": {},
    "ErrorInfo": {"kind": "internal", "message": "It broke."},
    "FolderFiles": {"path": "files", "create": True},
    "BucketFiles": {"store": MemoryStore(), "prefix": "files/chats"},
    "decide": {
        "facts": Facts(chat_id="c", profile=PROFILE),
        "trigger": Create(profile=PROFILE),
        "at": Circumstances(now=CLOCK.now(), limits=turnwise.Settings().limits(None)),
    },
    "Settings": {
        "retry": turnwise.RetryPolicy(),
        "compaction": turnwise.CompactionPolicy(),
        "parameters": {"temperature": 0},
    },
    "Settings.for_reasoning": {"lease": 30},
    "RetryPolicy": {},
    "RetryPolicy.allows": {"failures": 1, "broken": 0},
    "RetryPolicy.delay": {"failures": 1, "retry_after": 2},
    "RetryPolicy.interactive": {},
    "RetryPolicy.persistent": {},
    "CompactionPolicy": {},
    "Client": {"url": "http://localhost:8080", "token": "token", "settings": client.ClientSettings()},
    "ClientSettings": {},
    "ServiceSettings": {},
    "Principal": {"name": "ada", "role": "owner", "until": None},
    "StaticTokens": {"tokens": {"token": service.Principal("ada")}},
    "StaticTokens.from_file": {"path": "tokens.toml"},
    "JWTs": {"key": "a secret of thirty-two bytes at least", "algorithms": ["HS256"]},
    "create_app": SERVED,
    "router": SERVED,
    "serve": {**SERVED, "sockets": [], "log_level": "critical", "opened": None},
    "add_problem_handlers": {"app": FastAPI()},
    "describe": {"app": FastAPI()},
    "event_stream": {"engine": SERVED["engine"], "chat_id": "c"},
    "problem_response": {"error": turnwise.EngineInUse()},
    "AGUIEncoder": {
        "thread_id": "t",
        "run_id": "r",
        "history": [{"id": "m1", "role": "user", "content": "hi"}],
        "known_calls": ["call_1"],
        "answered": ["call_1"],
    },
    "AGUIEncoder.begin": {"anew": True},
    "AGUIEncoder.encode": {"event": EVENT},
    "AGUIEncoder.end": {"cut": "The service stops."},
    "AISDKEncoder": {"message_id": "m1", "version": 7, "known_calls": ["call_1"], "answered": ["call_1"]},
    "AISDKEncoder.encode": {"event": EVENT},
    "AISDKEncoder.end": {"cut": "The service stops."},
    "encode_agui": {"events": [EVENT], "thread_id": "t", "run_id": "r"},
    "encode_ai_sdk": {"events": [EVENT], "version": 7},
    "ManualClock": {"start": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)},
    "ManualClock.advance": {"seconds": 0},
    "ManualClock.call_later": {"seconds": 0, "callback": print},
    "ManualClock.step": {"seconds": 0},
}


def right_arguments(chat_ids: Mapping[str, str]) -> dict[str, Any]:
    """Return what is right for the methods of an engine or a client, for chats by their states."""
    return {
        "chat_id": chat_ids["pending"],
        "content": "hi",
        "put_file.content": b"hi",
        "media_type": "image/png",
        "name": "cat.png",
        "file": FilePart(media_type="image/png", data="aGk="),
        "when_busy": "queue",
        "client_id": "k",
        "create_chat.client_id": "a chat of its own",
        "actor": "someone",
        "submit_tool_results.chat_id": chat_ids["requires_action"],
        "results": [ToolResult("call_1", 1)],
        "edit_message.chat_id": chat_ids["waiting"],
        "erase_message.chat_id": chat_ids["waiting"],
        "erase.chat_id": chat_ids["waiting"],
        "delete_chat.chat_id": chat_ids["error"],
        "import_chat.key": None,
        "permit": lambda chat: None,
        "lines": exported_lines(),
        "messages": ["m1"],
        "what": ["title"],
        "message_id": "m1",
        "queued_id": "m2",
        "view": "user",
        "reason": "r",
        "at_version": 1,
        "key": b"k",
        "signer": KEY,
        "checkpoints": "",
        "public_key": KEY.public_pem,
        "prefix": "c",
        "owner": "o",
        "title": "t",
        "metadata": {"k": 1},
        "update_chat.archived": False,
        "if_version": None,
        "system": "s",
        "parent": chat_ids["waiting"],
        "client_tools": [ClientTool("sign", "Sign.", OBJECT)],
        "state": "waiting",
        "limit": 5,
        "list_chats.after": chat_ids["waiting"],
        "after": 0,
        "follow": False,
        "until_rest": False,
        "until": {"waiting"},
        "timeout": 0.01,
        "arguments": {},
        "awaiting": "client",
        "family": True,
        "files": True,
        "agent": "default",
        "ask.agent": None,
        "model": "demo",
        "parameters": {},
        "active_tools": [],
        "history": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
    }
