-- A message of the history, and what would remain if it and all after it were cut.
SELECT message.format, message.body, coalesce(boundary.position, 0) AS boundary,
       (facts.body::json ->> 'history_version')::bigint AS history_version,
       coalesce(cardinality(boundary.carried), 0) + (
           SELECT count(*) FROM messages
           WHERE chat_id = :chat_id AND cut IS NULL AND audience <> 'user' AND position < message.position
             AND position > coalesce(boundary.position + (boundary.reason = 'compaction')::int, 0)
       ) AS foldable
FROM messages AS message
JOIN facts ON facts.chat_id = message.chat_id
LEFT JOIN LATERAL (
    SELECT position, reason, carried FROM boundaries
    WHERE chat_id = :chat_id AND cut IS NULL AND position < message.position ORDER BY position DESC LIMIT 1
) AS boundary ON true
WHERE message.chat_id = :chat_id AND message.id = :message_id AND message.cut IS NULL
