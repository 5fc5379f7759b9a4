-- Rows that could not be read, as they were stored, put aside by a repair.

CREATE TABLE quarantine (
    chat_id     text        NOT NULL,
    version     bigint      NOT NULL,   -- the transition that repaired the chat
    origin      text        NOT NULL,   -- the table it stood in
    problem     text        NOT NULL,
    row         text        NOT NULL    -- JSON: its columns
);
CREATE INDEX quarantine_of_chat ON quarantine (chat_id);
