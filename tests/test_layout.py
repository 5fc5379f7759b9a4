"""The tests of a module are found by its name, or by its folder's; of the few others it is told here where they are."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Final

ROOT: Final = Path(__file__).parent.parent
TESTS: Final = ROOT / "tests"
PACKAGE: Final = ROOT / "src" / "turnwise"

TESTED_IN: Final[Mapping[str, str]] = {
    "__main__.py": "test_packaging.py",
    "logger.py": "engine/test_logger.py",
    "cli/__main__.py": "cli/test_failures.py",
    "cli/inspect.py": "cli/test_serve.py",
    "cli/options.py": "cli/test_app.py",
    "client/settings.py": "client/test_patience.py",
    "diagrams/extract.py": "diagrams/test_svg.py",
    "diagrams/grouping.py": "diagrams/test_svg.py",
    "diagrams/legend.py": "diagrams/test_svg.py",
    "diagrams/model.py": "diagrams/test_svg.py",
    "diagrams/palette.py": "service/inspector/test_access.py",
    "diagrams/rows.py": "diagrams/test_svg.py",
    "engine/delete.py": "persistence/test_deletion.py",
    "engine/jobs/settle.py": "engine/test_interrupt.py",
    "engine/profile_changes.py": "engine/test_agents.py",
    "engine/transfer.py": "persistence/test_chat_file.py",
    "engine/unchanged.py": "engine/test_engine.py",
    "engine/upkeep.py": "persistence/test_deletion.py",
    "persistence/chat_rows.py": "persistence/test_check_rows.py",
    "persistence/conformance/": "persistence/test_sqlite_conformance.py",
    "persistence/imported_rows.py": "persistence/test_chat_file.py",
    "persistence/migrations.py": "persistence/test_migrate.py",
    "persistence/tombstone.py": "persistence/test_deletion.py",
    "providers/answer_schemas.py": "engine/test_native_answers.py",
    "providers/cannot_ask.py": "engine/test_models.py",
    "providers/pydantic_ai/naming.py": "providers/test_from_name.py",
    "service/bodies.py": "service/test_routes.py",
    "service/router.py": "service/test_promised_api.py",
    "states/actions/": "states/test_decisions.py",
    "states/arguments.py": "states/test_triggers.py",
    "states/draft.py": "states/test_decide.py",
    "states/names.py": "states/test_table.py",
    "states/possible.py": "states/test_table.py",
    "states/shapes.py": "states/test_checked.py",
    "testing/clock.py": "engine/test_clock.py",
}
"""Modules, and folders of such, that have no file of their name, and where their tests are."""


def modules() -> Iterator[PurePath]:
    """Yield the modules of the library by their paths in the package; an `__init__` is its folder."""
    yield from (PurePath(file.name) for file in PACKAGE.glob("*.py"))
    for link in PACKAGE.iterdir():
        if link.is_symlink():
            floor = link.resolve()
            yield from (link.name / file.relative_to(floor) for file in floor.rglob("*.py"))


def names_of(module: PurePath) -> set[str]:
    """Return how files of a module's tests may be called: by its own name, with its folder's, or by a folder's."""
    name, folders = module.stem.strip("_"), module.parts[1:-1]
    with_folder = {f"{module.parent.name}_{name}", f"{name}_{module.parent.name}"}
    return {name, *with_folder, *folders}


def is_found_by_name(module: PurePath, files: set[PurePath]) -> bool:
    """Tell whether one of the files of tests, or a folder of theirs, on the module's floor has the module's name."""
    floor, names = module.parts[0].removesuffix(".py"), names_of(module)
    for file in files:
        *folders, name = file.parts
        if len(module.parts) == 1 and file.parts == (f"test_{floor}.py",):
            return True
        if folders[:1] == [floor] and (
            name.removesuffix(".py").removeprefix("test_") in names or names & {*folders[1:]}
        ):
            return True
    return False


def entry_of(module: PurePath) -> str | None:
    """Return under what the table has a module: its own path, or its folder's."""
    return next((name for name in (str(module), f"{module.parent}/") if name in TESTED_IN), None)


def unfound(modules: set[PurePath], files: set[PurePath]) -> set[PurePath]:
    """Return the modules that no name of a file of tests leads to."""
    return {module for module in modules if module.stem != "__init__" and not is_found_by_name(module, files)}


FILES: Final = {file.relative_to(TESTS) for file in TESTS.rglob("test_*.py")}


def test_the_tests_of_every_module_are_found_by_its_name_or_in_the_table() -> None:
    lost = sorted(str(module) for module in unfound({*modules()}, FILES) if entry_of(module) is None)
    assert lost == [], "name a file of tests after each, or tell in TESTED_IN where its tests are"


def test_the_table_tells_of_nothing_else() -> None:
    """An entry goes with its module, or once there is a file of its name."""
    needed = {entry_of(module) for module in unfound({*modules()}, FILES)}
    assert sorted(TESTED_IN.keys() - needed) == []
    assert sorted(file for file in TESTED_IN.values() if PurePath(file) not in FILES) == []


def test_a_module_without_tests_of_its_name_is_found() -> None:
    files = {*map(PurePath, ("cli/test_serve.py", "engine/test_sqlite_new.py", "persistence/test_sqlite_store.py"))}
    new = {*map(PurePath, ("engine/serve.py", "persistence/sqlite/store.py", "cli/serve.py", "persistence/store.py"))}
    assert unfound(new, files) == {PurePath("engine/serve.py"), PurePath("persistence/store.py")}


def test_tests_import_nothing_of_each_other_but_what_they_share() -> None:
    """The folder of tests is on the path for `support` and `mutants`, and with them all that is beside them."""
    beside = {"tests", *(entry.stem for entry in TESTS.iterdir())} - {"support", "mutants"} - sys.stdlib_module_names
    imported = {
        (str(file.relative_to(TESTS)), name)
        for file in TESTS.rglob("*.py")
        for name in re.findall(r"^ *(?:from|import) +(\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert sorted((file, name) for file, name in imported if name in beside) == []
