"""The dashboard for Grafana asks for metrics and labels that there are, and shows every metric that there is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from turnwise.engine.observers.prometheus import PrometheusObserver
from turnwise.service.routes.health import OPEN_STREAMS

DOCS: Final = Path(__file__).parents[2] / "docs"
DASHBOARD: Final = json.loads((DOCS / "grafana" / "turnwise.json").read_text())
GUIDE: Final = DOCS / "guides" / "observation.md"
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
    samples: dict[str, set[str]] = {OPEN_STREAMS: GIVEN_BY_PROMETHEUS}
    for metric in set(registry._names_to_collectors.values()):
        assert isinstance(metric, MetricWrapperBase)
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


def test_every_expression_asks_for_what_is_exported(exported: Mapping[str, set[str]]) -> None:
    assert {expression: wrong for expression in expressions() if (wrong := unknown(expression, exported))} == {}
    assert all(ASKED.search(expression) for expression in expressions())


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("sum(turnwise_runing_chats)", {"turnwise_runing_chats"}),
        ("sum(turnwise_steps)", {"turnwise_steps"}),
        ('rate(turnwise_steps_total{chat="c"}[5m])', {"chat"}),
        ("sum by (tool) (rate(turnwise_steps_total[5m]))", {"tool"}),
        ("sum by (agent, le) (rate(turnwise_tool_seconds_bucket[5m]))", {"agent"}),
    ],
)
def test_a_planted_mistake_is_found(expression: str, wrong: set[str], exported: Mapping[str, set[str]]) -> None:
    assert unknown(expression, exported) == wrong


def test_every_metric_is_in_the_table_of_the_guide(exported: Mapping[str, set[str]]) -> None:
    table = re.findall(r"^\| (`turnwise_.*?) \|", GUIDE.read_text(), re.MULTILINE)
    told = {name for row in table for name in re.findall(r"turnwise_\w+", row)}
    assert told == {re.sub("_(bucket|count|sum)$", "", name) for name in exported}


def test_every_metric_is_shown(exported: Mapping[str, set[str]]) -> None:
    shown = {re.sub("_(total|bucket|count|sum)$", "", name) for one in expressions() for name, _ in ASKED.findall(one)}
    assert shown == {re.sub("_(total|bucket|count|sum)$", "", name) for name in exported}


def test_what_a_legend_names_is_a_label_of_what_is_drawn() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            kept = ", ".join(re.findall(r"by \(([^)]*)\)", target["expr"])).split(", ")
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= set(kept), panel["title"]


def test_quantiles_are_taken_of_buckets_and_every_bracket_is_closed() -> None:
    for expression in expressions():
        assert ("histogram_quantile" in expression) == ("_bucket" in expression) == (", le)" in expression)
        for opened, closed in ("()", "{}", "[]"):
            assert expression.count(opened) == expression.count(closed)


def overlap(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    return not (apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"])


def test_panels_have_ids_of_their_own_and_stand_side_by_side() -> None:
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert not any(overlap(one, other) for one, other in combinations(places, 2))


def test_every_panel_is_explained_and_takes_the_chosen_source_of_data() -> None:
    for panel in PANELS:
        assert panel["description"].endswith(".")
        assert {one["datasource"]["uid"] for one in (panel, *panel["targets"])} == {"${datasource}"}
