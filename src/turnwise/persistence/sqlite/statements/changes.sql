-- name: facts
-- Where chats stand, but for their calls and their queue. A condition follows.
SELECT id, state, settled, archived, version, calls, facts, profiles.body, worker, token, event_seq, number
FROM chats LEFT JOIN profiles ON chat = number;

-- name: calls_of
SELECT body FROM calls WHERE chat = ? AND call_id IN (SELECT value FROM json_each(?)) ORDER BY step, idx;

-- name: queue_of
SELECT body FROM queue WHERE chat = ? ORDER BY rank;

-- name: current
-- The columns by which a cached chat is compared.
SELECT version, state, event_seq, head, token, facts,
    EXISTS (SELECT 1 FROM budgets WHERE key IN ('chat:' || id, 'owner:' || owner)) FROM chats WHERE id = ?;

-- name: held
-- By which worker a chat is held, and what a running job must find.
SELECT state, event_seq, token, worker FROM chats WHERE id = ?;

-- name: pending
-- Chats of an agent that want a worker with these tools, longest waiting first. A list of needs that is garbled counts
-- as empty: the chat is then tried, and found to be unreadable.
SELECT since, number, id, version FROM chats
WHERE NOT archived AND state = 'pending' AND worker IS NULL AND agent = ? AND (since, number) > (?, ?)
AND (needs = '[]' OR NOT EXISTS (
    SELECT 1 FROM json_each(iif(json_valid(needs), needs, '[]'))
    WHERE value NOT IN (SELECT value FROM json_each(?))))
ORDER BY since, number LIMIT ?;

-- name: unsettled
-- Chats that any worker may settle.
SELECT since, number, id, version FROM chats
WHERE NOT archived AND state = 'interrupted' AND NOT settled AND worker IS NULL AND (since, number) > (?, ?)
ORDER BY since, number LIMIT ?;

-- name: renew
UPDATE chats SET expires = ?, lasts = ? WHERE worker = ? RETURNING id, token;

-- name: cut_short
-- Leases that became too long because the clock was set back.
UPDATE chats SET expires = :now + lasts WHERE expires > :now + lasts;

-- name: insert_chat
-- A commit that knows of no budget is not stored if the owner has one.
INSERT INTO chats (state, settled, archived, version, calls, facts, event_seq, head, since, salt, rested, needs, awaits,
    action_of, agent, fair_key, capped_model, {queried: NAME}, worker, token, expires, lasts, id, changed)
SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {queried: ?}, ?, ?, ?, ?, ?, {next_change}
WHERE ? OR NOT EXISTS (SELECT 1 FROM budgets WHERE key = 'owner:' || ?)
ON CONFLICT (id) DO NOTHING RETURNING number, changed;

-- name: update_chat
-- By what changes seldom, and would cost an index each time, {more} is replaced.
UPDATE chats SET state = ?, settled = ?, archived = ?, version = ?, calls = ?, facts = ?, event_seq = ?,
    head = ?, since = ?, salt = ?, rested = ?, needs = ?, awaits = ?, action_of = ?,
    changed = {next_change}{more} WHERE id = ?;

-- name: if_unchanged
-- Follows `update_chat` if the chat was not read before: the row must still match the cached one, and spend no budget.
AND event_seq = ? AND head = ? AND version = ? AND state = ? AND token IS ? AND facts = ?
AND NOT EXISTS (SELECT 1 FROM budgets WHERE key IN ('chat:' || id, 'owner:' || owner));

-- name: advance_event_seq
-- Takes numbers for events of a running job, if its lease is still held and no other process took any.
UPDATE chats SET event_seq = ?
WHERE id = ? AND event_seq = ? AND state = ? AND token = ? AND worker = coalesce(?, worker) RETURNING number;

-- name: cut_messages
UPDATE messages SET cut = :version WHERE chat = :chat AND position >= :position AND cut IS NULL;

-- name: cut_boundaries
UPDATE boundaries SET cut = :version WHERE chat = :chat AND position >= :position AND cut IS NULL;

-- name: insert_calls
INSERT INTO calls (chat, call_id, step, idx, status, deadline, body)
VALUES (:chat, :call_id, :step, :idx, :status, :deadline, :body)
ON CONFLICT (chat, call_id) DO UPDATE SET step = excluded.step, idx = excluded.idx, status = excluded.status,
    deadline = excluded.deadline, body = excluded.body;

-- name: insert_queue
-- A message that is rewritten, and not moved, has no rank of its own: it keeps its place.
INSERT OR REPLACE INTO queue (chat, id, rank, body, salt)
VALUES (:chat, :id, coalesce(:rank, (SELECT rank FROM queue WHERE chat = :chat AND id = :id)), :body, :salt);

-- name: rank_queued
UPDATE queue SET rank = :rank WHERE chat = :chat AND id = :id;

-- name: drop_queued
DELETE FROM queue WHERE chat = :chat AND id = :id;

-- name: insert_chat_files
-- There is a row already if the file was put for this chat, or another message refers to it.
INSERT INTO chat_files (chat_id, digest, size, sent, at) VALUES (:chat_id, :digest, :size, 1, :at)
ON CONFLICT (chat_id, digest) DO UPDATE SET sent = 1;

-- name: insert_audit
INSERT INTO audit (chat, version, hash, body, aside, digests) VALUES (?, ?, ?, ?, ?, ?);

-- name: insert_events
INSERT INTO events (chat, changed, seq, kind, at, step, attempt, position, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: create_migrations
CREATE TABLE IF NOT EXISTS turnwise_migrations (
    name TEXT PRIMARY KEY, checksum TEXT NOT NULL, applied_at TEXT NOT NULL
) WITHOUT ROWID;
