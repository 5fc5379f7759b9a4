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
WHERE message.chat_id = :chat_id AND message.id = :message_id AND message.cut IS NULL
