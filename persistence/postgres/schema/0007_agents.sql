-- What a worker must have to run a chat: its agent, and the tools of its open local calls.

ALTER TABLE chats ADD COLUMN agent text   NOT NULL DEFAULT 'default';
ALTER TABLE chats ADD COLUMN needs text[] NOT NULL DEFAULT '{}';
DROP INDEX chats_claimable;
CREATE INDEX chats_claimable ON chats (agent, since, number)
    WHERE NOT archived AND state = 'pending' AND worker IS NULL;
CREATE INDEX chats_unsettled ON chats (since, number)
    WHERE NOT archived AND state = 'interrupted' AND NOT settled AND worker IS NULL;
