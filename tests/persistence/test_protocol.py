"""What the errors of a store say."""

from __future__ import annotations

from turnwise.persistence.protocol import DuplicateReceipt
from turnwise.states.errors import StoreError


def test_a_second_receipt_is_refused_by_an_error_that_names_chat_and_client_id() -> None:
    error = DuplicateReceipt("my chat", "my id")
    assert isinstance(error, StoreError)
    assert (error.chat_id, error.client_id) == ("my chat", "my id")
    assert all(told in str(error) for told in ("'my chat'", "'my id'", "nothing was written"))
