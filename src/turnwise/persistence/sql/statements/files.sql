-- name: kept_in
SELECT name FROM file_store;

-- name: keep_in
-- A name that is there is locked and left as it is: each file that is put would leave a dead version of it.
INSERT INTO file_store (one, name) VALUES (1, :name)
ON CONFLICT (one) DO UPDATE SET name = excluded.name WHERE false;

-- name: move_to
-- Another file store may take over only while no blob is stored.
UPDATE file_store SET name = :name
WHERE NOT EXISTS (SELECT 1 FROM chat_files) AND NOT EXISTS (SELECT 1 FROM unreferenced_files) RETURNING name;

-- name: chat_for_file
SELECT id FROM chats WHERE id = :chat_id FOR SHARE;

-- name: note_file
INSERT INTO chat_files (chat_id, digest, size, sent, at) VALUES (:chat_id, :digest, :size, false, :at)
ON CONFLICT (chat_id, digest) DO UPDATE SET at = excluded.at;

-- name: take_over
INSERT INTO chat_files (chat_id, digest, size, sent, at) VALUES (:chat_id, :digest, :size, true, :at)
ON CONFLICT (chat_id, digest) DO UPDATE SET sent = true;

-- name: held_files
-- The blobs that a chat holds: all, or those among the digests.
SELECT digest, size FROM chat_files WHERE chat_id = :chat_id AND (CAST(:every AS boolean) OR digest = ANY (:digests));

-- name: release
-- All that a chat holds, or what was sent and is not among what stays.
DELETE FROM chat_files WHERE chat_id = :chat_id AND (CAST(:every AS boolean) OR (sent AND NOT digest = ANY (:stay)))
RETURNING digest;

-- name: release_unsent in sqlite
-- What was put until then and never sent, oldest first: all of one chat, or up to the limit.
DELETE FROM chat_files WHERE (chat_id, digest) IN (
    SELECT chat_id, digest FROM chat_files
    WHERE NOT sent AND (:until IS NULL OR at <= :until) AND (:chat_id IS NULL OR chat_id = :chat_id)
    ORDER BY at LIMIT CASE WHEN :chat_id IS NULL THEN :limit ELSE -1 END)
RETURNING digest;

-- name: release_unsent in postgres
-- A row that is locked is being put again, sent, or released by another worker: it is left to them.
WITH due AS (
    SELECT chat_id, digest FROM chat_files
    WHERE NOT sent AND (:until::timestamptz IS NULL OR at <= :until) AND (:chat_id::text IS NULL OR chat_id = :chat_id)
    ORDER BY at LIMIT CASE WHEN :chat_id::text IS NULL THEN :limit::bigint END FOR UPDATE SKIP LOCKED
)
DELETE FROM chat_files USING due
WHERE chat_files.chat_id = due.chat_id AND chat_files.digest = due.digest RETURNING due.digest;

-- name: released
INSERT INTO unreferenced_files (digest) VALUES (:digest);

-- name: unreferenced_files
SELECT number, digest FROM unreferenced_files ORDER BY number LIMIT :limit;

-- name: holder
SELECT 1 FROM chat_files WHERE digest = :digest LIMIT 1;

-- name: settle_unreferenced
DELETE FROM unreferenced_files WHERE number = :number;

-- name: goes_on
-- Pieces arrive at a place, or leave it: until it has a name, a sweep may clear what is old there.
INSERT INTO blob_remains (place, at) VALUES (:place, :at) ON CONFLICT (place) DO UPDATE SET at = excluded.at;

-- name: add_piece
-- The statement may be tried again: then the piece is there.
INSERT INTO blob_pieces (place, number, data) VALUES (:place, :number, :piece) ON CONFLICT DO NOTHING;

-- name: piece
SELECT data FROM blobs JOIN blob_pieces USING (place) WHERE digest = :digest AND number = :number;

-- name: size
-- The size of all pieces that are there, not the one that was stated when they were put.
SELECT (SELECT coalesce(sum(length(data)), 0) FROM blob_pieces WHERE place = blobs.place)
FROM blobs WHERE digest = :digest;

-- name: name_of_blob
SELECT place FROM blobs WHERE digest = :digest;

-- name: name_blob
-- It changes no name that is there, but locks it: so it waits for a session that is taking that away, and inserts afterwards.
INSERT INTO blobs (digest, place, size) VALUES (:digest, :place, :size)
ON CONFLICT (digest) DO UPDATE SET size = blobs.size WHERE false;

-- name: lock_name
SELECT place FROM blobs WHERE digest = :digest FOR UPDATE;

-- name: unname
-- Takes the name away from a blob that no chat holds.
DELETE FROM blobs WHERE digest = :digest AND NOT EXISTS (SELECT 1 FROM chat_files WHERE digest = :digest)
RETURNING place;

-- name: lock_place
SELECT place FROM blob_remains WHERE place = :place FOR UPDATE;

-- name: old_places
SELECT place FROM blob_remains WHERE at <= :before;

-- name: clear_some
-- A few pieces at a time: a large blob would hold its transaction open for long.
DELETE FROM blob_pieces WHERE place = :place AND number IN (
    SELECT number FROM blob_pieces WHERE place = :place ORDER BY number LIMIT :limit);

-- name: clear_place
DELETE FROM blob_remains WHERE place = :place;
