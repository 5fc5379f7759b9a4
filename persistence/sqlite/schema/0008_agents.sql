-- What a worker must have to run a chat: its agent, and the tools of its open local calls (JSON: names in order).

ALTER TABLE chats ADD COLUMN agent TEXT NOT NULL DEFAULT 'default';
ALTER TABLE chats ADD COLUMN needs TEXT NOT NULL DEFAULT '[]';
DROP INDEX chats_claimable;
CREATE INDEX chats_claimable ON chats (agent, since, number) WHERE archived = 0 AND state = 'pending';
CREATE INDEX chats_unsettled ON chats (since, number) WHERE archived = 0 AND state = 'interrupted' AND settled = 0;
