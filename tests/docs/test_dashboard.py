"""The dashboard for Grafana asks for metrics and labels that there are, and shows every metric that there is."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import CollectorRegistry

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


def test_guide_lists_every_metric(exported: Mapping[str, set[str]]) -> None:
    table = re.findall(r"^\| (`turnwise_.*?) \|", GUIDE.read_text(), re.MULTILINE)
    told = {name for row in table for name in re.findall(r"turnwise_\w+", row)}
    assert told == {re.sub("_(bucket|count|sum)$", "", name) for name in exported}


def test_dashboard_shows_every_metric(exported: Mapping[str, set[str]]) -> None:
    shown = {re.sub("_(total|bucket|count|sum)$", "", name) for one in expressions() for name, _ in ASKED.findall(one)}
    assert shown == {re.sub("_(total|bucket|count|sum)$", "", name) for name in exported}
