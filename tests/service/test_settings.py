"""What clients of a service may do where nobody says otherwise, and which limits make sense."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest

from turnwise.service import OWNERS_MAY, ServiceSettings
from turnwise.states.errors import SettingsError

COUNTS = ("body_limit_bytes", "history_limit_bytes", "upload_limit_bytes", "burst", "streams_per_owner")
AMOUNTS = ("requests_per_second", "reader_patience", "upload_patience", "shutdown_seconds", "not_found_seconds")


def test_default_settings() -> None:
    assert asdict(ServiceSettings()) == {
        "body_limit_bytes": 4 * 1024 * 1024,
        "history_limit_bytes": 16 * 1024 * 1024,
        "upload_limit_bytes": 1024 * 1024 * 1024,
        "requests_per_second": 50,
        "burst": 200,
        "streams_per_owner": 100,
        "reader_patience": 30,
        "upload_patience": 30,
        "header_patience": 10,
        "anonymous_connections": 1000,
        "shutdown_seconds": 10,
        "not_found_seconds": 0.02,
        "owners_may": OWNERS_MAY,
        "policy": None,
        "allow_origins": (),
        "models": (),
    }


@pytest.mark.parametrize("name", COUNTS + AMOUNTS)
def test_limits_are_not_negative(name: str) -> None:
    for sound in (0, 7) if name in COUNTS else (0, 0.5, 7):
        assert getattr(ServiceSettings(**{name: sound}), name) == sound
    for odd in (-0.5, -1, math.inf, math.nan, "7", None, True):
        with pytest.raises(SettingsError, match=f"^{name}: "):
            ServiceSettings(**{name: odd})


@pytest.mark.parametrize("name", ["allow_origins", "models"])
@pytest.mark.parametrize("odd", ["demo", (7,), ("demo", None)])
def test_origins_and_models_are_lists_of_text(name: str, odd: Any) -> None:
    with pytest.raises(SettingsError, match=rf"^{name}.*: must be a (sequence|string)"):
        ServiceSettings(**{name: odd})
    assert getattr(ServiceSettings(**{name: ["demo"]}), name) == ["demo"]
