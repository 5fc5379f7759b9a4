-- name: facts
-- Where chats stand, all in one row, which begins with the fields of `Stored`: a condition follows.
SELECT chats.id, state, settled, archived, version, chats.calls AS call_ids, facts.body AS facts,
       profiles.body AS profile,
       array(SELECT calls.body FROM calls WHERE chat = number AND call_id = ANY (chats.calls) ORDER BY step, idx),
       array(SELECT queue.body FROM queue WHERE chat = number ORDER BY rank),
       worker, token, event_seq, head, clock_timestamp() AS at,
       EXISTS (SELECT FROM budgets WHERE key IN ('chat:' || chats.id, 'owner:' || chats.owner)) AS budgeted
FROM chats
LEFT JOIN facts ON facts.chat = number
LEFT JOIN profiles ON profiles.chat = number;

-- name: prompts
-- What the model sees of each chat: what the newest boundary lists, in its order, then what came after.
SELECT chats.id, format, body
FROM unnest(:chat_ids::text[]) AS asked (id) JOIN chats ON chats.id = asked.id
LEFT JOIN LATERAL (
    SELECT position, carried FROM boundaries
    WHERE chat = number AND cut IS NULL ORDER BY position DESC LIMIT 1
) AS boundary ON true
JOIN messages ON messages.chat = number
WHERE cut IS NULL AND audience <> 'user'
  AND (messages.position > coalesce(boundary.position, 0) OR messages.position = ANY (boundary.carried))
ORDER BY array_position(boundary.carried, messages.position) NULLS LAST, messages.position;

-- name: same_event
-- When exactly this event was stored under the number.
SELECT at FROM events WHERE chat = {chat} AND seq = :seq AND kind = :kind AND body = :body
UNION ALL
SELECT at FROM partial_events WHERE chat = {chat} AND seq = :seq AND kind = :kind AND body = :body;

-- name: blank
-- A chat before its first transition: the statement of all commits then finds it, and no other session sees it yet.
INSERT INTO chats (id, state, settled, archived, version, event_seq, head, since, calls)
VALUES (:chat_id, 'waiting', true, false, 0, 0, :head, :since, '{}');

-- name: blanks
-- The same of many chats, but for those whose ids are taken. In one order: no two such statements deadlock.
INSERT INTO chats (id, state, settled, archived, version, event_seq, head, since, calls)
SELECT id, 'waiting', true, false, 0, 0, :head, since, '{}'
FROM unnest(:chat_ids::text[], :since::timestamptz[]) AS new (id, since) ORDER BY id
ON CONFLICT (id) DO NOTHING RETURNING id;

-- name: drop_blanks
DELETE FROM chats WHERE id = ANY (:chat_ids);

-- name: claimable
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

-- name: locked
-- Those of the chats that may still be claimed, now that they are locked. They are asked again: another worker may have
-- claimed one since. One that is locked is being claimed or changed: nothing waits for it, so nothing deadlocks.
SELECT id, version FROM chats
WHERE id = ANY (:chat_ids) AND NOT archived AND worker IS NULL
  AND (state = 'pending' OR (state = 'interrupted' AND NOT settled))
ORDER BY since, number FOR UPDATE SKIP LOCKED;

-- name: one_claim
-- Holds up the other claims with caps until this one has committed: what it has counted stays so.
SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || ' claims', 0));

-- name: renew
-- A chat that another session has locked is left out: it must keep none of the others from being renewed.
UPDATE chats SET expires = coalesce(:now, clock_timestamp()) + make_interval(secs => :seconds)
WHERE worker = :worker AND id = ANY (ARRAY(SELECT id FROM chats WHERE worker = :worker FOR UPDATE SKIP LOCKED))
RETURNING id, token, clock_timestamp() AS at;

-- part: new_events
-- The end of statements that store events: it returns the chats that took them.
new_events AS (
    INSERT INTO events (chat, seq, kind, at, position, body, changed)
    SELECT number, seq, kind, chat.at, position, body, changed
    FROM chat JOIN json_to_recordset(:events) AS event (
        chat_id text, seq bigint, kind text, position bigint, body text) ON chat_id = id
), new_partial_events AS (
    INSERT INTO partial_events (chat, seq, kind, step, attempt, at, body)
    SELECT number, seq, kind, step, attempt, chat.at, body
    FROM chat JOIN json_to_recordset(:partial_events) AS event (
        chat_id text, seq bigint, kind text, step bigint, attempt bigint, body text) ON chat_id = id
)
SELECT id, clock_timestamp() AS at FROM chat;

