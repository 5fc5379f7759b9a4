"""Crash tests: an engine is killed in process at every commit and at every await of user code, and started again."""

from turnwise.testing.crash.everywhere import CrashReport, crash_everywhere
from turnwise.testing.crash.failures import CrashFailure, CrashTestFailed
from turnwise.testing.crash.script import by_step

__all__ = ["CrashFailure", "CrashReport", "CrashTestFailed", "by_step", "crash_everywhere"]
