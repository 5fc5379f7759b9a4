"""A full disk causes a clear error, no partial write, and every chat continues once there is room again."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from acceptance import full_disk

pytestmark = pytest.mark.deep

TESTS = Path(__file__).parents[1]
_MOUNTED = 'mount -t tmpfs -o size=16m tmpfs "$1" && shift && exec "$@"'


def lived(folder: Path, how: str, *before: str) -> dict[str, Any]:
    """Run chats on a disk that fills up, in a process started by `before`; return its report."""
    disk, outside = folder / "disk", folder / "outside"
    disk.mkdir()
    outside.mkdir()
    command = [*before, sys.executable, "-m", full_disk.__name__, str(disk), str(outside), how]
    reported = subprocess.run(command, cwd=TESTS, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(reported.stdout.splitlines()[-1])
    return found


def in_a_small_file_system(disk: Path) -> list[str]:
    """Return a command prefix that mounts a small file system, visible to that command alone."""
    mapped = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--mount", *mapped, "sh", "-c", _MOUNTED, "sh", str(disk)]


def can_mount(folder: Path) -> bool:
    """Return whether this user may mount a file system for a command."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*in_a_small_file_system(folder), "true"], check=False, capture_output=True).returncode == 0


def assert_sound(found: dict[str, Any], refusal: str) -> None:
    assert refusal in found["refusal"]
    assert "nothing was written" in found["refusal"]
    assert found["read"], "what is there can be read all the while"
    assert found["states"] == ["waiting"] * 5
    assert found["problems"] == []


def test_chats_survive_a_reached_quota(tmp_path: Path) -> None:
    assert_sound(lived(tmp_path, "quota"), "a quota or a limit on the size of files")


def test_chats_survive_a_full_file_system(tmp_path: Path) -> None:
    """Runs where a process may mount a file system of its own."""
    if not can_mount(tmp_path):
        pytest.skip("this user may not mount a file system, not even for one command")
    assert_sound(lived(tmp_path, "ballast", *in_a_small_file_system(tmp_path / "disk")), "the disk is full")
