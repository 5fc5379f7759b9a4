-- Who has to answer the open calls of a chat in `requires_action`: `client`, `helpers` or `both`.

ALTER TABLE chats ADD COLUMN awaits TEXT;
UPDATE chats SET awaits = 'client' WHERE state = 'requires_action';
CREATE INDEX chats_awaiting ON chats (awaits, number) WHERE awaits IS NOT NULL;
CREATE INDEX chats_awaiting_helpers ON chats (number) WHERE awaits IN ('helpers', 'both');
