"""The state machine of a chat, declared once, as data.

`TABLE` holds every transition; `decide` returns what a trigger does to a chat with given facts. The package is
pure: it does no I/O, reads no clock, uses no random numbers, and imports no other package of turnwise. Its values are
immutable.

Start with `names` (the words), `facts` (what is known about a chat) and `table` (what may happen to it).
"""

from turnwise.states.decide import decide
from turnwise.states.errors import IllegalTransition
from turnwise.states.names import ChatState
from turnwise.states.table import TABLE
from turnwise.states.triggers import Trigger

__all__ = ["TABLE", "ChatState", "IllegalTransition", "Trigger", "decide"]
