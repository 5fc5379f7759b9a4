"""The declared machine as data, for programs that check a log and do not know turnwise."""

from __future__ import annotations

import json
from typing import Any, Final

from turnwise.states.names import NEW, UNKNOWN, ChatState
from turnwise.states.table import TABLE, Row
from turnwise.states.triggers import TRIGGERS
from turnwise.states.values.checked import checked

FORMAT: Final = "turnwise-machine/1"


@checked
def machine_json() -> str:
    """Return the states, the triggers and every row of the table as JSON, a row a line.

    A row's `source` is a state, `new` before the first record, or `unknown` for any word that is no state.
    """
    triggers = {
        trigger: {"party": kind.party, "while_archived": kind.while_archived} for trigger, kind in TRIGGERS.items()
    }
    parts: dict[str, Any] = {
        "format": FORMAT,
        "new": NEW,
        "unknown": UNKNOWN,
        "states": [state.value for state in ChatState],
        "triggers": triggers,
    }
    head = [f'  "{name}": {json.dumps(part)},' for name, part in parts.items()]
    rows = ",\n".join(f"    {json.dumps(_fields(row))}" for row in TABLE)
    return "\n".join(["{", *head, '  "rows": [', rows, "  ]", "}", ""])


def _fields(row: Row) -> dict[str, Any]:
    return {
        "trigger": row.trigger.name,
        "source": str(row.source),
        "target": row.target.value,
        "when": [guard.__name__ for guard in row.when],
        "actions": [action.__name__ for action in row.actions],
    }
