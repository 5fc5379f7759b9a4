"""A provider on the wire: a server that answers by a script, and the dialects it speaks."""
