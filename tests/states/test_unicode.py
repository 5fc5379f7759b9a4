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
def test_well_formed_text_can_be_encoded(text: str) -> None:
    assert well_formed(well_formed(text)) == well_formed(text)
    well_formed(text).encode()


@given(st.text())
def test_valid_text_is_unchanged(text: str) -> None:
    assert well_formed(text) == text


def test_surrogate_pairs_are_joined() -> None:
    assert well_formed("\ud83d\ude00") == "\U0001f600"
    assert well_formed("a\ud83d") == "a\ufffd"


@given(json_values)
def test_well_formed_json_has_a_canonical_form(value: object) -> None:
    assert canonical(well_formed_json(value))
