"""Crash tests: an engine is killed in process at every commit and at every await of user code, and started again."""

from turnwise.testing.crash.everywhere import crash_everywhere

__all__ = ["crash_everywhere"]
