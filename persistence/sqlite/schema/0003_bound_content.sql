-- What binds the rows to the audit log. Rows written before leave the new columns empty.

ALTER TABLE chats    ADD COLUMN salt TEXT;       -- of the digest of this row that the last audit record holds
ALTER TABLE profiles ADD COLUMN salt TEXT;
ALTER TABLE messages ADD COLUMN salt TEXT;       -- of the digest; an erasure takes it away
ALTER TABLE queue    ADD COLUMN salt TEXT;
ALTER TABLE audit    ADD COLUMN aside TEXT;      -- what belongs to the record and is no part of it: JSON
