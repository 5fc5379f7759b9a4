-- name: create_migrations
-- {schema} is quoted: in a schema that this makes, no search path helps.
CREATE TABLE {schema}.turnwise_migrations (
    name text PRIMARY KEY, checksum text NOT NULL, applied_at timestamptz NOT NULL
);
