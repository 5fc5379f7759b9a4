"""What every test shares."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("turnwise.persistence.conformance")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
