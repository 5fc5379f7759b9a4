"""The types of the TypeScript client equal turnwise's classes."""

import os
import runpy
import subprocess

import pytest
from tests.service.pages import installed

from support.node import CLIENT, NODE


def test_types_are_generated_from_the_classes() -> None:
    """A field with a default is optional, since JSON omits it. `RECORD=1` writes the file again."""
    generated = runpy.run_path(str(CLIENT / "generate.py"))
    if os.environ.get("RECORD"):
        generated["FILE"].write_text(generated["written"](), encoding="utf-8")
    assert generated["FILE"].read_text(encoding="utf-8") == generated["written"]()


@pytest.mark.deep
def test_compiler_accepts_code_and_refuses_misuse() -> None:
    """Every named type exists, the modules have their declared types, and wrong calls are errors."""
    compiler = installed() / "typescript" / "bin" / "tsc"
    checked = subprocess.run([NODE, compiler, "-p", CLIENT], capture_output=True, text=True, check=False)
    assert checked.stdout == ""
