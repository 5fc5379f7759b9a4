"""What clients rely on in the OpenAPI document, said here once more, for whoever changes any of it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest
from fastapi import FastAPI

from support.served import TOKENS
from turnwise import Engine
from turnwise.service import app as app_module
from turnwise.service import create_app, router

ALWAYS = {"400", "401", "403", "429", "503"}
ABOUT = "404 500"
CHANGE = "404 409 413 415 500"
AT_VERSION = "404 409 412 413 415 500"
PROMISED = {
    "POST /chats": ("create_chat", "201 ETag Location", CHANGE),
    "GET /chats": ("list_chats", "200", ""),
    "POST /chats/import": ("import_chat", "201 ETag Location", "404 409 413 415"),
    "GET /chats/{chat_id}": ("get_chat", "200 ETag, 304 ETag", ABOUT),
    "PATCH /chats/{chat_id}": ("update_chat", "200 ETag", AT_VERSION),
    "DELETE /chats/{chat_id}": ("delete_chat", "200", AT_VERSION),
    "POST /chats/{chat_id}/configure": ("configure", "202 ETag", AT_VERSION),
    "POST /chats/{chat_id}/fork": ("fork", "201 ETag Location", CHANGE),
    "POST /chats/{chat_id}/erase": ("erase", "200", CHANGE),
    "GET /chats/{chat_id}/tombstone": ("read_tombstone", "200", ABOUT),
    "POST /chats/{chat_id}/repair": ("repair", "202 ETag", CHANGE),
    "GET /chats/{chat_id}/helpers": ("list_helpers", "200", ABOUT),
    "GET /chats/{chat_id}/export": ("export_chat", "200", ABOUT),
    "POST /chats/{chat_id}/messages": ("send_message", "202", CHANGE),
    "POST /chats/{chat_id}/ask": ("ask", "200, 202", CHANGE),
    "GET /chats/{chat_id}/messages": ("list_messages", "200", ABOUT),
    "PATCH /chats/{chat_id}/messages/{message_id}": ("edit_message", "202 ETag", AT_VERSION),
    "GET /chats/{chat_id}/transcript": ("read_transcript", "200", ABOUT),
    "POST /chats/{chat_id}/tool-results": ("submit_tool_results", "202", AT_VERSION),
    "POST /chats/{chat_id}/interrupt": ("interrupt", "202 ETag", CHANGE),
    "POST /chats/{chat_id}/resume": ("resume", "202 ETag", CHANGE),
    "POST /chats/{chat_id}/compact": ("compact", "202 ETag", CHANGE),
    "POST /chats/{chat_id}/clear": ("clear", "202 ETag", CHANGE),
    "GET /chats/{chat_id}/compactions": ("list_compactions", "200", ABOUT),
    "GET /chats/{chat_id}/queue": ("list_queue", "200", ABOUT),
    "PATCH /chats/{chat_id}/queue/{queued_id}": ("edit_queued", "202 ETag", AT_VERSION),
    "DELETE /chats/{chat_id}/queue/{queued_id}": ("delete_queued", "202 ETag", AT_VERSION),
    "POST /chats/{chat_id}/queue/{queued_id}/promote": ("promote_queued", "202 ETag", CHANGE),
    "GET /chats/{chat_id}/events": ("stream_events", "200", ABOUT),
    "GET /chats/{chat_id}/audit": ("read_audit", "200", ABOUT),
    "GET /chats/{chat_id}/verify": ("verify", "200", ABOUT),
    "GET /chats/{chat_id}/usage": ("read_usage", "200", ABOUT),
    "GET /chats/{chat_id}/family-usage": ("read_family_usage", "200", ABOUT),
    "GET /chats/{chat_id}/argument-schemas": ("read_argument_schemas", "200", ABOUT),
    "GET /chats/{chat_id}/explain": ("explain", "200", ABOUT),
    "GET /chats/{chat_id}/diagram.svg": ("draw", "200", ABOUT),
    "POST /agui": ("run_agui", "200", CHANGE),
    "POST /ai-sdk/chat": ("chat_ai_sdk", "200", CHANGE),
    "GET /ai-sdk/chat/{thread_id}/messages": ("list_ui_messages", "200", ABOUT),
    "GET /ai-sdk/chat/{thread_id}/stream": ("resume_ai_sdk", "200, 204", ABOUT),
    "GET /chat-ids": ("list_ids", "200", ""),
    "GET /agents": ("list_agents", "200", ""),
    "GET /principal": ("read_principal", "200", ""),
    "POST /files": ("put_file", "201", CHANGE),
    "GET /files/{digest}": ("get_file", "200", ABOUT),
}
"""Of each route that needs a token: its name, its good answers with their headers, and its problems but `ALWAYS`."""
PROMISED_OPEN = {
    "GET /healthz": ("is_alive", "200", ""),
    "GET /readyz": ("is_ready", "200", "503"),
    "GET /metrics": ("metrics", "200", "400"),
}
"""Of each route that needs none: the same, and these are all of its problems."""
LEADING_ON = {
    "create_chat": ["get_chat", "fork", "put_file", "draw"],
    "import_chat": ["get_chat", "fork", "put_file", "draw"],
    "fork": ["get_chat", "erase", "put_file", "draw"],
    "list_chats": ["get_chat", "fork", "draw"],
    "send_message": ["get_chat", "edit_message", "edit_queued", "delete_queued", "promote_queued", "draw"],
    "put_file": ["get_file"],
}
"""The routes with links to others, and some of those that each leads to."""

EXAMPLES = {
    "Idempotency-Key": ["tab-1-message-7"],
    "If-Match": ['"7"', "*"],
    "If-None-Match": ['"7"'],
    "Last-Event-ID": [7],
    "after": [7],
    "chat": ["c019b2d0c5e41f3a97c2b1d8e64"],
    "chat_id": ["c019b2d0c5e41f3a97c2b1d8e64"],
    "digest": ["0" * 64],
    "message_id": ["m1"],
    "name": ["receipt.pdf"],
    "queued_id": ["m1"],
    "ChatChange": [{"title": "The parcel to Lyon"}],
    "Configuration": [{"model": "demo"}],
    "ForkPoint": [{"at_version": 4}],
    "NewChat": [{"title": "A parcel", "metadata": {"tier": "gold"}}],
    "NewContent": [{"content": "Where are my parcels?"}],
    "NewMessage": [{"content": "Where is my parcel?"}],
    "Problem": [
        {
            "type": "urn:turnwise:problem:queue-full",
            "title": "Queue full",
            "status": 429,
            "detail": "the queue is full: it holds at most 20 messages; nothing was written",
            "limit": 20,
        }
    ],
    "Submission": [{"results": [{"call_id": "call_1", "output": "Friday"}]}],
    "ToErase": [{"messages": ["m1"]}],
}
"""Of parameters and bodies."""
DEFAULTS = {
    "after": 0,
    "export": False,
    "family": False,
    "files": False,
    "finished": False,
    "follow": True,
    "limit": 50,
    "prefix": "",
    "rows": True,
    "simple": False,
    "until_rest": False,
    "version": "6",
    "view": "user",
    "within": 30,
    "ChatChange.archived": False,
    "ChatChange.metadata": {},
    "Configuration.agent": "",
    "NewChat.client_tools": [],
    "NewChat.history": [],
    "NewMessage.when_busy": "queue",
    "ToErase.messages": [],
    "ToErase.what": [],
    "ToolResultBody.is_error": False,
}
"""Of parameters and fields of bodies."""
BODIES = (
    "ChatChange", "ClientToolBody", "Configuration", "ForkPoint", "NewChat", "NewContent", "NewMessage", "Reason",
    "Submission", "ToErase", "ToolResultBody",
)  # fmt: skip


def test_every_route_promises_what_its_clients_rely_on(paths: dict[str, Any]) -> None:
    """Its name, its statuses, and the headers that come with each."""
    told, told_open = {}, {}
    for path, ways in paths.items():
        for method, operation in ways.items():
            good, bad = [], set()
            for status, answer in operation["responses"].items():
                headers = answer.get("headers", {})
                if "application/problem+json" in answer.get("content", {}):
                    bad.add(status)
                    expected = {"401": ["WWW-Authenticate"], "429": ["Retry-After"], "503": ["Retry-After"]}
                    assert list(headers) == expected.get(status, []), (method, path, status)
                else:
                    good.append(" ".join([status, *headers]))
            needs_none = "security" not in operation
            always = set() if needs_none else ALWAYS
            assert bad >= always, (method, path)
            promise = (operation["operationId"], ", ".join(sorted(good)), " ".join(sorted(bad - always)))
            (told_open if needs_none else told)[f"{method.upper()} {path}"] = promise
    assert told == PROMISED
    assert told_open == PROMISED_OPEN


def test_every_good_answer_is_said_to_be_done_made_or_accepted(paths: dict[str, Any]) -> None:
    answers = {
        (status, answer["description"])
        for ways in paths.values()
        for operation in ways.values()
        for status, answer in operation["responses"].items()
        if int(status) < 400
    }
    assert answers == {
        ("200", "Done."),
        ("201", "Made."),
        ("202", "Accepted: the chat goes on by itself."),
        ("202", "It takes longer: ask again with the same key."),
        ("204", "No turn is under way."),
        ("304", "The chat is still at that version."),
    }


def test_answers_lead_on_to_what_is_about_the_same_chat_message_or_file(paths: dict[str, Any]) -> None:
    operations = {operation["operationId"]: operation for ways in paths.values() for operation in ways.values()}
    links = {
        name: next(iter(operation["responses"].values())).get("links", {}) for name, operation in operations.items()
    }
    assert {name for name, leading in links.items() if leading} == LEADING_ON.keys()
    for name, some in LEADING_ON.items():
        assert set(some) <= links[name].keys(), name
        assert name not in links[name], name
        for other, link in links[name].items():
            assert link["operationId"] == other
            taken = {
                one["name"] for one in operations[other]["parameters"] if one["in"] == "path" or one["name"] == "chat"
            }
            assert taken == link["parameters"].keys(), (name, other)
    assert links["create_chat"]["put_file"]["parameters"] == {"chat": "$response.body#/id"}
    assert links["fork"]["get_chat"]["parameters"] == {"chat_id": "$response.body#/id"}
    assert links["list_chats"]["get_chat"]["parameters"] == {"chat_id": "$response.body#/items/0/id"}
    assert "put_file" not in links["list_chats"]
    assert links["send_message"]["edit_queued"]["parameters"] == {
        "chat_id": "$request.path.chat_id",
        "queued_id": "$response.body#/message_id",
    }
    assert links["put_file"]["get_file"]["parameters"] == {
        "chat": "$request.query.chat",
        "digest": "$response.body#/blob",
    }


def test_routes_tell_what_a_problem_is_in_an_application_that_does_not_describe_them() -> None:
    app = FastAPI()
    app.include_router(router(Engine("sqlite://", model="demo"), auth=TOKENS))
    answers = app.openapi()["paths"]["/chats"]["get"]["responses"]
    assert {
        status: answer["content"]["application/problem+json"]["schema"]["required"]
        for status, answer in answers.items()
        if status in ALWAYS
    } == {status: ["type", "title", "status", "detail"] for status in ALWAYS}


def test_bodies_that_are_read_piece_by_piece_are_described_and_needed(paths: dict[str, Any]) -> None:
    bodies = {path: paths[path]["post"]["requestBody"] for path in ("/files", "/chats/import")}
    assert {path: list(body["content"]) for path, body in bodies.items()} == {
        "/files": ["*/*"],
        "/chats/import": ["application/x-ndjson"],
    }
    assert [body["required"] for body in bodies.values()] == [True, True]
    assert bodies["/files"]["content"]["*/*"]["schema"] == {"type": "string", "format": "binary"}
    taking = {
        f"{method} {path}" for path, ways in paths.items() for method, told in ways.items() if "requestBody" in told
    }
    assert not [way for way in taking if way.startswith(("get ", "delete "))]


def test_what_the_document_says_of_streams_and_of_answers_that_are_rarer(paths: dict[str, Any]) -> None:
    events = paths["/chats/{chat_id}/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]["itemSchema"]
    in_json = {"type": "string", "contentMediaType": "application/json"}
    assert events["properties"] == {
        "data": {**in_json, "contentSchema": {"$ref": "#/components/schemas/Event"}},
        "event": {"type": "string"},
        "id": {"type": "string"},
        "retry": {"type": "integer", "minimum": 0},
    }
    for path, way in (("/agui", "post"), ("/ai-sdk/chat", "post"), ("/ai-sdk/chat/{thread_id}/stream", "get")):
        assert paths[path][way]["responses"]["200"]["content"]["text/event-stream"] == {
            "itemSchema": {"type": "object", "properties": {"data": in_json}, "required": ["data"]}
        }, path
    assert list(paths["/chats/{chat_id}/audit"]["get"]["responses"]["200"]["content"]) == [
        "application/json",
        "application/x-ndjson",
    ]
    later = paths["/chats/{chat_id}/ask"]["post"]["responses"]["202"]
    assert later["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/SendReceipt"}
    same = paths["/chats/{chat_id}"]["get"]["responses"]["304"]
    assert same["headers"]["ETag"]["schema"] == {"type": "string", "pattern": '^W/"[0-9]+"$'}


def test_what_a_request_may_hold_has_words_examples_and_defaults(
    document: dict[str, Any], paths: dict[str, Any]
) -> None:
    operations = [operation for ways in paths.values() for operation in ways.values()]
    parameters = [one for operation in operations for one in operation.get("parameters", ())]
    schemas = {name: document["components"]["schemas"][name] for name in (*BODIES, "Problem")}
    fields = {
        f"{name}.{field}": told for name, schema in schemas.items() for field, told in schema["properties"].items()
    }
    every = [(one["name"], one["schema"]) for one in parameters] + list(schemas.items())

    examples = {name: told["examples"] for name, told in every if "examples" in told}
    defaults = {name: told["default"] for name, told in (*every, *fields.items()) if "default" in told}
    assert (examples, defaults) == (EXAMPLES, DEFAULTS)
    assert {one["name"] for one in parameters if "description" not in one} == {"limit", "state", "view"}
    assert {name for name, told in fields.items() if "description" in told} == {
        "ClientToolBody.deadline", "ClientToolBody.input_schema", "Configuration.model", "Configuration.parameters",
        "NewChat.history", "NewChat.model", "NewChat.owner", "NewChat.parameters", "Problem.type",
    }  # fmt: skip
    assert document["components"]["securitySchemes"]["HTTPBearer"] == {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of a principal: an owner, an operator or an auditor.",
    }


def test_a_body_is_refused_for_a_field_that_nobody_knows_and_a_problem_may_have_any(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert [schemas[name].get("additionalProperties") for name in BODIES] == [False] * len(BODIES)
    assert schemas["Problem"]["additionalProperties"] is True
    assert schemas["ForkPoint"]["properties"]["at_version"]["minimum"] == 0


def test_the_document_has_the_version_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "version", "7.8.9 of {}".format)
    app = create_app(Engine("sqlite://", model="demo"), auth=TOKENS)
    assert app.version == "7.8.9 of turnwise"


def test_the_document_says_whose_it_is(document: dict[str, Any]) -> None:
    assert document["info"] == {
        "title": "turnwise",
        "summary": "Chats with language models, each a declared, durable state machine.",
        "version": version("turnwise"),
    }
    assert {way["tags"][0] for ways in document["paths"].values() for way in ways.values()} == {
        "chats", "turns", "reports", "front_ends", "files", "health"
    }  # fmt: skip