-- name: append_events
-- Events of running jobs: of each chat that is held under the token and got no number since it was read.
-- A chat that another transaction has locked counts as changed, as in `commits.sql`.
WITH made AS (
    SELECT made.*
    FROM json_to_recordset(:jobs) AS made (
        chat_id text, found_event_seq bigint, state text, token bigint, worker text, event_seq bigint, at timestamptz)
), free AS (
    SELECT id FROM chats WHERE id = ANY (ARRAY(SELECT chat_id FROM made)) FOR UPDATE SKIP LOCKED
), chat AS (
    UPDATE chats SET event_seq = made.event_seq
    FROM made
    WHERE chats.id = made.chat_id AND chats.id = ANY (ARRAY(SELECT id FROM free))
      AND chats.event_seq = found_event_seq AND chats.state = made.state AND chats.token = made.token
      AND chats.worker = coalesce(made.worker, chats.worker)
    RETURNING id, number, at, NULL::bigint AS changed
), {new_events};

-- name: commit
-- Commits of one or more chats: of each chat all of it, or, where it is not as it was read, none of it.
-- A chat that another transaction has locked counts as changed: it must hold up no other, and nothing deadlocks.
-- So does one that spends budgets, if the commit knows of none.
WITH made AS (
    SELECT made.*
    FROM json_to_recordset(:chats) AS made (
        chat_id text, found_version bigint, found_event_seq bigint, found_head text, found_state text,
        found_token bigint, state text, settled boolean, archived boolean, version bigint, event_seq bigint, head text,
        since timestamptz, rested timestamptz, {queried: NAME TYPE}, agent text, needs text[], awaits text,
        action_of text, wake_at timestamptz, fair_key text, capped_model text, calls text[],
        worker text, token bigint, expires timestamptz, facts text, salt text, profile text, profile_salt text,
        at timestamptz, knows_budgets boolean)
), free AS (
    SELECT id FROM chats WHERE id = ANY (ARRAY(SELECT chat_id FROM made)) FOR UPDATE SKIP LOCKED
), chat AS (
    UPDATE chats
    SET state = made.state, settled = made.settled, archived = made.archived, version = made.version,
        event_seq = made.event_seq, head = made.head, since = made.since, rested = made.rested,
        {queried: NAME = made.NAME}, agent = made.agent, needs = made.needs, awaits = made.awaits,
        action_of = made.action_of, wake_at = made.wake_at, fair_key = made.fair_key, capped_model = made.capped_model,
        calls = coalesce(made.calls, chats.calls),
        worker = made.worker, token = made.token,
        expires = CASE WHEN made.token IS NOT NULL THEN coalesce(made.expires, chats.expires) END
    FROM made
    WHERE chats.id = made.chat_id AND chats.id = ANY (ARRAY(SELECT id FROM free))
      AND chats.version = found_version AND chats.event_seq = found_event_seq AND chats.head = found_head
      AND chats.state = found_state AND chats.token IS NOT DISTINCT FROM found_token
      AND (knows_budgets
           OR NOT EXISTS (SELECT FROM budgets WHERE key IN ('chat:' || chats.id, 'owner:' || made.owner)))
    -- The row is locked, so the numbers of a chat rise, and the transaction has its id before it has a number.
    RETURNING id, chats.number, facts, salt, profile, profile_salt, at, {next_change} AS changed
), put_facts AS (
    INSERT INTO facts (chat, body, salt, changed) SELECT number, facts, salt, changed FROM chat
    ON CONFLICT (chat) DO UPDATE SET body = excluded.body, salt = excluded.salt, changed = excluded.changed
), put_profiles AS (
    INSERT INTO profiles (chat, body, salt)
    SELECT number, profile, profile_salt FROM chat WHERE profile IS NOT NULL
    ON CONFLICT (chat) DO UPDATE SET body = excluded.body, salt = excluded.salt
), cuts AS (
    SELECT number AS chat, position, version
    FROM chat JOIN json_to_recordset(:cuts) AS cut (chat_id text, position bigint, version bigint) ON chat_id = id
), first_cuts AS (
    SELECT chat, min(position) AS position FROM cuts GROUP BY chat
), cut_messages AS (
    UPDATE messages
    SET cut = (SELECT min(version) FROM cuts WHERE cuts.chat = messages.chat AND cuts.position <= messages.position)
    FROM first_cuts AS first
    WHERE messages.chat = first.chat AND messages.position >= first.position AND cut IS NULL
), cut_boundaries AS (
    UPDATE boundaries
    SET cut = (SELECT min(version) FROM cuts WHERE cuts.chat = boundaries.chat AND cuts.position <= boundaries.position)
    FROM first_cuts AS first
    WHERE boundaries.chat = first.chat AND boundaries.position >= first.position AND cut IS NULL
), new_messages AS (
    INSERT INTO messages
        (chat, position, id, role, turn, step, audience, added, cut, erased, salt, format, body)
    SELECT number, position, message.id, role, turn, step, audience, added, cut, erased, message.salt, format,
        body
    FROM chat JOIN json_to_recordset(:messages) AS message (
        chat_id text, position bigint, id text, role text, turn bigint, step bigint, audience text, added bigint,
        cut bigint, erased boolean, salt text, format integer, body text) ON chat_id = chat.id
), new_boundaries AS (
    INSERT INTO boundaries (chat, position, reason, step, carried, cut)
    SELECT number, position, reason, step, carried, cut
    FROM chat JOIN json_to_recordset(:boundaries) AS boundary (
        chat_id text, position bigint, reason text, step bigint, carried bigint[], cut bigint) ON chat_id = id
), put_calls AS (
    INSERT INTO calls (chat, call_id, step, idx, status, deadline, body)
    SELECT number, call_id, step, idx, status, deadline, body
    FROM chat JOIN json_to_recordset(:calls) AS call (
        chat_id text, call_id text, step bigint, idx integer, status text, deadline timestamptz, body text)
        ON chat_id = id
    ON CONFLICT (chat, call_id) DO UPDATE
    SET step = excluded.step, idx = excluded.idx, status = excluded.status, deadline = excluded.deadline,
        body = excluded.body
), put_queued AS (
    INSERT INTO queue (chat, id, rank, body, salt)
    SELECT number, queued.id,
           coalesce(queued.rank, (SELECT rank FROM queue WHERE chat = number AND id = queued.id)), queued.body,
           queued.salt
    FROM chat JOIN json_to_recordset(:queued) AS queued (chat_id text, id text, rank bigint, body text, salt text)
        ON chat_id = chat.id
    ON CONFLICT (chat, id) DO UPDATE SET rank = excluded.rank, body = excluded.body, salt = excluded.salt
), rank_queued AS (
    UPDATE queue SET rank = ranked.rank
    FROM chat JOIN json_to_recordset(:ranked) AS ranked (chat_id text, id text, rank bigint) ON chat_id = chat.id
    WHERE queue.chat = number AND queue.id = ranked.id
), drop_queued AS (
    DELETE FROM queue
    USING chat JOIN json_to_recordset(:dropped) AS dropped (chat_id text, id text) ON chat_id = chat.id
    WHERE queue.chat = number AND queue.id = dropped.id
), new_receipts AS (
    INSERT INTO receipts (chat, client_id, body)
    SELECT number, client_id, body
    FROM chat JOIN json_to_recordset(:receipts) AS receipt (chat_id text, client_id text, body text) ON chat_id = id
), new_usage AS (
    INSERT INTO usage (chat, version, number, body)
    SELECT chat.number, version, entry.number, body
    FROM chat JOIN json_to_recordset(:usage) AS entry (chat_id text, version bigint, number integer, body text)
        ON chat_id = id
), put_files AS (
    INSERT INTO chat_files (chat_id, digest, size, sent, at)
    SELECT DISTINCT ON (chat_id, digest) chat_id, digest, size, true, chat.at
    FROM chat JOIN json_to_recordset(:chat_files) AS file (chat_id text, digest text, size bigint) ON chat_id = id
    ON CONFLICT (chat_id, digest) DO UPDATE SET sent = true
), new_audit AS (
    INSERT INTO audit (chat, version, hash, body, aside, digests)
    SELECT number, version, decode(hash, 'hex'), body, aside, decode(digests, 'hex')
    FROM chat JOIN json_to_recordset(:audit) AS record (
        chat_id text, version bigint, hash text, body text, aside text, digests text) ON chat_id = chat.id
), {new_events};

