"""Each alert rule fires on its bad series and is silent on a good one, as Prometheus evaluates them."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

FILE: Final = Path(__file__).parents[2] / "docs" / "grafana" / "alerts.yaml"
RULES: Final[Sequence[Mapping[str, Any]]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"][0]["rules"]
PROMTOOL: Final = shutil.which("promtool")

pytestmark = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool, which comes with Prometheus and evaluates alert rules, is not on the PATH"
)


class Case(NamedTuple):
    """Series in the notation of promtool: one value a minute."""

    bad: Mapping[str, str]
    good: Mapping[str, str]
    labels: Mapping[str, str]
    """Labels of the alert, beside its severity."""
    summary: str


MODEL: Final = '{provider="openai", model="gpt-5", outcome="%s"}'
CASES: Final = {
    "TurnwiseChatsWaitForWorkers": Case(
        {'turnwise_waiting_seconds{agent="shop", job="w1"}': "0x20 30+60x10"},
        {'turnwise_waiting_seconds{agent="shop", job="w1"}': "0x25 90 0x4"},
        {"agent": "shop"},
        "Chats of agent shop have waited 9m 30s for a worker.",
    ),
    "TurnwiseApprovalWaits": Case(
        {'turnwise_oldest_action_seconds{answerer="operator"}': "3660x30"},
        {
            'turnwise_oldest_action_seconds{answerer="operator"}': "3600x30",
            'turnwise_oldest_action_seconds{answerer="owner"}': "90000x30",
        },
        {"answerer": "operator"},
        "A chat has waited 1h 1m 0s for an operator to allow a call.",
    ),
    "TurnwiseSubagentsWait": Case(
        {'turnwise_oldest_action_seconds{answerer="subagents"}': "90000x30"},
        {'turnwise_oldest_action_seconds{answerer="subagents"}': "86400x30"},
        {"answerer": "subagents"},
        "A chat has waited 1d 1h 0m 0s for its subagents.",
    ),
    "TurnwiseModelHangs": Case(
        {'turnwise_oldest_work_seconds{state="compacting"}': "960x30"},
        {
            'turnwise_oldest_work_seconds{state="streaming"}': "900x30",
            'turnwise_oldest_work_seconds{state="executing_tools"}': "3000x30",
        },
        {"state": "compacting"},
        "A chat has been compacting for 16m 0s.",
    ),
    "TurnwiseToolHangs": Case(
        {'turnwise_oldest_work_seconds{state="executing_tools"}': "3660x30"},
        {'turnwise_oldest_work_seconds{state="executing_tools"}': "3600x30"},
        {"state": "executing_tools"},
        "Tools of a chat have run for 1h 1m 0s.",
    ),
    "TurnwiseChatsFail": Case(
        {'turnwise_transitions_total{trigger="failed", source="streaming", target="error"}': "0x20 0+1x10"},
        {
            'turnwise_transitions_total{trigger="failed", source="streaming", target="error"}': "0x28 2x2",
            'turnwise_transitions_total{trigger="archived", source="error", target="error"}': "0+9x30",
        },
        {},
        "9 chats came to error within 15 minutes.",
    ),
    "TurnwiseModelFails": Case(
        {
            f"turnwise_step_seconds_count{MODEL % 'failed'}": "0+1x30",
            'turnwise_failed_steps_total{provider="openai", model="gpt-5", kind="auth"}': "0+1x30",
        },
        {
            f"turnwise_step_seconds_count{MODEL % 'failed'}": "0+1x30",
            f"turnwise_step_seconds_count{MODEL % 'finished'}": "0+9x30",
        },
        {"provider": "openai", "model": "gpt-5"},
        "More than a tenth of the steps of openai:gpt-5 fail.",
    ),
    "TurnwiseRefusals": Case(
        {'turnwise_refusals_total{command="send_message", error="queue_full"}': "0+60x40"},
        {
            'turnwise_refusals_total{command="send_message", error="queue_full"}': "0+5x40",
            'turnwise_refusals_total{command="send_message", error="chat_busy"}': "0+60x40",
        },
        {"error": "queue_full"},
        "1.0 calls a second are refused with queue_full.",
    ),
    "TurnwiseStoreFails": Case(
        {'turnwise_refusals_total{command="get_chat", error="store_error"}': "0+1x30"},
        {'turnwise_refusals_total{command="get_chat", error="store_error"}': "0x10 1x20"},
        {},
        "The store refuses calls.",
    ),
    "TurnwiseRequestsFail": Case(
        {'turnwise_refused_requests_total{status="503", problem="store_error"}': "0+30x30"},
        {'turnwise_refused_requests_total{status="429", problem="rate_limited"}': "0+30x30"},
        {"status": "503"},
        "0.5 requests a second are answered with 503.",
    ),
    "TurnwiseBudgetsUnpriced": Case(
        {'turnwise_budgets{scope="owner", unit="calls", figure="unknown price"}': "3x30"},
        {
            'turnwise_budgets{scope="owner", unit="calls", figure="unknown price"}': "0x30",
            'turnwise_budgets{scope="owner", unit="dollars", figure="spent"}': "3x30",
        },
        {"scope": "owner"},
        "Budgets miss the cost of 3 model calls whose price is unknown.",
    ),
}


def promtool(*arguments: str) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=60, check=False)
    return f"{done.returncode}: {done.stdout}{done.stderr}"


def test_prometheus_loads_the_alert_rules() -> None:
    assert f"SUCCESS: {len(RULES)} rules found" in promtool("check", "rules", str(FILE))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_fires_on_the_bad_series_only(rule: Mapping[str, Any], tmp_path: Path) -> None:
    """After half an hour, with the text for the person on call."""
    case = CASES[rule["alert"]]
    fired = {
        "exp_labels": {**rule["labels"], **case.labels},
        "exp_annotations": {**rule["annotations"], "summary": case.summary},
    }
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [{"eval_time": "30m", "alertname": rule["alert"], "exp_alerts": alerts}],
        }
        for series, alerts in ((case.bad, [fired]), (case.good, []))
    ]
    file = tmp_path / "tests.json"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": tests}))
    assert promtool("test", "rules", str(file)).startswith("0: ")
