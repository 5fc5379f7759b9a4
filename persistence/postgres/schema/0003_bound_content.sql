-- What binds the rows to the audit log. Rows written before leave the new columns empty.

ALTER TABLE facts    ADD COLUMN salt text;       -- of the digest of the chat's row that the last audit record holds
ALTER TABLE profiles ADD COLUMN salt text;
ALTER TABLE messages ADD COLUMN salt text;       -- of the digest; an erasure takes it away
ALTER TABLE queue    ADD COLUMN salt text;
ALTER TABLE audit    ADD COLUMN aside text;      -- what belongs to the record and is no part of it: JSON
