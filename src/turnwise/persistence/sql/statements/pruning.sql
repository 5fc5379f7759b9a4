-- name: first_parts in sqlite
-- Chats that still have parts, and when the first of them was shown. It steps from chat to chat along the index of
-- parts, and reads one part of each: to group them would read all. A part without a time counts as very old.
WITH RECURSIVE first (chat_id) AS (
    SELECT min(chat_id) FROM events WHERE kind = 'part' AND chat_id > :after
    UNION ALL
    SELECT (SELECT min(chat_id) FROM events WHERE kind = 'part' AND chat_id > first.chat_id)
    FROM first WHERE chat_id IS NOT NULL
)
SELECT chat_id, (
    SELECT CASE WHEN typeof(at) = 'integer' THEN at ELSE 0 END <= :until FROM events
    WHERE kind = 'part' AND events.chat_id = first.chat_id ORDER BY step, attempt LIMIT 1
)
FROM first WHERE chat_id IS NOT NULL LIMIT :limit;

-- name: first_parts in postgres
-- As for SQLite.
WITH RECURSIVE first AS (
    (SELECT chat_id, at FROM partial_events WHERE kind = 'part' AND chat_id > :after
     ORDER BY chat_id, step, attempt LIMIT 1)
    UNION ALL
    SELECT next.chat_id, next.at FROM first, LATERAL (
        SELECT chat_id, at FROM partial_events WHERE kind = 'part' AND partial_events.chat_id > first.chat_id
        ORDER BY chat_id, step, attempt LIMIT 1
    ) AS next
)
SELECT chat_id, at <= :until FROM first LIMIT :limit;

-- name: prune_chat in sqlite
-- Old parts of a chat that were shown before an attempt.
DELETE FROM events WHERE chat_id = :chat_id AND seq IN (
    SELECT seq FROM events
    WHERE kind = 'part' AND chat_id = :chat_id AND (step, attempt) < (:step, :attempt)
    ORDER BY step, attempt LIMIT :limit)
AND CASE WHEN typeof(at) = 'integer' THEN at ELSE 0 END <= :until;

-- name: prune_chat in postgres
-- What is locked, another worker is deleting.
DELETE FROM partial_events USING (
    SELECT chat_id, seq, at FROM partial_events
    WHERE kind = 'part' AND chat_id = :chat_id AND (step, attempt) < (:step, :attempt)
    ORDER BY step, attempt LIMIT :limit FOR UPDATE SKIP LOCKED
) AS over
WHERE partial_events.chat_id = over.chat_id AND partial_events.seq = over.seq AND over.at <= :until;
