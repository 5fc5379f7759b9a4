-- name: insert_chat
INSERT INTO chats (state, settled, archived, version, calls, facts, event_seq, head, since, salt, rested, agent, needs,
    awaits, id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING;

-- name: erased_since
-- The version of a chat, and whether something of it was erased after another one.
SELECT chats.version, EXISTS (
    SELECT 1 FROM audit WHERE chat_id = id AND audit.version > ? AND instr(audit.body, '"message_erased"') > 0
) FROM chats WHERE id = ?;

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
