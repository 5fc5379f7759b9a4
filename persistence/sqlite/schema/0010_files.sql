-- Which chat holds which blob, and the blobs themselves unless they are kept elsewhere.

-- No foreign key: a chat that is being imported holds its blobs before it is there.
CREATE TABLE chat_files (
    chat_id     TEXT    NOT NULL,
    digest      TEXT    NOT NULL,
    size        INTEGER NOT NULL,
    sent        INTEGER NOT NULL,           -- whether a message refers to it, or did
    at          INTEGER NOT NULL,           -- when it was put last
    PRIMARY KEY (chat_id, digest)
) WITHOUT ROWID;
CREATE INDEX chat_files_by_digest ON chat_files (digest);
CREATE INDEX chat_files_unsent ON chat_files (at) WHERE sent = 0;

-- Blobs that a chat has let go of: whether another holds them is looked up before they are removed.
CREATE TABLE loose_files (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    digest      TEXT    NOT NULL
);

-- The file store that keeps the blobs, by its own name: no other may be asked to remove them.
CREATE TABLE file_store (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    name        TEXT    NOT NULL
);

CREATE TABLE blobs (
    digest      TEXT    PRIMARY KEY,        -- SHA-256 of the bytes
    place       TEXT    NOT NULL,           -- where its pieces are
    size        INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE blob_pieces (
    place       TEXT    NOT NULL,
    number      INTEGER NOT NULL,           -- from 0 on
    data        BLOB    NOT NULL,
    PRIMARY KEY (place, number)
);

-- Places whose pieces are no blob: not yet, or no longer.
CREATE TABLE blob_remains (
    place       TEXT    PRIMARY KEY,
    at          INTEGER NOT NULL            -- when the last piece came
) WITHOUT ROWID;
