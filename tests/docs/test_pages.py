"""The threat model names every role and every public route; the documented limits of owners hold."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Final, Literal, get_args

import httpx
import orjson
import pytest
import yaml
from prometheus_client import CollectorRegistry
from pydantic_ai.models import google, zai
from pydantic_ai.models.anthropic._response import FINISH_REASON_MAP
from pydantic_ai.models.openai._response_fields import RESPONSES_FINISH_REASON_MAP

from support.logged_life import LOG
from support.served import GENEROUS, served
from turnwise import Engine, SigningKey, StopReason, tool
from turnwise.engine.observers.prometheus import PrometheusObserver
from turnwise.persistence.audit.checkpoints import Head, checkpoint_line
from turnwise.persistence.audit.record import GENESIS, MOST, export, to_json
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.reply_outcome import FINISH_WORDS, OUTCOMES, stop_reason_of
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.service import Role
from turnwise.service.routes.health import OPEN_STREAMS, REFUSED_REQUESTS
from turnwise.service.routes.table import OPEN_ROUTES
from turnwise.states import errors, model_errors
from turnwise.states.names import ActionOf, ChatState, snake_case

MODEL = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", MODEL.split("## What a thief gets")[0], re.MULTILINE)


def test_threat_model_names_the_open_routes() -> None:
    (may,) = (row[1] for row in ROWS if row[0] == "no token")
    assert set(re.findall(r"`(/[\w.]+)`", may)) == {row.path for row in OPEN_ROUTES} | {
        "/inspector",
        "/client",
        "/openapi.json",
    }


@pytest.mark.parametrize("role", get_args(Role))
def test_threat_model_has_a_row_for_each_role(role: str) -> None:
    assert [row[0] for row in ROWS if re.fullmatch(rf"an {role}'s token", row[0])]


def paying(
    paid: list[int], replies: Sequence[Reply | str] = (), *, approver: Literal["operator", "owner"] = "operator"
) -> Engine:
    """Return an engine whose agent asks first, and pays any approved amount."""

    @tool(policy="ask", approver=approver)
    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    def answer(request: ModelRequest) -> Reply:
        is_asked = request.messages[-1].text == "Pay!"
        return Reply(calls=[Call("pay", {"cents": 5}, id="p")]) if is_asked else Reply("Done.")

    return Engine("sqlite://", model=ScriptedModel(replies or answer), tools=[pay])


async def test_owner_allows_calls_of_a_tool_that_says_so() -> None:
    """Of all owners, the chat's own alone."""
    paid: list[int] = []
    engine = paying(paid, approver="owner")
    async with (
        served(engine) as service,
        service.client("ada") as ada,
        service.client("bob") as bob,
        service.client("auditor") as auditor,
    ):
        chat = (await ada.post("/chats", json={})).json()["id"]
        await ada.post(f"/chats/{chat}/messages", json={"content": "Pay!"})
        await engine.wait(chat)
        assert (await ada.get(f"/chats/{chat}")).json()["open_calls"][0]["approver"] == "owner"
        answer = {"results": [{"call_id": "p", "output": {"approved": True}}]}
        refused = [
            (await other.post(f"/chats/{chat}/tool-results", json=answer)).status_code for other in (bob, auditor)
        ]
        assert (refused, paid) == ([404, 403], [])
        assert (await ada.post(f"/chats/{chat}/tool-results", json=answer)).status_code == 202
        await engine.wait(chat)
    assert paid == [5]


