"""The page to look things up in equals the table, cell by cell."""

import pytest

from turnwise.diagrams.grouping import SAME
from turnwise.diagrams.matrix import REFUSED, matrix
from turnwise.states.names import NEW, UNKNOWN, ChatState, Trigger
from turnwise.states.promises import PROMISES
from turnwise.states.table import TABLE, rows_of

PAGE = matrix()


def tables(head: str) -> list[list[dict[str, str]]]:
    """The tables of the page whose first column is named so, each as a list of dictionaries."""
    found = []
    for block in PAGE.split("\n\n"):
        if block.startswith(f"| {head} |"):
            raw = [[cell.strip().strip("`") for cell in line[1:-1].split("|")] for line in block.strip().splitlines()]
            found.append([dict(zip(raw[0], row, strict=True)) for row in raw[2:]])
    return found


def cells() -> dict[str, dict[str, str]]:
    return {row["trigger"]: row for table in tables("trigger")[:-1] for row in table}


@pytest.mark.parametrize("trigger", Trigger)
@pytest.mark.parametrize("source", [NEW, *ChatState, UNKNOWN])
def test_a_cell_names_exactly_the_targets_of_the_table(trigger: Trigger, source: str) -> None:
    targets = {SAME if row.target == source else row.target.value for row in rows_of(trigger, source)}
    assert set(cells()[trigger].get(source, REFUSED).split(", ")) == (targets or {REFUSED})


def test_the_matrix_has_a_line_for_every_trigger_and_no_other() -> None:
    assert list(cells()) == list(Trigger)


def test_the_list_of_rows_equals_the_table() -> None:
    listed, declared = [], []
    for line in tables("trigger")[-1]:
        for source in line["from"].split(", "):
            target = source if line["to"] == SAME else line["to"]
            listed.append((line["trigger"], source, target, line["when"], line["actions"]))
    for row in TABLE:
        condition = [guard.__name__ for guard in row.when] + [f"not {guard.__name__}" for guard in row.unless]
        done = [action.__name__ for action in row.actions]
        words = ", ".join(condition).replace("_", " "), ", ".join(done).replace("_", " ")
        declared.append((row.trigger.value, str(row.source), row.target.value, *words))
    assert sorted(listed) == sorted(declared)


def test_each_state_is_listed_with_the_sentences_of_its_promise() -> None:
    promises = {row["state"]: row["promise"] for row in tables("state")[0]}
    assert promises == {
        state: " ".join(str(one.__doc__).partition("\n")[0] for one in PROMISES[state]) for state in ChatState
    }


def test_every_guard_and_write_of_the_table_is_explained() -> None:
    explained = {row["name"]: row["meaning"] for table in tables("name") for row in table}
    used = {one for row in TABLE for one in (*row.when, *row.unless, *row.actions)}
    assert explained.keys() == {one.__name__.replace("_", " ") for one in used}
    assert all(explained.values())
