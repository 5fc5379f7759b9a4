"""What the tests of the service share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from support.served import Served, served
from turnwise import Engine


@pytest.fixture
async def demo() -> AsyncIterator[Served]:
    """Serve the demo model on a store in memory."""
    async with served(Engine("sqlite://", model="demo")) as service:
        yield service


@pytest.fixture
async def ada(demo: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with demo.client("ada") as client:
        yield client
