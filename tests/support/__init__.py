"""What tests of several folders share; what the tests of one folder share lies beside them.

| what a test needs | modules |
| --- | --- |
| a chat of the pure table | `life`, `logged_life` |
| lives that are drawn, in stores and in engines that die | `lives`, `mortal`, `exploring` |
| an engine, and what it did | `engines`, `stores`, `latches`, `gated_model`, `clock`, `events`, `eventful_life` |
| rows, and rows gone wrong | `rich_chat`, `sql_by_hand` |
| faults in the library itself | `planted_faults` |
| other programs | `terminal`, `served`, `node`, `wire` (a provider's server), `processes` (services, PostgreSQL) |
"""
