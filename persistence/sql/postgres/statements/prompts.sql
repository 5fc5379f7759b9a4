-- What the model sees of each chat: of a newest boundary its summary, what it carries, and what came after.
SELECT chat.id, format, body, boundary.reason = 'compaction' AND messages.position = boundary.position + 1 AS is_summary
FROM unnest(:chat_ids::text[]) AS chat (id)
LEFT JOIN LATERAL (
    SELECT position, reason, carried FROM boundaries
    WHERE chat_id = chat.id AND cut IS NULL ORDER BY position DESC LIMIT 1
) AS boundary ON true
JOIN messages ON messages.chat_id = chat.id
WHERE cut IS NULL AND audience <> 'user'
  AND (messages.position > coalesce(boundary.position, 0) OR messages.position = ANY (boundary.carried))
ORDER BY is_summary DESC NULLS LAST, messages.position
