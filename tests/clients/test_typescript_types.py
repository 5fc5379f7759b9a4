"""The types of the TypeScript client are those of turnwise's classes."""

import os
import runpy

from support.node import CLIENT


def test_types_are_generated_from_the_classes() -> None:
    """A field that has a default is optional, since JSON leaves it out. `RECORD=1` writes the file again."""
    generated = runpy.run_path(str(CLIENT / "generate.py"))
    if os.environ.get("RECORD"):
        generated["FILE"].write_text(generated["written"](), encoding="utf-8")
    assert generated["FILE"].read_text(encoding="utf-8") == generated["written"]()
