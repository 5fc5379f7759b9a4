-- What a row's columns say its body does not say again. Rows written before leave the new columns empty.

ALTER TABLE audit ADD COLUMN hash BLOB;          -- of the record; that of the record before it is the row's before it
ALTER TABLE events ADD COLUMN at INTEGER;
