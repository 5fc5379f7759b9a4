-- name: create_migrations
CREATE TABLE IF NOT EXISTS turnwise_migrations (
    name TEXT PRIMARY KEY, checksum TEXT NOT NULL, applied_at TEXT NOT NULL
) WITHOUT ROWID;
