-- name: facts
-- Where chats stand, but for their calls and their queue. A condition follows.
SELECT id, state, settled, archived, version, calls, facts, profiles.body, worker, token, event_seq
FROM chats LEFT JOIN profiles ON profiles.chat_id = id LEFT JOIN leases ON leases.chat_id = id;

-- name: calls
SELECT body FROM calls WHERE chat_id = ? AND call_id IN (SELECT value FROM json_each(?)) ORDER BY step, idx;

-- name: newest_boundary
SELECT position, carried FROM boundaries WHERE chat_id = ? AND cut IS NULL AND position < ?
ORDER BY position DESC LIMIT 1;

-- name: said_between
-- How many messages of an audience stand between two positions.
SELECT count(*) FROM messages
WHERE chat_id = ? AND cut IS NULL AND audience = ? AND position > ? AND position < ?;

-- name: events
-- Like all that follow: the columns are the arguments of `rows.event_of`. The last one is the length of the bodies.
SELECT events.chat_id, seq, kind, at, events.body, format, messages.body,
    length(events.body) + coalesce(length(messages.body), 0)
FROM events LEFT JOIN messages ON messages.chat_id = events.chat_id AND messages.position = events.position
WHERE events.chat_id = ? AND seq > ? ORDER BY seq LIMIT ?;

-- name: last_finished
SELECT events.chat_id, seq, kind, at, events.body, format, messages.body
FROM events LEFT JOIN messages ON messages.chat_id = events.chat_id AND messages.position = events.position
WHERE events.chat_id = ? AND kind = 'turn_finished' ORDER BY seq DESC LIMIT 1;

-- name: parts
SELECT events.chat_id, seq, kind, at, events.body, format, messages.body
FROM events LEFT JOIN messages ON messages.chat_id = events.chat_id AND messages.position = events.position
WHERE kind = 'part' AND events.chat_id = ? AND events.step = ? AND events.attempt = ? ORDER BY seq;

-- name: deadlines
-- Chats with an open call whose deadline has passed, each by its first such call: to group them would read all that
-- have. {open_statuses} are the statuses of open calls.
SELECT calls.chat_id FROM calls JOIN chats ON chats.id = calls.chat_id
WHERE calls.deadline <= ? AND calls.status IN ({open_statuses}) AND chats.state = 'requires_action' AND archived = 0
AND NOT EXISTS (
    SELECT 1 FROM calls AS earlier WHERE earlier.chat_id = calls.chat_id AND earlier.status IN ({open_statuses})
    AND (earlier.deadline, earlier.call_id) < (calls.deadline, calls.call_id)
)
ORDER BY calls.deadline LIMIT ?;

-- name: waiting
-- Since when the longest waiting chat of each agent waits. It steps from agent to agent along the index of claimable
-- chats, and reads one chat of each: to group them would read all that wait.
WITH RECURSIVE agents (name) AS (
    SELECT min(agent) FROM chats WHERE archived = 0 AND state = 'pending'
    UNION ALL
    SELECT (SELECT min(agent) FROM chats WHERE archived = 0 AND state = 'pending' AND agent > name)
    FROM agents WHERE name IS NOT NULL
)
SELECT name, (SELECT min(since) FROM chats WHERE archived = 0 AND state = 'pending' AND agent = name)
FROM agents WHERE name IS NOT NULL;

-- name: awaiting_subagents
-- Chats that wait for subagents, oldest first, from the one after another on.
SELECT id FROM chats WHERE awaits IN ('subagents', 'both') AND archived = 0
    AND number > coalesce((SELECT number FROM chats WHERE id = ?), 0) ORDER BY number LIMIT ?;
