"""Preconditions: versions as entity tags."""

from __future__ import annotations

from typing import Final

import pytest

from turnwise.service.problems import InvalidRequest
from turnwise.service.routes.preconditions import version_in

VERSIONS: Final = {
    None: None,
    "*": None,
    " * ": None,
    '"7"': 7,
    ' "7" ': 7,
    'W/"7"': 7,
    "7": 7,
    '"9007199254740992"': 2**53,
}


@pytest.mark.parametrize(("said", "version"), VERSIONS.items())
def test_version_is_read_from_a_tag(said: str | None, version: int | None) -> None:
    assert version_in(said) == version


@pytest.mark.parametrize("said", ["", "one", '"10000000000000000"', '"7", "8"', "-1", '"7"x', "w/7", "**"])
def test_malformed_version_is_refused(said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        version_in(said)
    assert refused.value.problems == [
        {"field": "header.If-Match", "problem": 'must be one version, as in "7", or *'}
    ]  # fmt: skip
