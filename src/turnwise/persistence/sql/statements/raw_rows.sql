-- part: next_change in sqlite
-- The number of the next commit. The lock of the one writer is held; a trigger then counts.
(SELECT last_value + 1 FROM changes);

-- part: next_change in postgres
nextval('changes');

-- name: tables_of_chats in sqlite
-- The tables whose rows belong to chats: they have a column that says to which.
SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'
AND EXISTS (SELECT 1 FROM pragma_table_info(sqlite_master.name) WHERE name = 'chat')
ORDER BY name;

-- name: tables_of_chats in postgres
-- The tables whose rows belong to chats: they have a column that says to which. The rows of partitions are their table's.
SELECT relname AS table_name FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
WHERE relnamespace = to_regnamespace(quote_ident(current_schema())) AND relkind IN ('r', 'p') AND NOT relispartition
  AND attname = 'chat' ORDER BY relname;

-- name: quarantined
SELECT count(*) FROM quarantine WHERE chat = {chat};

-- name: records
SELECT count(*) FROM audit WHERE chat = {chat};

-- name: bury
-- It has the number of the chat, which is still there: who lists chats page by page goes on from it.
INSERT INTO tombstones (id, number, created, deleted, actor, records, head, whose, changed)
SELECT id, number, :created, :deleted, :actor, :records, :head, :whose, {next_change} FROM chats WHERE id = :chat_id;

-- name: put_profile
INSERT INTO profiles (chat, body) VALUES ({chat}, :body)
ON CONFLICT (chat) DO UPDATE SET body = excluded.body, salt = NULL;

-- name: repaired
-- The commit that follows compares the chat with this, as with what was read.
UPDATE chats
SET version = :version, event_seq = :event_seq, head = :head, state = :state, worker = :worker, token = :token,
    {queried: NAME = :NAME}, agent = :agent, needs = :needs, awaits = :awaits, wake_at = :wake_at,
    action_of = :action_of, fair_key = :fair_key, capped_model = :capped_model
WHERE id = :chat_id;

-- name: erased_since
-- Whether something of a chat was erased after a version.
SELECT EXISTS (
    SELECT 1 FROM audit WHERE chat = {chat} AND version > :version AND strpos(body, '"message_erased"') > 0);

-- name: lock_head
SELECT head FROM chats WHERE id = :chat_id FOR UPDATE;

-- name: delete_chat
DELETE FROM chats WHERE id = :chat_id;

-- name: lock_parent
SELECT version FROM chats WHERE id = :chat_id FOR SHARE;
