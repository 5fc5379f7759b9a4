-- name: tables_of_chats
-- The tables whose rows belong to chats: they have a column of that name.
SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'
AND EXISTS (SELECT 1 FROM pragma_table_info(sqlite_master.name) WHERE name = 'chat_id')
ORDER BY name;
