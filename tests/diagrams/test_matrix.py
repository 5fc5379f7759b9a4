"""The page to look things up in equals the table, cell by cell."""

from turnwise.diagrams.grouping import SAME
from turnwise.diagrams.matrix import REFUSED, matrix
from turnwise.states.names import NEW, UNKNOWN, ChatState, Trigger
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


def test_cells_name_the_targets_of_the_table() -> None:
    found = cells()
    for trigger in Trigger:
        for source in (NEW, *ChatState, UNKNOWN):
            targets = {SAME if row.target == source else row.target.value for row in rows_of(trigger, source)}
            assert set(found[trigger].get(source, REFUSED).split(", ")) == (targets or {REFUSED}), (trigger, source)


def test_every_guard_and_write_is_explained() -> None:
    explained = {row["name"]: row["meaning"] for table in tables("name") for row in table}
    used = {one for row in TABLE for one in (*row.when, *row.actions)}
    assert explained.keys() == {one.__name__.replace("_", " ") for one in used}
    assert all(explained.values())
