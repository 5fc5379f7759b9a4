-- The index of strays without a list in its condition: SQLite would write the list into a table of its own, twice for
-- each commit.

DROP INDEX chats_stray;
CREATE INDEX chats_stray ON chats (number)
    WHERE state <> 'waiting' AND state <> 'pending' AND state <> 'streaming' AND state <> 'executing_tools'
        AND state <> 'compacting' AND state <> 'requires_action' AND state <> 'interrupted' AND state <> 'error';
