-- What is left of deleted chats: proof that they were there, and nothing that was said in them.
CREATE TABLE tombstones (
    id          text        PRIMARY KEY, -- the chat's
    number      bigint      NOT NULL,   -- its order of creation, for lists that were begun before
    created     timestamptz,
    deleted     timestamptz NOT NULL,
    actor       text        NOT NULL,   -- who deleted it
    records     bigint      NOT NULL,   -- how many its audit log had
    head        text                    -- the hash of the last of them
);

-- When a chat that rests was changed last: what is archived or deleted after a while is found by it. Empty while a chat
-- works, so that a row is as cheap to rewrite as before. Chats from before count from now on.
ALTER TABLE chats ADD COLUMN rested timestamptz;
UPDATE chats SET rested = clock_timestamp()
    WHERE state IN ('waiting', 'requires_action', 'error') OR (state = 'interrupted' AND settled);
CREATE INDEX chats_at_rest ON chats (archived, rested) WHERE rested IS NOT NULL;
