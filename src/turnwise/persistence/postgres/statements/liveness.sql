-- name: attend(worker)
-- Note a worker whose session holds its lock; forget those that have been dead for long, and hold nothing.
WITH forgotten AS (
    DELETE FROM workers
    WHERE since < clock_timestamp() - interval '7 days'
      AND NOT EXISTS (SELECT FROM chats WHERE chats.worker = workers.worker)
      AND NOT EXISTS (
        SELECT FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1 AND database = (
            SELECT oid FROM pg_database WHERE datname = current_database())
          AND classid::bigint << 32 | objid::bigint = hashtextextended(current_schema() || ' ' || worker, 0))
)
INSERT INTO workers (worker, since) VALUES (:worker, clock_timestamp()) ON CONFLICT (worker) DO NOTHING;

-- name: gone(workers, settled)
-- Workers that were here and whose sessions are gone. After a start of the server everybody has to come back first.
SELECT worker FROM workers
WHERE worker = ANY (:workers)
  AND pg_postmaster_start_time() < clock_timestamp() - make_interval(secs => :settled)
  AND NOT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND database = (
        SELECT oid FROM pg_database WHERE datname = current_database())
      AND classid::bigint << 32 | objid::bigint = hashtextextended(current_schema() || ' ' || worker, 0));
