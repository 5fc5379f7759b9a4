-- One commit of one chat: all of it, or, where the chat is not as it was read, none of it.
WITH chat AS (
    UPDATE chats
    SET state = :state, settled = :settled, archived = :archived, version = :version, event_seq = :event_seq,
        head = :head, since = :since, owner = :owner, calls = :calls, worker = :worker, token = :token,
        expires = CASE WHEN :token::bigint IS NOT NULL THEN coalesce(:expires, expires) END
    WHERE id = :chat_id AND version = :found_version AND event_seq = :found_event_seq
    RETURNING id
), put_facts AS (
    INSERT INTO facts (chat_id, body) SELECT id, :facts::text FROM chat
    ON CONFLICT (chat_id) DO UPDATE SET body = excluded.body
), put_profile AS (
    INSERT INTO profiles (chat_id, body) SELECT id, :profile::text FROM chat WHERE :profile::text IS NOT NULL
    ON CONFLICT (chat_id) DO UPDATE SET body = excluded.body
), cuts AS (
    SELECT cut.* FROM json_to_recordset(:cuts) AS cut (position bigint, version bigint)
), cut_messages AS (
    UPDATE messages SET cut = (SELECT min(version) FROM cuts WHERE cuts.position <= messages.position)
    FROM chat
    WHERE chat_id = chat.id AND cut IS NULL AND position >= (SELECT min(position) FROM cuts)
), cut_boundaries AS (
    UPDATE boundaries SET cut = (SELECT min(version) FROM cuts WHERE cuts.position <= boundaries.position)
    FROM chat
    WHERE chat_id = chat.id AND cut IS NULL AND position >= (SELECT min(position) FROM cuts)
), new_messages AS (
    INSERT INTO messages
        (chat_id, position, id, role, turn, step, audience, added, cut, erased, digest, format, body)
    SELECT chat.id, message.*
    FROM chat, json_to_recordset(:messages) AS message (
        position bigint, id text, role text, turn bigint, step bigint, audience text, added bigint, cut bigint,
        erased boolean, digest text, format integer, body text)
), new_boundaries AS (
    INSERT INTO boundaries (chat_id, position, reason, step, carried, cut)
    SELECT chat.id, boundary.*
    FROM chat, json_to_recordset(:boundaries) AS boundary (
        position bigint, reason text, step bigint, carried bigint[], cut bigint)
), put_calls AS (
    INSERT INTO calls (chat_id, call_id, step, idx, status, deadline, body)
    SELECT chat.id, call.*
    FROM chat, json_to_recordset(:known_calls) AS call (
        call_id text, step bigint, idx integer, status text, deadline timestamptz, body text)
    ON CONFLICT (chat_id, call_id) DO UPDATE
    SET step = excluded.step, idx = excluded.idx, status = excluded.status, deadline = excluded.deadline,
        body = excluded.body
), put_queued AS (
    INSERT INTO queue (chat_id, id, rank, body)
    SELECT chat.id, queued.id,
           coalesce(queued.rank, (SELECT rank FROM queue WHERE chat_id = chat.id AND id = queued.id)), queued.body
    FROM chat, json_to_recordset(:queued) AS queued (id text, rank bigint, body text)
    ON CONFLICT (chat_id, id) DO UPDATE SET rank = excluded.rank, body = excluded.body
), drop_queued AS (
    DELETE FROM queue USING chat WHERE chat_id = chat.id AND queue.id = ANY (:dropped)
), new_receipts AS (
    INSERT INTO receipts (chat_id, client_id, body)
    SELECT chat.id, receipt.*
    FROM chat, json_to_recordset(:receipts) AS receipt (client_id text, body text)
), new_usage AS (
    INSERT INTO usage (chat_id, version, number, body)
    SELECT chat.id, entry.*
    FROM chat, json_to_recordset(:usage) AS entry (version bigint, number integer, body text)
), new_audit AS (
    INSERT INTO audit (chat_id, version, body)
    SELECT chat.id, record.*
    FROM chat, json_to_recordset(:audit) AS record (version bigint, body text)
), new_events AS (
    INSERT INTO events (chat_id, seq, kind, at, body)
    SELECT chat.id, event.seq, event.kind, :at::timestamptz, event.body
    FROM chat, json_to_recordset(:events) AS event (seq bigint, kind text, body text)
), new_partial_events AS (
    INSERT INTO partial_events (chat_id, seq, kind, step, attempt, at, body)
    SELECT chat.id, event.seq, event.kind, event.step, event.attempt, :at::timestamptz, event.body
    FROM chat, json_to_recordset(:partial_events) AS event (
        seq bigint, kind text, step bigint, attempt bigint, body text)
)
SELECT EXISTS (SELECT FROM chat)
