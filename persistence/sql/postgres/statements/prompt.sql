-- What the model sees: of a newest boundary its summary, what it carries, and what came after.
WITH boundary AS (
    SELECT position, reason, carried FROM boundaries
    WHERE chat_id = :chat_id AND cut IS NULL ORDER BY position DESC LIMIT 1
)
SELECT format, body, boundary.reason = 'compaction' AND messages.position = boundary.position + 1 AS is_summary
FROM messages LEFT JOIN boundary ON true
WHERE chat_id = :chat_id AND cut IS NULL AND audience <> 'user'
  AND (messages.position > coalesce(boundary.position, 0) OR messages.position = ANY (boundary.carried))
ORDER BY is_summary DESC NULLS LAST, messages.position
