"""The words that tests are written in.

| what a test needs | modules |
| --- | --- |
| a chat of the pure table | `life`, `table_cases`, `model_checker` |
| an engine, and what it did | `engines`, `stores`, `latches`, `clock`, `events`, `chats`, `eventful_life` |
| rows, and rows gone wrong | `rich_chat`, `sql_by_hand`, `damaged_rows`, `poisoned_chat` |
| the library itself, and faults in it | `counting`, `planted_faults` |
| other programs | `mcp_server`, `mcp_sessions`, `wire` (a provider's server), `processes` (workers that die) |
"""
