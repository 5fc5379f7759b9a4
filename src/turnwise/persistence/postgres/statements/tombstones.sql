-- name: bury(chat_id, created, deleted, actor, records, head)
-- It has the number of the chat, which is still there: who lists chats page by page goes on from it.
INSERT INTO tombstones (id, number, created, deleted, actor, records, head)
SELECT id, number, :created, :deleted, :actor, :records, :head FROM chats WHERE id = :chat_id;
