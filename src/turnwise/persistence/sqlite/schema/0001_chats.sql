-- Everything turnwise keeps about chats. Times are microseconds since 1970, UTC; bodies are JSON.

CREATE TABLE chats (
    number      INTEGER PRIMARY KEY,        -- order of creation, and what the other tables name the chat by
    id          TEXT    NOT NULL UNIQUE,
    state       TEXT    NOT NULL,
    settled     INTEGER NOT NULL,
    archived    INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    event_seq   INTEGER NOT NULL,           -- the last number given to an event
    head        TEXT    NOT NULL,           -- the hash of the last audit record
    since       INTEGER NOT NULL,           -- when the state last changed
    owner       TEXT,
    calls       TEXT    NOT NULL,           -- the ids of the current step's calls, in order
    facts       TEXT    NOT NULL,           -- what the columns and the other tables do not hold
    salt        TEXT,                       -- of the digest of this row that the last audit record holds
    rested      INTEGER,                    -- when a resting chat was changed last; NULL while a chat works
    agent       TEXT    NOT NULL DEFAULT 'default',
    needs       TEXT    NOT NULL DEFAULT '[]', -- the tools of the open local calls: names in order, a JSON array
    wake_at     INTEGER,                    -- when the first scheduled message is due
    awaits      TEXT,                       -- who answers in `requires_action`: `client`, `subagents` or `both`
    action_of   TEXT,                       -- whose action is needed there: see `ActionOf`
    fair_key    TEXT    NOT NULL DEFAULT '', -- the key by which claims go round
    capped_model TEXT   NOT NULL DEFAULT '', -- provider and model, if a setting caps each model
    changed     INTEGER NOT NULL DEFAULT 0, -- the number of the last commit, among those of all chats
    worker      TEXT,                       -- these four are the lease
    token       INTEGER,
    expires     INTEGER,
    -- For how many microseconds it was given or renewed last: it runs no longer than that from now, even where the wall
    -- clock was set back since.
    lasts       INTEGER
);
-- Beyond the worker: what caps count.
CREATE INDEX chats_leased ON chats (worker, fair_key, agent, capped_model) WHERE worker IS NOT NULL;
CREATE INDEX chats_by_expiry ON chats (expires) WHERE expires IS NOT NULL;
CREATE INDEX chats_to_wake ON chats (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX chats_by_change ON chats (changed);
CREATE INDEX chats_of_owner ON chats (owner, number) WHERE owner IS NOT NULL;
-- `state` is spelled as a sum so that only lists find these two indexes: claims and sweeps have others.
CREATE INDEX chats_of_state ON chats ((state || ''), number, archived);
CREATE INDEX chats_of_owner_and_state ON chats (owner, (state || ''), number) WHERE owner IS NOT NULL;
CREATE INDEX chats_claimable ON chats (agent, since, number) WHERE NOT archived AND state = 'pending' AND worker IS NULL;
CREATE INDEX chats_fair ON chats (agent, capped_model, fair_key, since, number)
    WHERE NOT archived AND state = 'pending' AND worker IS NULL;
CREATE INDEX chats_unsettled ON chats (since, number) WHERE NOT archived AND state = 'interrupted' AND NOT settled;
CREATE INDEX chats_at_rest ON chats (archived, rested) WHERE rested IS NOT NULL;
CREATE INDEX chats_awaiting ON chats (awaits, number) WHERE awaits IS NOT NULL;
CREATE INDEX chats_by_action ON chats (action_of, since) WHERE action_of IS NOT NULL AND NOT archived;
CREATE INDEX chats_awaiting_subagents ON chats (number) WHERE awaits IN ('subagents', 'both');

-- Apart from `chats`, whose rows are rewritten with every transition: a system prompt may be long.
CREATE TABLE profiles (
    chat        INTEGER PRIMARY KEY REFERENCES chats (number),
    body        TEXT    NOT NULL,
    salt        TEXT
);

CREATE TABLE messages (
    chat        INTEGER NOT NULL REFERENCES chats (number),
    position    INTEGER NOT NULL,
    id          TEXT    NOT NULL,
    role        TEXT    NOT NULL,
    turn        INTEGER NOT NULL,
    step        INTEGER NOT NULL,
    audience    TEXT    NOT NULL,
    added       INTEGER NOT NULL,           -- the version that appended it
    cut         INTEGER,                    -- the version that took it out of the history
    erased      INTEGER NOT NULL,
    format      INTEGER NOT NULL,           -- the version of the body's form
    body        TEXT    NOT NULL,
    salt        TEXT,                       -- of the digest in the audit log; an erasure takes it away
    PRIMARY KEY (chat, position)
);
CREATE UNIQUE INDEX messages_by_id ON messages (chat, id);

CREATE TABLE boundaries (
    chat        INTEGER NOT NULL REFERENCES chats (number),
    position    INTEGER NOT NULL,           -- of the marker message
    reason      TEXT    NOT NULL,
    step        INTEGER NOT NULL,
    carried     TEXT    NOT NULL,           -- positions, as a JSON array
    cut         INTEGER,
    PRIMARY KEY (chat, position)
) WITHOUT ROWID;
CREATE UNIQUE INDEX boundaries_one_compaction_per_step ON boundaries (chat, step) WHERE reason = 'compaction';

CREATE TABLE calls (
    chat        INTEGER NOT NULL REFERENCES chats (number),
    call_id     TEXT    NOT NULL,
    step        INTEGER NOT NULL,
    idx         INTEGER NOT NULL,
    status      TEXT    NOT NULL,
    deadline    INTEGER,
    body        TEXT    NOT NULL,
    PRIMARY KEY (chat, call_id)
) WITHOUT ROWID;
CREATE INDEX calls_by_deadline ON calls (deadline) WHERE deadline IS NOT NULL;

CREATE TABLE queue (
    chat        INTEGER NOT NULL REFERENCES chats (number),
    id          TEXT    NOT NULL,
    rank        INTEGER NOT NULL,
    body        TEXT    NOT NULL,
    salt        TEXT,
    PRIMARY KEY (chat, id)
) WITHOUT ROWID;

CREATE TABLE receipts (
    chat        INTEGER NOT NULL REFERENCES chats (number),
    client_id   TEXT    NOT NULL,
    body        TEXT    NOT NULL,
    PRIMARY KEY (chat, client_id)
) WITHOUT ROWID;

CREATE TABLE usage (
    chat        INTEGER NOT NULL REFERENCES chats (number),
    version     INTEGER NOT NULL,           -- the transition that booked it
    number      INTEGER NOT NULL,           -- among the writes of that transition
    body        TEXT    NOT NULL,
    PRIMARY KEY (chat, version, number)
) WITHOUT ROWID;

CREATE TABLE audit (
    chat        INTEGER NOT NULL REFERENCES chats (number),
    version     INTEGER NOT NULL,
    body        TEXT    NOT NULL,           -- without what the columns say, and without the hash before it
    digests     BLOB    NOT NULL,           -- of the writes, 32 bytes each
    hash        BLOB,                       -- of the record
    aside       TEXT,                       -- what belongs to the record and is no part of it: JSON
    PRIMARY KEY (chat, version)
) WITHOUT ROWID;

-- For people with a shell: SELECT * FROM audit_log WHERE chat_id = '...'
CREATE VIEW audit_log AS
    SELECT id AS chat_id, audit.version, lower(hex(hash)) AS hash, body, lower(hex(digests)) AS digests, aside
    FROM audit JOIN chats ON number = chat
    ORDER BY number, audit.version;

CREATE TABLE events (
    chat        INTEGER NOT NULL REFERENCES chats (number),
    seq         INTEGER NOT NULL,
    kind        TEXT    NOT NULL,
    step        INTEGER,                    -- of part events: with `attempt`, finds what was shown
    attempt     INTEGER,
    position    INTEGER,                    -- of message events: the message, which the body leaves out
    body        TEXT    NOT NULL,           -- without what the columns say
    at          INTEGER,
    changed     INTEGER,                    -- the number of the commit; NULL for an imported chat, and between commits
    PRIMARY KEY (chat, seq)
) WITHOUT ROWID;
CREATE INDEX events_parts ON events (chat, step, attempt) WHERE kind = 'part';

-- What the workers of the store say of themselves: which agents they run, and when they said so last.
CREATE TABLE worker_reports (
    worker      TEXT    PRIMARY KEY,
    body        TEXT    NOT NULL,
    seen        INTEGER NOT NULL
) WITHOUT ROWID;

-- Rows that could not be read, as they were stored, quarantined by a repair.
CREATE TABLE quarantine (
    chat        INTEGER NOT NULL REFERENCES chats (number),
    version     INTEGER NOT NULL,           -- the transition that repaired the chat
    origin      TEXT    NOT NULL,           -- the table it stood in
    problem     TEXT    NOT NULL,
    row         TEXT    NOT NULL            -- JSON: its columns
);
CREATE INDEX quarantine_of_chat ON quarantine (chat);

-- What is left of deleted chats: proof that they were there, and nothing that was said in them.
CREATE TABLE tombstones (
    id          TEXT    PRIMARY KEY,        -- the chat's
    number      INTEGER NOT NULL,           -- its order of creation, for lists that started before
    created     INTEGER,
    deleted     INTEGER NOT NULL,
    actor       TEXT    NOT NULL,           -- who deleted it
    records     INTEGER NOT NULL,           -- how many its audit log had
    head        TEXT,                       -- the hash of the last of them
    changed     INTEGER NOT NULL,           -- the number of the deletion, among the commits of all chats
    whose       TEXT    NOT NULL            -- SHA-256 of the id and the owner: proves an owner, and names none
) WITHOUT ROWID;
CREATE INDEX tombstones_by_change ON tombstones (changed);

-- The number of the last commit. It is not derived from the other tables: after damage there a number could be given
-- twice, and consumers would skip the second commit.
CREATE TABLE changes (
    last_value  INTEGER NOT NULL
);
INSERT INTO changes VALUES (0);
CREATE TRIGGER number_created AFTER INSERT ON chats BEGIN UPDATE changes SET last_value = last_value + 1; END;
CREATE TRIGGER number_changed AFTER UPDATE OF changed ON chats BEGIN UPDATE changes SET last_value = last_value + 1; END;
CREATE TRIGGER number_deleted AFTER INSERT ON tombstones BEGIN UPDATE changes SET last_value = last_value + 1; END;

-- Consumers of events of all chats: how far each is, and which process delivers for it.
CREATE TABLE consumers (
    name        TEXT    PRIMARY KEY,
    position    INTEGER NOT NULL,           -- the number of a commit: up to it every event was delivered, or set aside
    worker      TEXT,                       -- these four are the lease
    token       INTEGER NOT NULL,
    since       INTEGER,                    -- when it was given or prolonged
    expires     INTEGER
) WITHOUT ROWID;

-- Events that a consumer could not handle.
CREATE TABLE undelivered (
    consumer    TEXT    NOT NULL,
    chat        INTEGER NOT NULL REFERENCES chats (number),
    seq         INTEGER NOT NULL,
    error       TEXT    NOT NULL,
    at          INTEGER NOT NULL,           -- of the last try
    due         INTEGER NOT NULL,           -- whether it is to be delivered again
    PRIMARY KEY (consumer, chat, seq)
) WITHOUT ROWID;

-- Which chat holds which blob, and the blobs themselves unless they are kept elsewhere.
-- No foreign key: a chat that is being imported holds its blobs before it is there.
CREATE TABLE chat_files (
    chat_id     TEXT    NOT NULL,
    digest      TEXT    NOT NULL,
    size        INTEGER NOT NULL,
    sent        INTEGER NOT NULL,           -- whether a message refers to it, or did
    at          INTEGER NOT NULL,           -- when it was put last
    PRIMARY KEY (chat_id, digest)
) WITHOUT ROWID;
CREATE INDEX chat_files_by_digest ON chat_files (digest);
CREATE INDEX chat_files_unsent ON chat_files (at) WHERE NOT sent;

-- What the principals of services may still send, all replicas together.
CREATE TABLE rates (
    name        TEXT    PRIMARY KEY,        -- the principal's
    allowance   REAL    NOT NULL,           -- requests
    at          INTEGER NOT NULL            -- when it was so many
) WITHOUT ROWID;
CREATE INDEX rates_by_time ON rates (at);

-- Blobs that a chat has let go of: whether another holds them is looked up before they are removed.
CREATE TABLE unreferenced_files (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    digest      TEXT    NOT NULL
);

-- The file store that keeps the blobs, by its own name: no other may be asked to remove them.
CREATE TABLE file_store (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    name        TEXT    NOT NULL
);

CREATE TABLE blobs (
    digest      TEXT    PRIMARY KEY,        -- SHA-256 of the bytes
    place       TEXT    NOT NULL,           -- where its pieces are
    size        INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE blob_pieces (
    place       TEXT    NOT NULL,
    number      INTEGER NOT NULL,           -- from 0 on
    data        BLOB    NOT NULL,
    PRIMARY KEY (place, number)
);

-- Places whose pieces are no blob: not yet, or no longer.
CREATE TABLE blob_remains (
    place       TEXT    PRIMARY KEY,
    at          INTEGER NOT NULL            -- when the last piece came
) WITHOUT ROWID;

-- What owners, or chats, may spend in a period and have spent: changed with the commits that begin and end model calls.
CREATE TABLE budgets (
    key         TEXT    PRIMARY KEY,        -- `owner:` or `chat:`, and its name or id
    body        TEXT    NOT NULL
) WITHOUT ROWID;
