-- Workers that were here and whose sessions are gone. After a start of the server everybody has to come back first.
SELECT worker FROM workers
WHERE worker = ANY (:workers)
  AND pg_postmaster_start_time() < clock_timestamp() - make_interval(secs => :settled)
  AND NOT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND database = (
        SELECT oid FROM pg_database WHERE datname = current_database())
      AND classid::bigint << 32 | objid::bigint = hashtextextended(current_schema() || ' ' || worker, 0))
