-- Rows that could not be read, as they were stored, put aside by a repair.

CREATE TABLE quarantine (
    chat_id     TEXT    NOT NULL REFERENCES chats (id),
    version     INTEGER NOT NULL,           -- the transition that repaired the chat
    origin      TEXT    NOT NULL,           -- the table it stood in
    problem     TEXT    NOT NULL,
    row         TEXT    NOT NULL            -- JSON: its columns
);
CREATE INDEX quarantine_of_chat ON quarantine (chat_id);
