"""What turnwise's own tests stand on, for services that want to prove their chats the same way."""

from turnwise.testing.clock import ManualClock

__all__ = ["ManualClock"]
