-- name: head
SELECT version, head FROM chats WHERE id = :chat_id;

-- name: expires
SELECT expires FROM chats WHERE id = :chat_id;

-- name: calls
SELECT body FROM calls WHERE chat = {chat} AND call_id = ANY (:call_ids) ORDER BY step, idx;

-- name: receipt
SELECT body FROM receipts WHERE chat = {chat} AND client_id = :client_id;

-- name: ledger
SELECT body FROM usage WHERE chat = {chat} ORDER BY version, number;

-- name: audit in sqlite
SELECT version, lower(hex(hash)), body, aside, digests FROM audit WHERE chat = {chat} ORDER BY version;

-- name: audit in postgres
SELECT version, encode(hash, 'hex'), body, aside, digests FROM audit WHERE chat = {chat} ORDER BY version;

-- name: message
SELECT format, body FROM messages WHERE chat = {chat} AND id = :message_id AND cut IS NULL;

-- name: history in sqlite
-- The messages that are not cut, or were not as of a version. The last column is the size of the body.
SELECT format, body, length(body) FROM messages
WHERE chat = {chat} AND position > :after
  AND CASE WHEN :at_version IS NULL THEN cut IS NULL
           ELSE added <= :at_version AND (cut IS NULL OR cut > :at_version) END
ORDER BY position;

-- name: history in postgres
-- The last message is the one that brings the bodies to so many bytes; the last column is how many there are up to it.
SELECT format, body, total FROM (
    SELECT format, body, position, sum(octet_length(body)) OVER (ORDER BY position) AS total FROM messages
    WHERE chat = {chat} AND position > :after
      AND CASE WHEN :at_version::bigint IS NULL THEN cut IS NULL
               ELSE added <= :at_version AND (cut IS NULL OR cut > :at_version) END
) AS measured
WHERE :size::bigint IS NULL OR total - octet_length(body) < :size ORDER BY position;

-- name: newest_boundary
SELECT position, carried FROM boundaries WHERE chat = {chat} AND cut IS NULL AND position < :before
ORDER BY position DESC LIMIT 1;

-- name: prompt
SELECT format, body FROM messages
WHERE chat = {chat} AND cut IS NULL AND audience <> 'user'
  AND (position > :boundary OR position = ANY (:carried)) ORDER BY position;

-- name: said_between
-- How many messages for everyone stand between two positions.
SELECT count(*) FROM messages
WHERE chat = {chat} AND cut IS NULL AND audience = 'everyone' AND position > :boundary AND position < :position;

-- name: events in sqlite
-- The columns of this and of the next two are the arguments of `event_of` after the first; here the size of the bodies follows.
SELECT seq, kind, at, events.body, format, messages.body,
    length(events.body) + coalesce(length(messages.body), 0)
FROM events LEFT JOIN messages ON messages.chat = events.chat AND messages.position = events.position
WHERE events.chat = {chat} AND seq > :after ORDER BY seq LIMIT :limit;

-- name: events in postgres
-- As in `history`.
SELECT seq, kind, at, body, format, message, size FROM (
    SELECT *, sum(own) OVER (ORDER BY seq) AS size FROM (
        SELECT seq, kind, at, events.body, format, messages.body AS message,
            octet_length(events.body) + coalesce(octet_length(messages.body), 0) AS own
        FROM events LEFT JOIN messages ON messages.chat = events.chat AND messages.position = events.position
        WHERE events.chat = {chat} AND seq > :after
        UNION ALL
        SELECT seq, kind, at, body, NULL, NULL, octet_length(body)
        FROM partial_events WHERE chat = {chat} AND seq > :after
        ORDER BY seq LIMIT :limit
    ) AS next
) AS measured
WHERE size - own < :size ORDER BY seq;

-- name: last_finished
SELECT seq, kind, at, body, NULL, NULL FROM events
WHERE chat = {chat} AND kind = 'turn_finished' ORDER BY seq DESC LIMIT 1;

-- name: parts in sqlite
SELECT seq, kind, at, body, NULL, NULL FROM events
WHERE kind = 'part' AND chat = {chat} AND step = :step AND attempt = :attempt ORDER BY seq;

-- name: parts in postgres
SELECT seq, kind, at, body, NULL, NULL FROM partial_events
WHERE kind = 'part' AND chat = {chat} AND step = :step AND attempt = :attempt ORDER BY seq;

-- name: tombstone
SELECT created, deleted, actor, records, head FROM tombstones WHERE id = :chat_id;

-- name: deleted
SELECT id FROM tombstones WHERE id = ANY (:chat_ids);
