-- name: insert_chat
-- Inserts nothing if the id is taken. What a claim looks for is written by the commit that follows.
INSERT INTO chats (id, state, settled, archived, version, event_seq, head, since, owner, calls, facts, salt)
VALUES (:id, :state, :settled, :archived, :version, :event_seq, :head, :since, :owner, :calls, :facts, :salt)
ON CONFLICT (id) DO NOTHING;
