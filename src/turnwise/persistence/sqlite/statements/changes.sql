-- name: facts
-- Where chats stand, but for their calls and their queue. A condition follows.
SELECT id, state, settled, archived, version, calls, facts, profiles.body, worker, token, event_seq
FROM chats LEFT JOIN profiles ON profiles.chat_id = id LEFT JOIN leases ON leases.chat_id = id;

-- name: queue
SELECT body FROM queue WHERE chat_id = :chat_id ORDER BY rank;

-- name: standing
-- What tells whether a chat still stands where it is cached.
SELECT version, state, event_seq, head, token, facts FROM chats LEFT JOIN leases ON chat_id = id WHERE id = ?;

-- name: held
-- By which worker a chat is held, and what a running job must find.
SELECT state, event_seq, token, worker FROM chats LEFT JOIN leases ON chat_id = id WHERE id = ?;

-- name: pending
-- Chats of an agent that want a worker with these tools, longest waiting first. A list of needs that is garbled counts
-- as empty: the chat is then tried, and found to be unreadable.
SELECT since, number, id, version FROM chats
WHERE archived = 0 AND state = 'pending' AND agent = ? AND (since, number) > (?, ?)
AND NOT EXISTS (SELECT 1 FROM leases WHERE chat_id = id)
AND (needs = '[]' OR NOT EXISTS (
    SELECT 1 FROM json_each(iif(json_valid(needs), needs, '[]'))
    WHERE value NOT IN (SELECT value FROM json_each(?))))
ORDER BY since, number LIMIT ?;

-- name: unsettled
-- Chats that any worker may settle.
SELECT since, number, id, version FROM chats
WHERE archived = 0 AND state = 'interrupted' AND settled = 0 AND (since, number) > (?, ?)
AND NOT EXISTS (SELECT 1 FROM leases WHERE chat_id = id)
ORDER BY since, number LIMIT ?;

-- name: insert_chat
INSERT INTO chats (state, settled, archived, version, calls, facts, event_seq, head, since, salt, rested, agent, needs,
    awaits, id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING;

-- name: update_chat
UPDATE chats SET state = ?, settled = ?, archived = ?, version = ?, calls = ?, facts = ?, event_seq = ?,
    head = ?, since = ?, salt = ?, rested = ?, agent = ?, needs = ?, awaits = ? WHERE id = ?;

-- name: as_found
-- What follows `update_chat` where the chat was not read before: it must stand where the decision found it.
AND event_seq = ? AND head = ? AND version = ? AND state = ? AND (SELECT token FROM leases WHERE chat_id = id) IS ?
AND facts = ?;

-- name: move_on
-- Takes numbers for events of a running job, if it still holds the chat and nobody else took any.
UPDATE chats SET event_seq = ?
WHERE id = ? AND event_seq = ? AND state = ?
AND EXISTS (SELECT 1 FROM leases WHERE chat_id = id AND token = ? AND worker = coalesce(?, worker));

-- name: cut_messages
UPDATE messages SET cut = :version WHERE chat_id = :chat_id AND position >= :position AND cut IS NULL;

-- name: cut_boundaries
UPDATE boundaries SET cut = :version WHERE chat_id = :chat_id AND position >= :position AND cut IS NULL;

-- name: insert_messages
INSERT INTO messages (chat_id, position, id, role, turn, step, audience, added, cut, erased, digest, salt, format, body)
VALUES (:chat_id, :position, :id, :role, :turn, :step, :audience, :added, :cut, :erased, :digest, :salt, :format,
    :body);

-- name: insert_boundaries
INSERT INTO boundaries (chat_id, position, reason, step, carried, cut)
VALUES (:chat_id, :position, :reason, :step, :carried, :cut);

-- name: insert_calls
INSERT INTO calls (chat_id, call_id, step, idx, status, deadline, body)
VALUES (:chat_id, :call_id, :step, :idx, :status, :deadline, :body)
ON CONFLICT (chat_id, call_id) DO UPDATE SET step = excluded.step, idx = excluded.idx, status = excluded.status,
    deadline = excluded.deadline, body = excluded.body;

-- name: insert_queue
-- A message that is rewritten, and not moved, has no rank of its own: it keeps its place.
INSERT OR REPLACE INTO queue (chat_id, id, rank, body, salt)
VALUES (:chat_id, :id, coalesce(:rank, (SELECT rank FROM queue WHERE chat_id = :chat_id AND id = :id)), :body, :salt);

-- name: insert_receipts
INSERT INTO receipts (chat_id, client_id, body) VALUES (:chat_id, :client_id, :body);

-- name: insert_chat_files
-- There is a row already if the file was put for this chat, or another message refers to it.
INSERT INTO chat_files (chat_id, digest, size, sent, at) VALUES (:chat_id, :digest, :size, 1, :at)
ON CONFLICT (chat_id, digest) DO UPDATE SET sent = 1;

-- name: insert_usage
INSERT INTO usage (chat_id, version, number, body) VALUES (:chat_id, :version, :number, :body);

-- name: insert_audit
INSERT INTO audit (chat_id, version, hash, body, aside) VALUES (?, ?, ?, ?, ?);

-- name: insert_events
INSERT INTO events (chat_id, seq, kind, at, step, attempt, position, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?);
-- name: create_migrations
CREATE TABLE IF NOT EXISTS turnwise_migrations (
    name TEXT PRIMARY KEY, checksum TEXT NOT NULL, applied_at TEXT NOT NULL
) WITHOUT ROWID;