-- name: hash
SELECT encode(hash, 'hex') FROM audit WHERE chat = {chat} AND version = :version;

-- part: session_of_worker
SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND database = (
        SELECT oid FROM pg_database WHERE datname = current_database())
      AND classid::bigint << 32 | objid::bigint = hashtextextended(current_schema() || ' ' || worker, 0);

-- name: attend
-- Note a worker whose session holds its lock; forget those that have been dead for long, and hold nothing.
WITH forgotten AS (
    DELETE FROM workers
    WHERE since < clock_timestamp() - interval '7 days'
      AND NOT EXISTS (SELECT FROM chats WHERE chats.worker = workers.worker)
      AND NOT EXISTS ({session_of_worker})
)
INSERT INTO workers (worker, since) VALUES (:worker, clock_timestamp()) ON CONFLICT (worker) DO NOTHING;

-- name: gone
-- Workers that were here and whose sessions are gone. After a start of the server everybody has to come back first.
SELECT worker FROM workers
WHERE worker = ANY (:workers)
  AND pg_postmaster_start_time() < clock_timestamp() - make_interval(secs => :settled)
  AND NOT EXISTS ({session_of_worker});

-- name: create_migrations
-- {schema} is quoted: in a schema that this makes, no search path helps.
CREATE TABLE {schema}.turnwise_migrations (
    name text PRIMARY KEY, checksum text NOT NULL, applied_at timestamptz NOT NULL
);
