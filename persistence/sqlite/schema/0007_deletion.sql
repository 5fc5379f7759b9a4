-- What is left of deleted chats: proof that they were there, and nothing that was said in them.

CREATE TABLE tombstones (
    id          TEXT    PRIMARY KEY,        -- the chat's
    number      INTEGER NOT NULL,           -- its order of creation, for lists that were begun before
    created     INTEGER,
    deleted     INTEGER NOT NULL,
    actor       TEXT    NOT NULL,           -- who deleted it
    records     INTEGER NOT NULL,           -- how many its audit log had
    head        TEXT                        -- the hash of the last of them
) WITHOUT ROWID;

-- When a chat that rests was changed last: what is archived or deleted after a while is found by it. Empty while a chat
-- works. Chats from before count from now on.

ALTER TABLE chats ADD COLUMN rested INTEGER;
UPDATE chats SET rested = CAST(strftime('%s', 'now') AS INTEGER) * 1000000
    WHERE state IN ('waiting', 'requires_action', 'error') OR (state = 'interrupted' AND settled = 1);
CREATE INDEX chats_at_rest ON chats (archived, rested) WHERE rested IS NOT NULL;
