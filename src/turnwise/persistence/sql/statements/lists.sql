-- name: chat_ids
SELECT number, id FROM chats WHERE number > :after ORDER BY number LIMIT :limit;

-- name: ids_of_prefix in sqlite
SELECT id FROM chats WHERE id >= :prefix AND id < :prefix || char(1114111) AND (:owner IS NULL OR owner = :owner)
ORDER BY since DESC, number DESC LIMIT :limit;

-- name: ids_of_prefix in postgres
SELECT id FROM chats WHERE starts_with(id, :prefix) AND (:owner::text IS NULL OR owner = :owner)
ORDER BY since DESC, number DESC LIMIT :limit;

-- name: awaiting_subagents
-- Chats that wait for subagents, oldest first, from the one after another on.
SELECT id FROM chats WHERE awaits IN ('subagents', 'both') AND NOT archived
    AND number > {number_of_after} ORDER BY number LIMIT :limit;

-- name: naming in sqlite
-- The profiles that hold a text.
SELECT id, body FROM profiles JOIN chats ON number = chat WHERE instr(body, :text) > 0;

-- name: naming in postgres
SELECT id, body FROM profiles JOIN chats ON number = chat WHERE position(:text IN body) > 0;

-- name: holders
SELECT DISTINCT worker FROM chats WHERE worker IS NOT NULL;

-- name: expired_leases in sqlite
-- SQLite sorts text after every number: a lease whose expiry is not a number counts as run out.
SELECT id, token, expires FROM chats WHERE expires <= :now
UNION ALL SELECT id, token, expires FROM chats WHERE expires >= '' ORDER BY expires LIMIT :limit;

-- name: expired_leases in postgres
SELECT id, token FROM chats WHERE worker IS NOT NULL AND expires <= :now ORDER BY expires LIMIT :limit;

-- name: deadlines
-- Chats with an open call whose deadline has passed, each by its first such call: to group them would read all that
-- have.
SELECT id FROM calls JOIN chats ON chats.number = calls.chat
WHERE calls.deadline <= :now AND calls.status = ANY (:open_statuses)
AND chats.state = 'requires_action' AND NOT archived
AND NOT EXISTS (
    SELECT 1 FROM calls AS earlier WHERE earlier.chat = calls.chat AND earlier.status = ANY (:open_statuses)
    AND (earlier.deadline, earlier.call_id) < (calls.deadline, calls.call_id)
)
ORDER BY calls.deadline LIMIT :limit;

-- name: to_wake
SELECT id FROM chats WHERE wake_at <= :now ORDER BY wake_at LIMIT :limit;

-- name: strays
-- Chats in a state that is none of `states`. It steps from state to state along the index of states, and reads one chat
-- of each state that is known.
WITH RECURSIVE stored (state) AS (
    SELECT min(state || '') FROM chats
    UNION ALL
    SELECT (SELECT min(chats.state || '') FROM chats WHERE (chats.state || '') > stored.state)
    FROM stored WHERE stored.state IS NOT NULL
)
SELECT id FROM chats
WHERE (state || '') IN (SELECT state FROM stored WHERE NOT state = ANY (:states))
ORDER BY number LIMIT :limit;

-- name: rested
SELECT id FROM chats WHERE archived = :archived AND rested <= :until ORDER BY rested LIMIT :limit;

-- name: waiting
-- Since when the longest waiting chat of each agent waits. It steps from agent to agent along the index of claimable
-- chats, and reads one chat of each: to group them would read all that wait.
WITH RECURSIVE agents (name) AS (
    SELECT min(agent) FROM chats WHERE NOT archived AND state = 'pending' AND worker IS NULL
    UNION ALL
    SELECT (
        SELECT min(agent) FROM chats WHERE NOT archived AND state = 'pending' AND worker IS NULL AND agent > name
    )
    FROM agents WHERE name IS NOT NULL
)
SELECT name, (
    SELECT min(since) FROM chats WHERE NOT archived AND state = 'pending' AND worker IS NULL AND agent = name
)
FROM agents WHERE name IS NOT NULL;