ALLOWED: Final = {"call_id": "p", "output": {"approved": True}}
PICK_DATE: Final = {"name": "pick_date", "description": "Ask for a date.", "input_schema": {"type": "object"}}
ON_PAGE: Final = {
    "id": "a",
    "role": "assistant",
    "parts": [
        {
            "type": "tool-pay",
            "toolCallId": "p",
            "state": "approval-responded",
            "approval": {"id": "p", "approved": True},
        }
    ],
}
RUN: Final = {"runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {}}


async def allow(client: httpx.AsyncClient, chat: str) -> list[httpx.Response]:
    """Allow a call by every route that takes answers."""
    call = {"id": "p", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    resumed = {"interruptId": "p", "status": "resolved", "payload": True}
    answered = {
        "threadId": chat,
        "messages": [{"id": "a", "role": "assistant", "toolCalls": [call]}],
        "resume": [resumed],
    }
    return [
        await client.post(f"/chats/{chat}/tool-results", json={"results": [ALLOWED]}),
        await client.post("/agui", json=RUN | answered),
        await client.post("/ai-sdk/chat?version=7", json={"id": chat, "messages": [ON_PAGE]}),
    ]


async def test_operator_allows_calls_unless_a_tool_says_otherwise() -> None:
    """Every route that takes answers is covered."""
    assert {"`tool-results`", "`/agui`", "`/ai-sdk/chat`"} <= set(re.findall(r"`[^`]+`", MODEL))
    paid: list[int] = []
    engine = paying(paid)
    async with (
        served(engine, settings=GENEROUS) as service,
        service.client("ada") as ada,
        service.client("operator") as operator,
    ):
        chat = (await ada.post("/chats", json={})).json()["id"]
        version = (await engine.ask(chat, "Pay!")).chat.version
        refused = await allow(ada, chat)
        assert [answer.status_code for answer in refused] == [403] * 3
        assert {answer.json()["needed"] for answer in refused} == {
            "'operator' to answer a call that an operator has to allow"
        }
        assert ((await engine.get_chat(chat)).version, paid) == (version, [])
        assert [answer.status_code for answer in await allow(operator, chat)] == [202, 200, 200]
    assert paid == [5]


async def test_replayed_answer_approves_no_later_call() -> None:
    """The first answer was lost: the client sends it again, and learns that it was accepted."""
    paid: list[int] = []
    date = {"call_id": "d", "output": "Friday"}
    replies = [Reply(calls=[Call("pick_date", {}, id="d")]), Reply(calls=[Call("pay", {"cents": 5}, id="p")]), "Done."]
    engine = paying(paid, replies)
    async with served(engine, settings=GENEROUS) as service, service.client() as ada:
        created = await ada.post("/chats", json={"client_tools": [PICK_DATE]})
        chat = created.json()["id"]
        await engine.ask(chat, "Pay!")
        path = f"/chats/{chat}/tool-results"
        first = await ada.post(path, json={"results": [date]})
        version = (await engine.wait(chat)).version
        again = await ada.post(path, json={"results": [date]})
        assert [(one.status_code, one.json()["replayed"]) for one in (first, again)] == [(202, False), (202, True)]
        for results in ([ALLOWED], [date, ALLOWED]):
            assert (await ada.post(path, json={"results": results})).status_code == 403
        assert ((await engine.get_chat(chat)).version, paid) == (version, [])


# The page of symptoms


PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def test_page_has_a_remedy_for_each_error_kind() -> None:
    table = PAGE[PAGE.index("| kind |") : PAGE.index("### The chat is archived")]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = {kind for cell in cells for kind in re.findall(r"`(\w+)`", cell)}
    assert named == {*get_args(model_errors.ModelErrorKind), *get_args(model_errors.OwnErrorKind)}


# Finish words


MODELS = (Path(__file__).parents[2] / "docs" / "reference" / "models.md").read_text(encoding="utf-8")
THEIRS = {
    "stop": StopReason.end_turn,
    "tool_call": StopReason.end_turn,
    "length": StopReason.max_tokens,
    "content_filter": StopReason.content_filter,
}
NO_REPLY = {"compaction"}
"""A marker for a reply that holds a summary of the prompt alone: it answers nothing."""


def test_reference_has_every_finish_word() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", MODELS, re.MULTILINE)
    table = {reason: (outcome, tuple(re.findall(r"`(\w+)`", words))) for reason, outcome, words in rows}
    assert table == {str(reason): (str(outcome), FINISH_WORDS.get(reason, ())) for reason, outcome in OUTCOMES.items()}


def test_words_mean_what_pydantic_ai_takes_them_for() -> None:
    maps = (google._FINISH_REASON_MAP, zai._ZAI_FINISH_REASON_MAP, FINISH_REASON_MAP, RESPONSES_FINISH_REASON_MAP)
    theirs = {str(word): reason for one in maps for word, reason in one.items() if word not in NO_REPLY}
    assert {word: stop_reason_of(word) for word in theirs} == {
        word: THEIRS.get(str(reason), StopReason.unknown) for word, reason in theirs.items()
    }


# The audit format


FORMAT = (Path(__file__).parents[2] / "docs" / "audit-format.md").read_text()


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
    below = FORMAT.partition(f"\n{heading}\n")[2]
    table = takewhile(lambda line: line.startswith("|"), below[below.index("\n|") + 1 :].splitlines())
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in [*table][2:]]


def names_in(cells: list[list[str]]) -> list[str]:
    return [name for first, *_ in cells for name in re.findall(r"`([\w:]+)`", first)]


def test_page_names_every_field_of_a_record() -> None:
    assert set(names_in(rows_of("## A record"))) == set(orjson.loads(to_json(LOG[0])))
    assert MOST == 2**53 - 1


def test_page_names_every_field_of_checkpoints() -> None:
    key = SigningKey.generate()
    last = orjson.loads(export("chat-1", LOG, key=b"k", signer=key).splitlines()[-1])
    assert {"count", "head", *names_in(rows_of("## The checkpoint"))} == set(last)
    line = checkpoint_line(Head("chat-1", 1, GENESIS), at=datetime.now(UTC), prev=GENESIS, key=key)
    assert set(names_in(rows_of("## Published checkpoints"))) == set(orjson.loads(line))


# The dashboard


DOCS: Final = Path(__file__).parents[2] / "docs"
DASHBOARD: Final = json.loads((DOCS / "grafana" / "turnwise.json").read_text())
PANELS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SAMPLES: Final[Mapping[str | None, tuple[str, ...]]] = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "gauge": ("",),
}
ASKED: Final = re.compile(r"(turnwise_\w+)(?:\{([^}]*)\})?")
GROUPED: Final = re.compile(r"by \(([^)]*)\) \((?:rate|increase)?\(?(turnwise_\w+)")
GIVEN_BY_PROMETHEUS: Final = {"job"}


