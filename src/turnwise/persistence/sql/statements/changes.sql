-- part: given
-- Leaves out damaged numbers that are higher than the last commit's.
changed <= (SELECT last_value FROM changes);

-- name: last_change in sqlite
SELECT last_value FROM changes;

-- name: last_change in postgres
-- Not what the sequence says: on a standby that is ahead of the numbers that were given.
SELECT greatest((SELECT coalesce(max(changed), 0) FROM facts WHERE {given}),
    (SELECT coalesce(max(changed), 0) FROM tombstones WHERE {given}));

-- name: in_flight
-- In PostgreSQL: the id of the oldest transaction under way, and the id that the next one gets. A snapshot's `xmax` is
-- not that: transactions beyond it may have started already. `age` counts from the next id.
SELECT pg_snapshot_xmin(at)::text::bigint, pg_snapshot_xmax(at)::text::bigint + age(pg_snapshot_xmax(at)::xid)
FROM pg_current_snapshot() AS at;

-- name: changed_since in sqlite
-- Chats that were changed or deleted by commits of higher numbers, each by its last one.
SELECT * FROM (
    SELECT id, changed, NULL AS whose FROM chats
    WHERE changed > :after AND {given} AND (:owner IS NULL OR owner = :owner) AND NOT changed = ANY (:seen)
    ORDER BY changed LIMIT :limit)
UNION ALL SELECT * FROM (
    SELECT id, changed, whose FROM tombstones WHERE changed > :after AND {given} AND NOT changed = ANY (:seen)
    ORDER BY changed LIMIT :limit)
ORDER BY changed LIMIT :limit;

-- name: changed_since in postgres
SELECT * FROM (
    SELECT id, changed, NULL AS whose FROM facts JOIN chats ON number = chat
    WHERE changed > :after AND {given}
      AND (:owner::text IS NULL OR owner = :owner) AND NOT changed = ANY (:seen::bigint[])
    ORDER BY changed LIMIT :limit) AS chat
UNION ALL SELECT * FROM (
    SELECT id, changed, whose FROM tombstones WHERE changed > :after AND {given} AND NOT changed = ANY (:seen)
    ORDER BY changed LIMIT :limit) AS tombstone
ORDER BY changed LIMIT :limit;

-- name: changes_above in sqlite
SELECT changed FROM chats WHERE changed > :after AND {given} UNION ALL
SELECT changed FROM tombstones WHERE changed > :after AND {given};

-- name: changes_above in postgres
SELECT changed FROM facts WHERE changed > :after AND {given} UNION ALL
SELECT changed FROM tombstones WHERE changed > :after AND {given};

-- name: events_of_changes
-- Events of a chat that commits of higher numbers stored; work under way is shown between commits, and has no number.
-- The first columns after `changed` are the arguments of `event_of` after the first.
SELECT events.changed, seq, kind, at, events.body, format, messages.body
FROM events LEFT JOIN messages ON messages.chat = events.chat AND messages.position = events.position
WHERE events.chat = {chat} AND seq > :seq AND seq > coalesce((
    SELECT seq FROM events WHERE chat = {chat} AND changed <= :after ORDER BY seq DESC LIMIT 1), 0)
  AND events.changed > :after AND NOT kind = ANY (:fleeting) AND (CAST(:every AS boolean) OR kind = ANY (:kinds))
ORDER BY seq LIMIT :limit;

-- name: event
SELECT events.changed, seq, kind, at, events.body, format, messages.body
FROM events LEFT JOIN messages ON messages.chat = events.chat AND messages.position = events.position
WHERE events.chat = {chat} AND seq = :seq;

-- name: add_consumer
INSERT INTO consumers (name, position, token) VALUES (:name, :position, 0) ON CONFLICT (name) DO NOTHING;

-- name: cut_consumer_short
-- The clock was set back: the lease would last longer than it was given for.
UPDATE consumers SET since = :now, expires = :expires WHERE name = :name AND since > :now;

-- name: hold_consumer
UPDATE consumers SET worker = :worker, token = token + 1, since = :now, expires = :expires
WHERE name = :name AND (worker IS NULL OR expires <= :now)
RETURNING position, token;

-- name: advance_consumer
UPDATE consumers SET position = :position, since = :now, expires = :expires
WHERE name = :name AND token = :token AND worker = :worker
RETURNING position;

-- name: release_consumer
UPDATE consumers SET worker = NULL, since = NULL, expires = NULL WHERE name = :name AND token = :token AND worker = :worker;

-- name: consumers
SELECT name, position, worker,
    (SELECT count(*) FROM undelivered WHERE consumer = name) FROM consumers ORDER BY name;

-- name: drop_consumer
DELETE FROM consumers WHERE name = :name AND (worker IS NULL OR expires <= :now);

-- name: drop_undelivered
DELETE FROM undelivered WHERE consumer = :name;

-- name: set_aside
INSERT INTO undelivered (consumer, chat, seq, error, at, due)
SELECT :name, number, :seq, :error, :at, :due FROM chats WHERE id = :chat_id
ON CONFLICT (consumer, chat, seq) DO UPDATE SET error = excluded.error, at = excluded.at, due = excluded.due;

-- name: undelivered
SELECT id, seq, error, at, due FROM undelivered JOIN chats ON number = chat
WHERE consumer = :name ORDER BY number, seq LIMIT :limit;

-- name: due_again
SELECT id, seq FROM undelivered JOIN chats ON number = chat
WHERE consumer = :name AND due ORDER BY number, seq LIMIT :limit;

-- name: deliver_again
UPDATE undelivered SET due = :due
WHERE consumer = :name AND (CAST(:chat_id AS text) IS NULL OR chat = {chat}) AND (CAST(:seq AS bigint) IS NULL OR seq = :seq);

-- name: delivered_after_all
DELETE FROM undelivered WHERE consumer = :name AND chat = {chat} AND seq = :seq;
