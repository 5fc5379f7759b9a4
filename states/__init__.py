"""The ground floor: what may happen to a chat, declared once, as data.

`TABLE` holds every transition; `decide` says what a trigger does to a chat of which the facts are known. The
floor is pure: it does no I/O, reads no clock and throws no dice, and it imports nothing of the floors above.
Everything it hands out is immutable.

Start with `names` (the words), `facts` (what is known about a chat) and `table` (what may happen to it).
"""

from turnwise.states.decide import decide
from turnwise.states.errors import IllegalTransition
from turnwise.states.names import ChatState, Trigger
from turnwise.states.table import TABLE

__all__ = ["TABLE", "ChatState", "IllegalTransition", "Trigger", "decide"]
