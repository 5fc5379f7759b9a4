-- What the model sees of each chat: what the newest boundary lists, in its order, then what came after.
-- A boundary of an earlier version does not list its summary, which comes first.
SELECT chat.id, format, body
FROM unnest(:chat_ids::text[]) AS chat (id)
LEFT JOIN LATERAL (
    SELECT position, carried FROM boundaries
    WHERE chat_id = chat.id AND cut IS NULL ORDER BY position DESC LIMIT 1
) AS boundary ON true
JOIN messages ON messages.chat_id = chat.id
WHERE cut IS NULL AND audience <> 'user'
  AND (messages.position > coalesce(boundary.position, 0) OR messages.position = ANY (boundary.carried))
ORDER BY array_position(
    CASE WHEN boundary.position + 1 = ANY (boundary.carried) THEN boundary.carried
         ELSE boundary.position + 1 || boundary.carried END,
    CASE WHEN audience = 'model' OR messages.position < boundary.position THEN messages.position END
) NULLS LAST, messages.position
