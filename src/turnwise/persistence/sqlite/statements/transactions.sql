-- name: standing
-- What tells whether a chat still stands where it is cached.
SELECT version, state, event_seq, head, token, facts FROM chats LEFT JOIN leases ON chat_id = id WHERE id = ?;

-- name: held
-- By which worker a chat is held, and what a running job must find.
SELECT state, event_seq, token, worker FROM chats LEFT JOIN leases ON chat_id = id WHERE id = ?;

-- name: pending
-- Chats of an agent that want a worker with these tools, longest waiting first. A list of needs that is garbled counts
-- as empty: the chat is then tried, and found to be unreadable.
SELECT since, number, id, version FROM chats
WHERE archived = 0 AND state = 'pending' AND agent = ? AND (since, number) > (?, ?)
AND NOT EXISTS (SELECT 1 FROM leases WHERE chat_id = id)
AND (needs = '[]' OR NOT EXISTS (
    SELECT 1 FROM json_each(iif(json_valid(needs), needs, '[]'))
    WHERE value NOT IN (SELECT value FROM json_each(?))))
ORDER BY since, number LIMIT ?;

-- name: unsettled
-- Chats that any worker may settle.
SELECT since, number, id, version FROM chats
WHERE archived = 0 AND state = 'interrupted' AND settled = 0 AND (since, number) > (?, ?)
AND NOT EXISTS (SELECT 1 FROM leases WHERE chat_id = id)
ORDER BY since, number LIMIT ?;
