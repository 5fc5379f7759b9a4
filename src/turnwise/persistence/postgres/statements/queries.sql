-- name: facts
-- Where chats stand, all in one row: a condition follows.
SELECT chats.id, state, settled, archived, version, facts.body AS facts, profiles.body AS profile, worker, token,
       chats.calls AS call_ids,
       (SELECT array_agg(calls.body ORDER BY step, idx)
        FROM calls WHERE chat_id = chats.id AND call_id = ANY (chats.calls)) AS calls,
       (SELECT array_agg(queue.body ORDER BY rank) FROM queue WHERE chat_id = chats.id) AS queue,
       event_seq, head, clock_timestamp() AS at
FROM chats
LEFT JOIN facts ON facts.chat_id = chats.id
LEFT JOIN profiles ON profiles.chat_id = chats.id;

-- name: prompts(chat_ids)
-- What the model sees of each chat: what the newest boundary lists, in its order, then what came after.
SELECT chat.id, format, body
FROM unnest(:chat_ids::text[]) AS chat (id)
LEFT JOIN LATERAL (
    SELECT position, carried FROM boundaries
    WHERE chat_id = chat.id AND cut IS NULL ORDER BY position DESC LIMIT 1
) AS boundary ON true
JOIN messages ON messages.chat_id = chat.id
WHERE cut IS NULL AND audience <> 'user'
  AND (messages.position > coalesce(boundary.position, 0) OR messages.position = ANY (boundary.carried))
ORDER BY array_position(boundary.carried, messages.position) NULLS LAST, messages.position;

-- name: cut_at(chat_id, message_id)
-- A message of the history, and what would remain if it and all after it were cut.
SELECT message.format, message.body, coalesce(boundary.position, 0) AS boundary,
       facts.body AS facts,
       (SELECT count(*) FROM unnest(boundary.carried) AS stays WHERE stays < boundary.position) + (
           SELECT count(*) FROM messages
           WHERE chat_id = :chat_id AND cut IS NULL AND audience = 'everyone' AND position < message.position
             AND position > coalesce(boundary.position, 0)
       ) AS foldable
FROM messages AS message
LEFT JOIN facts ON facts.chat_id = message.chat_id
LEFT JOIN LATERAL (
    SELECT position, carried FROM boundaries
    WHERE chat_id = :chat_id AND cut IS NULL AND position < message.position ORDER BY position DESC LIMIT 1
) AS boundary ON true
WHERE message.chat_id = :chat_id AND message.id = :message_id AND message.cut IS NULL;

-- name: events(chat_id, after, limit, page)
-- The last event of a page is the one that brings its bodies to so many bytes; `size` is how many there are up to it.
SELECT chat_id, seq, at, body, size FROM (
    SELECT *, sum(octet_length(body)) OVER (ORDER BY seq) AS size FROM (
        SELECT chat_id, seq, at, body FROM events WHERE chat_id = :chat_id AND seq > :after
        UNION ALL SELECT chat_id, seq, at, body FROM partial_events WHERE chat_id = :chat_id AND seq > :after
        ORDER BY seq LIMIT :limit
    ) AS next
) AS measured
WHERE size - octet_length(body) < :page ORDER BY seq;

-- name: same_event(chat_id, seq, body)
SELECT at FROM events WHERE chat_id = :chat_id AND seq = :seq AND body = :body
UNION ALL SELECT at FROM partial_events WHERE chat_id = :chat_id AND seq = :seq AND body = :body;

-- name: last_finished(chat_id)
SELECT chat_id, seq, at, body FROM events WHERE chat_id = :chat_id AND kind = 'turn_finished' ORDER BY seq DESC LIMIT 1;

-- name: parts(chat_id, step, attempt)
SELECT chat_id, seq, at, body FROM partial_events
WHERE kind = 'part' AND chat_id = :chat_id AND step = :step AND attempt = :attempt ORDER BY seq;

-- name: history(chat_id, at_version, after, size)
-- The messages that are not cut, or were not as of a version; the last is the one that brings them to so many bytes.
SELECT format, body FROM (
    SELECT format, body, position, sum(octet_length(body)) OVER (ORDER BY position) AS total FROM messages
    WHERE chat_id = :chat_id AND position > :after
      AND CASE WHEN :at_version::bigint IS NULL THEN cut IS NULL
               ELSE added <= :at_version AND (cut IS NULL OR cut > :at_version) END
) AS measured
WHERE :size::bigint IS NULL OR total - octet_length(body) < :size ORDER BY position;

-- name: leases(now, limit)
-- Leases that have run out.
SELECT id, token FROM chats WHERE worker IS NOT NULL AND expires <= :now
ORDER BY expires LIMIT :limit;

-- name: deadlines(now, limit, open_statuses)
-- Chats with an open call whose deadline has passed, each by its first such call: to group them would read all that
-- have.
SELECT calls.chat_id FROM calls JOIN chats ON chats.id = calls.chat_id
WHERE calls.deadline <= :now AND calls.status = ANY (:open_statuses)
AND chats.state = 'requires_action' AND NOT archived
AND NOT EXISTS (
    SELECT 1 FROM calls AS earlier WHERE earlier.chat_id = calls.chat_id AND earlier.status = ANY (:open_statuses)
    AND (earlier.deadline, earlier.call_id) < (calls.deadline, calls.call_id)
)
ORDER BY calls.deadline LIMIT :limit;

-- name: rested(now, archived, seconds, limit)
SELECT id FROM chats
WHERE archived = :archived AND rested <= (SELECT coalesce(:now, clock_timestamp()) - make_interval(secs => :seconds))
ORDER BY rested LIMIT :limit;

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
) AS since, clock_timestamp() AS at
FROM agents WHERE name IS NOT NULL;

-- name: awaiting_subagents(after, limit)
-- Chats that wait for subagents, oldest first, from the one after another on.
SELECT id FROM chats WHERE awaits IN ('subagents', 'both') AND NOT archived
    AND number > coalesce((SELECT number FROM chats WHERE id = :after), 0) ORDER BY number LIMIT :limit;
