"""The output limit: what fits stays as it is, what does not is cut at a character and says so."""

from __future__ import annotations

import re

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from turnwise.states.output_limit import text_within, within

VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
)


@given(VALUES, st.integers(0, 40))
def test_no_value_is_longer_than_the_limit_but_for_the_note(output: JsonValue, limit: int) -> None:
    kept = within(output, limit)
    if kept is output:
        assert len(output.encode() if isinstance(output, str) else msgspec.json.encode(output)) <= limit
        return
    assert isinstance(kept, str)
    cut = re.fullmatch(r"(?s)(.*)\n\[cut: (\d+) of (\d+) bytes are not shown\]", kept)
    assert cut is not None
    beginning, missing, whole = cut[1].encode(), int(cut[2]), int(cut[3])
    assert len(beginning) + missing == whole > limit
    assert limit - 3 <= len(beginning) <= limit, "all that fits is kept, and no half character"
    if isinstance(output, str):
        assert output.encode().startswith(beginning)


def test_the_limit_itself_fits() -> None:
    assert within("äöü", 6) == "äöü"
    assert text_within("äöü", 5) == "äö\n[cut: 2 of 6 bytes are not shown]"
    assert within([1, 2], 5) == [1, 2]
    assert within([1, 2], 4) == "[1,2\n[cut: 1 of 5 bytes are not shown]"
    assert within(1234567, 6) == "123456\n[cut: 1 of 7 bytes are not shown]"
    assert within(None, 4) is None
