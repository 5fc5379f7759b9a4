"""The key of signed logs: a file before the variable, whole but for its line's end, and never empty."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turnwise.cli.key import VARIABLE, signing_key
from turnwise.states.errors import SettingsError


def test_key_file_precedes_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert signing_key(None) is None
    monkeypatch.setenv(VARIABLE, os.fsdecode(b"of the variable \xff\n"))
    assert signing_key(None) == b"of the variable \xff\n"
    (tmp_path / "key").write_text("of the file")
    assert signing_key(tmp_path / "key") == b"of the file"


def test_empty_key_names_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "a key that the empty file must not fall back on")
    for content in (b"", b"\r\n\n"):
        (tmp_path / "key").write_bytes(content)
        with pytest.raises(SettingsError, match="--key: the key is empty"):
            signing_key(tmp_path / "key")
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(SettingsError, match=f"{VARIABLE}: the key is empty"):
        signing_key(None)
    with pytest.raises(SettingsError, match="--key: there is no file"):
        signing_key(tmp_path / "missing")
