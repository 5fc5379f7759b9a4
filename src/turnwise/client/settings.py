"""The constants of the client."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.states.values.checked import checked
from turnwise.states.values.limits import Duration


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How long the client waits, and how it comes back to a service that does not answer.

    Raises:
        InvalidArgument: a value is no number of seconds, or has no end.
    """

    timeout: Duration = 60
    """Seconds within which a request has to be answered."""
    connect_timeout: Duration = 5
    """Seconds within which a connection has to stand; a network that swallows packets says nothing by itself."""
    silence: Duration = 45
    """Seconds of silence after which a stream is taken for dead; a service says something every 15."""
    first_delay: Duration = 0.1
    """Seconds before the second try. Each further one waits twice as long."""
    max_delay: Duration = 5
    """The longest time between two tries, in seconds."""
    patience: Duration = 60
    """Seconds without any answer after which the client gives up; 0 tries once."""
