"""The machine as data says what the table says, and a program can read it."""

import json

from turnwise.diagrams import machine_json
from turnwise.states.names import ChatState, Trigger
from turnwise.states.table import TABLE


def test_json_has_every_row_with_guards_and_actions() -> None:
    told = json.loads(machine_json())
    assert told["format"] == "turnwise-machine/1"
    assert told["states"] == [*ChatState]
    assert set(told["triggers"]) == {*Trigger}
    assert told["triggers"]["unarchived"]["while_archived"]
    assert not told["triggers"]["send_message"]["while_archived"]
    assert {told["new"], told["unknown"]} == {"new", "unknown"}
    assert [(row["trigger"], row["source"], row["target"]) for row in told["rows"]] == [
        (row.trigger.value, str(row.source), row.target.value) for row in TABLE
    ]
    assert [row["when"] for row in told["rows"]] == [[guard.__name__ for guard in row.when] for row in TABLE]
    assert [row["actions"] for row in told["rows"]] == [[action.__name__ for action in row.actions] for row in TABLE]
