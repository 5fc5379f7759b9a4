-- A digest is a text of 64 characters, unless somebody garbled the row, which then is of no use to anybody.

-- name: keep_in
-- Another file store may take over only while nothing is kept.
INSERT INTO file_store (one, name) VALUES (1, ?)
ON CONFLICT (one) DO UPDATE SET name = excluded.name
WHERE NOT EXISTS (SELECT 1 FROM chat_files) AND NOT EXISTS (SELECT 1 FROM loose_files);

-- name: note
INSERT INTO chat_files (chat_id, digest, size, sent, at) VALUES (?, ?, ?, 0, ?)
ON CONFLICT (chat_id, digest) DO UPDATE SET at = excluded.at;

-- name: take_over
INSERT INTO chat_files (chat_id, digest, size, sent, at) VALUES (?, ?, ?, 1, ?)
ON CONFLICT (chat_id, digest) DO UPDATE SET sent = 1;

-- name: loosen
INSERT INTO loose_files (digest)
SELECT digest FROM chat_files
WHERE typeof(digest) = 'text' AND length(digest) = 64
  AND chat_id = ? AND digest IN (SELECT value FROM json_each(?));

-- name: loosen_all
INSERT INTO loose_files (digest)
SELECT digest FROM chat_files WHERE typeof(digest) = 'text' AND length(digest) = 64 AND chat_id = ?;

-- name: sent
-- What messages of a chat refer to, or did.
SELECT digest FROM chat_files
WHERE chat_id = ? AND sent = 1 AND typeof(digest) = 'text' AND length(digest) = 64;

-- name: unsent
-- What was put until then and never sent, oldest first: of one chat, or of all.
SELECT chat_id, digest FROM chat_files
WHERE sent = 0 AND (:until IS NULL OR at <= :until) AND (:chat_id IS NULL OR chat_id = :chat_id)
  AND typeof(digest) = 'text' AND length(digest) = 64
ORDER BY at LIMIT :limit;
