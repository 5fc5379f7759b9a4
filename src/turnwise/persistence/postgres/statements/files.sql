-- name: add(place, number, piece, now)
-- One more piece at a place. Until it has a name, whoever sweeps may clear what is old there. The statement may be
-- tried again: then the piece is there.
WITH goes_on AS (
    INSERT INTO blob_remains (place, at) VALUES (:place, coalesce(:now, clock_timestamp()))
    ON CONFLICT (place) DO UPDATE SET at = excluded.at
)
INSERT INTO blob_pieces (place, number, data) VALUES (:place, :number, :piece) ON CONFLICT DO NOTHING;

-- name: size(digest)
-- The size of all pieces that are there, whatever was said of it when they were put.
SELECT (SELECT coalesce(sum(octet_length(data)), 0) FROM blob_pieces WHERE place = blobs.place)
FROM blobs WHERE digest = :digest;

-- name: name(digest, place, size)
-- It changes no name that is there, but locks it: so it waits for whoever is taking that away, and inserts afterwards.
INSERT INTO blobs (digest, place, size) VALUES (:digest, :place, :size)
ON CONFLICT (digest) DO UPDATE SET size = blobs.size WHERE false;

-- name: unname(digest)
-- Takes the name away from a blob that no chat holds; its place is old enough to be cleared at once.
WITH gone AS (
    DELETE FROM blobs WHERE digest = :digest AND NOT EXISTS (SELECT FROM chat_files WHERE digest = :digest)
    RETURNING place
)
INSERT INTO blob_remains (place, at) SELECT place, 'epoch' FROM gone RETURNING place;

-- name: clear(place, limit)
-- A few pieces at a time: a large blob would hold its transaction open for long.
DELETE FROM blob_pieces WHERE place = :place AND number IN (
    SELECT number FROM blob_pieces WHERE place = :place ORDER BY number LIMIT :limit);
