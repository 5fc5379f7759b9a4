-- Which chat holds which blob, and the blobs themselves unless they are kept elsewhere.

CREATE TABLE chat_files (
    chat_id     text        NOT NULL,
    digest      text        NOT NULL,
    size        bigint      NOT NULL,
    sent        boolean     NOT NULL,   -- whether a message refers to it, or did
    at          timestamptz NOT NULL,   -- when it was put last
    PRIMARY KEY (chat_id, digest)
);
CREATE INDEX chat_files_by_digest ON chat_files (digest);
CREATE INDEX chat_files_unsent ON chat_files (at) WHERE NOT sent;

-- Blobs that a chat has let go of: whether another holds them is looked up before they are removed.
CREATE TABLE loose_files (
    number      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest      text        NOT NULL
);

-- The file store that keeps the blobs, by its own name: no other may be asked to remove them.
CREATE TABLE file_store (
    one         integer     PRIMARY KEY CHECK (one = 1),
    name        text        NOT NULL
);

CREATE TABLE blobs (
    digest      text        PRIMARY KEY, -- SHA-256 of the bytes
    place       text        NOT NULL,   -- where its pieces are
    size        bigint      NOT NULL
);

CREATE TABLE blob_pieces (
    place       text        NOT NULL,
    number      bigint      NOT NULL,   -- from 0 on
    data        bytea       NOT NULL,
    PRIMARY KEY (place, number)
);
ALTER TABLE blob_pieces ALTER COLUMN data SET STORAGE EXTERNAL;

-- Places whose pieces are no blob: not yet, or no longer.
CREATE TABLE blob_remains (
    place       text        PRIMARY KEY,
    at          timestamptz NOT NULL    -- when the last piece came
);