@pytest.fixture(scope="module")
def exported() -> Mapping[str, set[str]]:
    """Return every sample that an observer or the service exports, with its labels."""
    registry = CollectorRegistry()
    PrometheusObserver(registry)
    requests = {"status", "problem"} | GIVEN_BY_PROMETHEUS
    samples: dict[str, set[str]] = {OPEN_STREAMS: GIVEN_BY_PROMETHEUS, f"{REFUSED_REQUESTS}_total": requests}
    for metric in set(registry._names_to_collectors.values()):
        for ending in SAMPLES[metric._type]:
            labels = {*metric._labelnames, *(["le"] if ending == "_bucket" else [])}
            samples[metric._name + ending] = labels | GIVEN_BY_PROMETHEUS
    return samples


def expressions() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel["targets"]]


def unknown(expression: str, exported: Mapping[str, set[str]]) -> set[str]:
    """Return the metrics and labels of an expression that no observer exports."""
    wrong = set()
    for name, matchers in ASKED.findall(expression):
        labels = set(re.findall(r"(\w+)(?:=~|!=|!~|=)", matchers))
        wrong |= labels - exported[name] if name in exported else {name}
    for labels, name in GROUPED.findall(expression):
        wrong |= set(labels.split(", ")) - exported.get(name, set())
    return wrong


def test_expressions_use_only_exported_metrics(exported: Mapping[str, set[str]]) -> None:
    assert {expression: wrong for expression in expressions() if (wrong := unknown(expression, exported))} == {}
    assert all(ASKED.search(expression) for expression in expressions())


def test_alerts_use_only_exported_metrics(exported: Mapping[str, set[str]]) -> None:
    """Their labels exist, and so do the states, parties and errors that they name."""
    rules = yaml.safe_load((DOCS / "grafana" / "alerts.yaml").read_text())["groups"][0]["rules"]
    expressions = {rule["alert"]: rule["expr"] for rule in rules}
    assert {name: wrong for name, one in expressions.items() if (wrong := unknown(one, exported))} == {}
    assert all(ASKED.search(one) and rule["annotations"]["summary"] for rule in rules for one in [rule["expr"]])
    known = {*ChatState, *get_args(ActionOf), "failed", "unknown price", "calls", "5.."}
    known |= {snake_case(name) for name, kind in vars(errors).items() if isinstance(kind, type)}
    quoted = [text for one in expressions.values() for text in re.findall(r'"([^"]*)"', one)]
    assert {value for text in quoted for value in text.split("|")} <= known


def test_reference_lists_every_metric(exported: Mapping[str, set[str]]) -> None:
    table = re.findall(r"^ *\| (`turnwise_.*?) \|", PrometheusObserver.__doc__ or "", re.MULTILINE)
    reported = {name for row in table for name in re.findall(r"turnwise_\w+", row)}
    own = {OPEN_STREAMS, f"{REFUSED_REQUESTS}_total"}
    assert reported | own == {re.sub("_(bucket|count|sum)$", "", name) for name in exported}


def test_dashboard_shows_every_metric(exported: Mapping[str, set[str]]) -> None:
    shown = {re.sub("_(total|bucket|count|sum)$", "", name) for one in expressions() for name, _ in ASKED.findall(one)}
    assert shown == {re.sub("_(total|bucket|count|sum)$", "", name) for name in exported}
