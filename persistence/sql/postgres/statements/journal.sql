-- Events of a running job, where the chat is held under the token and no number was given since it was read.
WITH chat AS (
    UPDATE chats SET event_seq = event_seq + :count
    WHERE id = :chat_id AND state = :state AND token = :token AND event_seq = :found_event_seq
    RETURNING id, coalesce(:now, clock_timestamp()) AS at
), new_events AS (
    INSERT INTO events (chat_id, seq, kind, at, body)
    SELECT chat.id, event.seq, event.kind, chat.at, event.body
    FROM chat, json_to_recordset(:events) AS event (seq bigint, kind text, body text)
), new_partial_events AS (
    INSERT INTO partial_events (chat_id, seq, kind, step, attempt, at, body)
    SELECT chat.id, event.seq, event.kind, event.step, event.attempt, chat.at, event.body
    FROM chat, json_to_recordset(:partial_events) AS event (
        seq bigint, kind text, step bigint, attempt bigint, body text)
)
SELECT at FROM chat
