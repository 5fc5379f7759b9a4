-- name: tables_of_chats
-- The tables whose rows belong to chats: they have a column of that name. The rows of partitions are their table's.
SELECT relname AS table_name FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
WHERE relnamespace = to_regnamespace(quote_ident(current_schema())) AND relkind IN ('r', 'p') AND NOT relispartition
  AND attname = 'chat_id' ORDER BY relname;

-- name: orphans
SELECT chat_id, count(*) AS rows FROM {table}
WHERE NOT EXISTS (SELECT FROM chats WHERE id = chat_id) GROUP BY 1;

-- name: insert_mark(chat_id, position, id, role, turn, step, audience, erased, added, digest, format, body)
INSERT INTO messages (chat_id, position, id, role, turn, step, audience, erased, added, digest, format, body)
VALUES (:chat_id, :position, :id, :role, :turn, :step, :audience, :erased, :added, :digest, :format, :body);

-- name: stand_as_repaired(chat_id, version, event_seq, head, state, worker, token, owner, agent, needs, awaits)
-- The commit that follows compares the chat with this, as with what was read.
UPDATE chats
SET version = :version, event_seq = :event_seq, head = :head, state = :state, worker = :worker, token = :token,
    owner = :owner, agent = :agent, needs = :needs, awaits = :awaits
WHERE id = :chat_id;
