"""Unicode: whatever text comes in, what is stored is well-formed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from turnwise.states.digests import canonical
from turnwise.states.unicode import well_formed, well_formed_json

any_text = st.text(st.characters(exclude_categories=()))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | any_text,
    lambda inner: st.lists(inner) | st.dictionaries(any_text, inner),
)


@given(any_text)
def test_any_text_can_be_stored_once_it_is_well_formed(text: str) -> None:
    assert well_formed(well_formed(text)) == well_formed(text)
    well_formed(text).encode()


@given(st.text())
def test_well_formed_text_stays_as_it_is(text: str) -> None:
    assert well_formed(text) == text


def test_halves_that_belong_together_are_joined_and_lone_ones_replaced() -> None:
    assert well_formed("\ud83d\ude00") == "\U0001f600"
    assert well_formed("a\ud83d") == "a\ufffd"


@given(json_values)
def test_any_json_value_can_be_stored_once_it_is_well_formed(value: object) -> None:
    assert canonical(well_formed_json(value))
