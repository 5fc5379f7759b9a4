-- name: first_parts(after, now, keep, limit)
-- Chats that still have parts, and whether the first of them is old. It steps from chat to chat along the index of
-- parts, and reads one part of each: to group them would read all.
WITH RECURSIVE first AS (
    (SELECT chat_id, at FROM partial_events WHERE kind = 'part' AND chat_id > :after
     ORDER BY chat_id, step, attempt LIMIT 1)
    UNION ALL
    SELECT next.chat_id, next.at FROM first, LATERAL (
        SELECT chat_id, at FROM partial_events WHERE kind = 'part' AND partial_events.chat_id > first.chat_id
        ORDER BY chat_id, step, attempt LIMIT 1
    ) AS next
)
SELECT chat_id, at <= coalesce(:now, clock_timestamp()) - make_interval(secs => :keep) AS old FROM first LIMIT :limit;

-- name: delete(chat_id, step, attempt, limit, now, keep)
-- Old parts of a chat that were shown before an attempt. What is locked, another worker is deleting.
DELETE FROM partial_events USING (
    SELECT chat_id, seq, at FROM partial_events
    WHERE kind = 'part' AND chat_id = :chat_id AND (step, attempt) < (:step, :attempt)
    ORDER BY step, attempt LIMIT :limit FOR UPDATE SKIP LOCKED
) AS over
WHERE partial_events.chat_id = over.chat_id AND partial_events.seq = over.seq
AND over.at <= coalesce(:now, clock_timestamp()) - make_interval(secs => :keep);
