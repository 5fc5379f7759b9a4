"""A sticker is its state's name."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from turnwise.diagrams import sticker
from turnwise.states.names import ChatState

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("state", ChatState)
def test_a_sticker_names_its_state(state: ChatState) -> None:
    texts = [one.text for one in ET.fromstring(sticker(state)).iter(f"{SVG}text")]  # noqa: S314 - our own text
    assert texts == ["turnwise", state]
