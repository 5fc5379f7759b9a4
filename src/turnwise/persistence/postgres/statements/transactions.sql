-- name: blank(chat_id, since, head)
-- A chat before its first transition: the statement of all commits then finds it, and nobody else sees it yet.
INSERT INTO chats (id, state, settled, archived, version, event_seq, head, since, calls)
VALUES (:chat_id, 'waiting', true, false, 0, 0, :head, :since, '{}');

-- name: erased_since(chat_id, version)
-- Whether something of a chat was erased after a version.
SELECT EXISTS (
    SELECT FROM audit WHERE chat_id = :chat_id AND version > :version AND strpos(body, '"message_erased"') > 0);

-- name: claimable(agents, tools, since, number, limit)
-- Chats that want a worker with these agents and tools, longest waiting first, from one of them on. Of each agent no
-- more are read than are wanted, along the index; `tools` holds those of an agent with spaces between them.
SELECT id, since, number FROM (
    SELECT pending.* FROM unnest(:agents::text[], :tools::text[]) AS runs (agent, tools) CROSS JOIN LATERAL (
        SELECT id, since, number FROM chats
        WHERE NOT archived AND state = 'pending' AND worker IS NULL AND chats.agent = runs.agent
          AND needs <@ string_to_array(runs.tools, ' ') AND (since, number) > (:since, :number)
        ORDER BY since, number LIMIT :limit) AS pending
    UNION ALL (
        SELECT id, since, number FROM chats
        WHERE NOT archived AND state = 'interrupted' AND NOT settled AND worker IS NULL
          AND (since, number) > (:since, :number)
        ORDER BY since, number LIMIT :limit)) AS found
ORDER BY since, number LIMIT :limit;

-- name: locked(chat_ids)
-- Those of the chats that may still be claimed, now that they are locked. They are asked again: another worker may have
-- claimed one since. One that is locked is being claimed or changed: nobody waits for it, and so nobody in a ring.
SELECT id, version FROM chats
WHERE id = ANY (:chat_ids) AND NOT archived AND worker IS NULL
  AND (state = 'pending' OR (state = 'interrupted' AND NOT settled))
ORDER BY since, number FOR UPDATE SKIP LOCKED;

-- name: renew(now, seconds, worker)
-- A chat that another session has locked is left out: it must keep none of the others from being renewed.
UPDATE chats SET expires = coalesce(:now, clock_timestamp()) + make_interval(secs => :seconds)
WHERE worker = :worker AND id = ANY (ARRAY(SELECT id FROM chats WHERE worker = :worker FOR UPDATE SKIP LOCKED))
RETURNING id, token, clock_timestamp() AS at;
