-- For how many microseconds a lease was given or renewed last: none runs longer than that from now, even where the
-- wall clock was set back since.

ALTER TABLE leases ADD COLUMN lasts INTEGER NOT NULL DEFAULT 30000000;
