-- name: chat(chat_id)
SELECT chats.*, facts.body AS facts, facts.salt AS salt
FROM chats LEFT JOIN facts ON facts.chat_id = chats.id WHERE id = :chat_id;

-- name: events(chat_id)
-- A chat's numbers run through both tables.
SELECT seq, kind, at, body FROM events WHERE chat_id = :chat_id
UNION ALL SELECT seq, kind, at, body FROM partial_events WHERE chat_id = :chat_id ORDER BY seq;
