-- name: keep_in(name)
-- A name that is there is locked and left as it is: each file that is put would leave a dead version of it.
INSERT INTO file_store (one, name) VALUES (1, :name)
ON CONFLICT (one) DO UPDATE SET name = excluded.name WHERE false;

-- name: move_to(name)
-- Another file store may take over only while nothing is kept.
UPDATE file_store SET name = :name
WHERE NOT EXISTS (SELECT FROM chat_files) AND NOT EXISTS (SELECT FROM loose_files) RETURNING name;

-- name: note(chat_id, digest, size, now)
INSERT INTO chat_files (chat_id, digest, size, sent, at)
VALUES (:chat_id, :digest, :size, false, coalesce(:now, clock_timestamp()))
ON CONFLICT (chat_id, digest) DO UPDATE SET at = excluded.at;

-- name: take_over(chat_id, digest, size, at)
INSERT INTO chat_files (chat_id, digest, size, sent, at) VALUES (:chat_id, :digest, :size, true, :at)
ON CONFLICT (chat_id, digest) DO UPDATE SET sent = true;

-- name: held(chat_id, digests)
-- Those of the digests that a chat holds; all of them if there are none to choose from.
SELECT digest, size FROM chat_files WHERE chat_id = :chat_id AND (:digests::text[] IS NULL OR digest = ANY (:digests));

-- name: let_go(chat_id, stay)
-- What was sent and is not among those that stay; without such a list, all that the chat holds.
WITH gone AS (
    DELETE FROM chat_files
    WHERE chat_id = :chat_id AND (:stay::text[] IS NULL OR (sent AND digest <> ALL (:stay))) RETURNING digest
)
INSERT INTO loose_files (digest) SELECT digest FROM gone;

-- name: let_unsent_go(now, seconds, chat_id, limit)
-- All of one chat, or up to the limit.
-- A row that is locked is being put again, sent, or let go of by another worker: it is left to them.
WITH due AS (
    SELECT chat_id, digest FROM chat_files
    WHERE NOT sent AND (:seconds::float8 = 0 OR at <= coalesce(:now, clock_timestamp()) - make_interval(secs => :seconds))
      AND (:chat_id::text IS NULL OR chat_id = :chat_id)
    ORDER BY at LIMIT CASE WHEN :chat_id::text IS NULL THEN :limit::bigint END FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM chat_files USING due
    WHERE chat_files.chat_id = due.chat_id AND chat_files.digest = due.digest RETURNING due.digest
)
INSERT INTO loose_files (digest) SELECT digest FROM gone;
