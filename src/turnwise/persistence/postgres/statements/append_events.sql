-- name: append_events(jobs, events, partial_events)
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
    RETURNING id, at
), new_events AS (
    INSERT INTO events (chat_id, seq, kind, at, body)
    SELECT id, seq, kind, chat.at, body
    FROM chat JOIN json_to_recordset(:events) AS event (chat_id text, seq bigint, kind text, body text) ON chat_id = id
), new_partial_events AS (
    INSERT INTO partial_events (chat_id, seq, kind, step, attempt, at, body)
    SELECT id, seq, kind, step, attempt, chat.at, body
    FROM chat JOIN json_to_recordset(:partial_events) AS event (
        chat_id text, seq bigint, kind text, step bigint, attempt bigint, body text) ON chat_id = id
)
SELECT id, clock_timestamp() AS at FROM chat;
