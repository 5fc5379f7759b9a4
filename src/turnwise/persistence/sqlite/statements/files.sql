-- name: goes_on
-- Pieces arrive at a place, or leave it: until it has a name, whoever sweeps may clear what is old there.
INSERT INTO blob_remains (place, at) VALUES (?, ?) ON CONFLICT (place) DO UPDATE SET at = excluded.at;

-- name: size
-- The size of all pieces that are there, whatever was said of it when they were put.
SELECT (SELECT coalesce(sum(length(data)), 0) FROM blob_pieces WHERE place = blobs.place) FROM blobs WHERE digest = ?;

-- name: unname
-- Takes the name away from a blob that no chat holds.
DELETE FROM blobs WHERE digest = :digest AND NOT EXISTS (SELECT 1 FROM chat_files WHERE digest = :digest)
RETURNING place;
