-- name: first_parts in sqlite
-- Chats that still have parts, and when the first of them was shown. It steps from chat to chat along the index of
-- parts, and reads one part of each: to group them would read all. A part without a time counts as very old.
WITH RECURSIVE first (chat) AS (
    SELECT min(chat) FROM events WHERE kind = 'part' AND chat > {number_of_after}
    UNION ALL
    SELECT (SELECT min(chat) FROM events WHERE kind = 'part' AND chat > first.chat) FROM first WHERE chat IS NOT NULL
)
SELECT id, (
    SELECT CASE WHEN typeof(at) = 'integer' THEN at ELSE 0 END <= :until FROM events
    WHERE kind = 'part' AND events.chat = first.chat ORDER BY step, attempt LIMIT 1
)
FROM first CROSS JOIN chats ON number = first.chat LIMIT :limit;

-- name: first_parts in postgres
-- As for SQLite.
WITH RECURSIVE first AS (
    (SELECT chat, at FROM partial_events WHERE kind = 'part' AND chat > {number_of_after}
     ORDER BY chat, step, attempt LIMIT 1)
    UNION ALL
    SELECT next.chat, next.at FROM first, LATERAL (
        SELECT chat, at FROM partial_events WHERE kind = 'part' AND partial_events.chat > first.chat
        ORDER BY chat, step, attempt LIMIT 1
    ) AS next
)
SELECT id, at <= :until FROM first JOIN chats ON number = first.chat LIMIT :limit;

-- name: prune_chat in sqlite
-- Old parts of a chat that were shown before an attempt.
DELETE FROM events WHERE chat = {chat} AND seq IN (
    SELECT seq FROM events
    WHERE kind = 'part' AND chat = {chat} AND (step, attempt) < (:step, :attempt)
    ORDER BY step, attempt LIMIT :limit)
AND CASE WHEN typeof(at) = 'integer' THEN at ELSE 0 END <= :until;

-- name: prune_chat in postgres
-- What is locked, another worker is deleting.
DELETE FROM partial_events USING (
    SELECT chat, seq, at FROM partial_events
    WHERE kind = 'part' AND chat = {chat} AND (step, attempt) < (:step, :attempt)
    ORDER BY step, attempt LIMIT :limit FOR UPDATE SKIP LOCKED
) AS over
WHERE partial_events.chat = over.chat AND partial_events.seq = over.seq AND over.at <= :until;
