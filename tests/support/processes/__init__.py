"""Processes that die, freeze and are replaced, the databases they share, and what must be true in the end."""
