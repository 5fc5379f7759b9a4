-- Everything turnwise stores about chats. Bodies are JSON, stored as text: byte for byte what was written. In SQLite
-- times are microseconds since 1970, UTC, and arrays are JSON.
-- PostgreSQL gets no foreign keys: every row is written by the statement that raises its chat's version or event
-- number. A key would find nothing there, and cost a look-up for each row.

-- A row of `chats` is small and often rewritten: in PostgreSQL its indexes leave out what changes with every event and
-- renewal.
CREATE TABLE chats (
    number      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- order of creation, names the chat elsewhere
    id          text        NOT NULL UNIQUE,
    state       text        NOT NULL,
    settled     boolean     NOT NULL,
    archived    boolean     NOT NULL,
    version     bigint      NOT NULL,
    event_seq   bigint      NOT NULL,   -- the last number given to an event
    head        text        NOT NULL,   -- the hash of the last audit record
    since       timestamptz NOT NULL,   -- when the state last changed
    owner       text,
    calls       text[]      NOT NULL,   -- the ids of the current step's calls, in order
--sqlite:    facts       text        NOT NULL,   -- what the columns and the other tables do not hold
--sqlite:    salt        text,                   -- of the digest of this row that the last audit record holds
    rested      timestamptz,            -- when a resting chat was changed last; NULL while a chat works
    agent       text        NOT NULL DEFAULT 'default',
--sqlite:    needs       text[]      NOT NULL DEFAULT '[]', -- the tools of the open local calls, in order
--postgres:    needs       text[]      NOT NULL DEFAULT '{}', -- the tools of the open local calls
    wake_at     timestamptz,            -- when the first scheduled message is due
    awaits      text,                   -- who answers in `requires_action`: `client`, `subagents` or `both`
    action_of   text,                   -- whose action is needed there: see `ActionOf`
    fair_key    text        COLLATE "C" NOT NULL DEFAULT '', -- the key by which claims go round
    capped_model text       COLLATE "C" NOT NULL DEFAULT '', -- provider and model, if a setting caps each model
--sqlite:    changed     bigint      NOT NULL DEFAULT 0, -- the number of the last commit, among those of all chats
--sqlite:    -- For how many microseconds the lease was given or renewed last: it runs no longer than that from now, even where
--sqlite:    -- the wall clock was set back since.
--sqlite:    lasts       bigint,
    worker      text,                   -- this and the next two are the lease
    token       bigint,
    expires     timestamptz
) WITH (fillfactor = 70);
CREATE INDEX chats_to_wake ON chats (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX chats_of_owner ON chats (owner, number) WHERE owner IS NOT NULL;
-- Beyond the worker: what caps count.
CREATE INDEX chats_leased ON chats (worker, fair_key, agent, capped_model) WHERE worker IS NOT NULL;
-- State and, in PostgreSQL, owner are spelled as sums so that only lists find these two indexes: claims and sweeps have
-- others, and the planner would rather sort all chats of an owner, however many these are. The first also counts the
-- chats of each state, without a look at the rows.
--sqlite:CREATE INDEX chats_by_expiry ON chats (expires) WHERE expires IS NOT NULL;
--sqlite:CREATE INDEX chats_by_change ON chats (changed);
--sqlite:CREATE INDEX chats_of_state ON chats ((state || ''), number, archived);
--sqlite:CREATE INDEX chats_of_owner_in_state ON chats (owner, (state || ''), number) WHERE owner IS NOT NULL;
--postgres:CREATE INDEX chats_of_state ON chats ((state || ''), number) INCLUDE (state, archived);
--postgres:CREATE INDEX chats_of_owner_in_state ON chats ((owner || ''), (state || ''), number) WHERE owner IS NOT NULL;
CREATE INDEX chats_claimable ON chats (agent, since, number) WHERE NOT archived AND state = 'pending' AND worker IS NULL;
CREATE INDEX chats_fair ON chats (agent, capped_model, fair_key, since, number)
    WHERE NOT archived AND state = 'pending' AND worker IS NULL;
CREATE INDEX chats_unsettled ON chats (since, number) WHERE NOT archived AND state = 'interrupted' AND NOT settled;
CREATE INDEX chats_at_rest ON chats (archived, rested) WHERE rested IS NOT NULL;
CREATE INDEX chats_awaiting ON chats (awaits, number) WHERE awaits IS NOT NULL;
CREATE INDEX chats_by_action ON chats (action_of, since) WHERE action_of IS NOT NULL AND NOT archived;
CREATE INDEX chats_awaiting_subagents ON chats (number) WHERE awaits IN ('subagents', 'both');

--postgres:CREATE TABLE facts (
--postgres:    chat        bigint      PRIMARY KEY,
--postgres:    body        text        NOT NULL,   -- what the columns and the other tables do not hold
--postgres:    salt        text,                   -- of the digest of the chat's row that the last audit record holds
--postgres:    changed     bigint      NOT NULL DEFAULT 0 -- the number of the last commit, among those of all chats
--postgres:) WITH (fillfactor = 70);
--postgres:-- Here and not in `chats`: an index on what every commit changes would cost an entry in each of the many there.
--postgres:CREATE INDEX facts_by_change ON facts (changed);

-- Apart from `chats`, whose rows are rewritten with every transition: a system prompt may be long.
CREATE TABLE profiles (
    chat        bigint      PRIMARY KEY REFERENCES chats (number),
    body        text        NOT NULL,
    salt        text
);

CREATE TABLE messages (
    chat        bigint      NOT NULL REFERENCES chats (number),
    position    bigint      NOT NULL,
    id          text        NOT NULL,
    role        text        NOT NULL,
    turn        bigint      NOT NULL,
    step        bigint      NOT NULL,
    audience    text        NOT NULL,
    added       bigint      NOT NULL,   -- the version that appended it
    cut         bigint,                 -- the version that took it out of the history
    erased      boolean     NOT NULL,
    format      integer     NOT NULL,   -- the version of the body's form
    body        text        NOT NULL,
    salt        text,                   -- of the digest in the audit log; an erasure takes it away
    PRIMARY KEY (chat, position)
);
CREATE UNIQUE INDEX messages_by_id ON messages (chat, id);

CREATE TABLE boundaries (
    chat        bigint      NOT NULL REFERENCES chats (number),
    position    bigint      NOT NULL,   -- of the marker message
    reason      text        NOT NULL,
    step        bigint      NOT NULL,
    carried     bigint[]    NOT NULL,   -- positions
    cut         bigint,
    PRIMARY KEY (chat, position)
) WITHOUT ROWID;
CREATE UNIQUE INDEX boundaries_one_compaction_per_step ON boundaries (chat, step) WHERE reason = 'compaction';

CREATE TABLE calls (
    chat        bigint      NOT NULL REFERENCES chats (number),
    call_id     text        NOT NULL,
    step        bigint      NOT NULL,
    idx         integer     NOT NULL,
    status      text        NOT NULL,
    deadline    timestamptz,
    body        text        NOT NULL,
    PRIMARY KEY (chat, call_id)
) WITHOUT ROWID;
CREATE INDEX calls_by_deadline ON calls (deadline) WHERE deadline IS NOT NULL;

CREATE TABLE queue (
    chat        bigint      NOT NULL REFERENCES chats (number),
    id          text        NOT NULL,
    rank        bigint      NOT NULL,
    body        text        NOT NULL,
    salt        text,
    PRIMARY KEY (chat, id)
) WITHOUT ROWID;

CREATE TABLE receipts (
    chat        bigint      NOT NULL REFERENCES chats (number),
    client_id   text        NOT NULL,
    body        text        NOT NULL,
    PRIMARY KEY (chat, client_id)
) WITHOUT ROWID;

CREATE TABLE usage (
    chat        bigint      NOT NULL REFERENCES chats (number),
    version     bigint      NOT NULL,   -- the transition that booked it
    number      integer     NOT NULL,   -- among the writes of that transition
    body        text        NOT NULL,
    PRIMARY KEY (chat, version, number)
) WITHOUT ROWID;

CREATE TABLE audit (
    chat        bigint      NOT NULL REFERENCES chats (number),
    version     bigint      NOT NULL,
    body        text        NOT NULL,   -- without what the columns say, and without the hash before it
    digests     bytea       NOT NULL,   -- of the writes, 32 bytes each
--sqlite:    hash        bytea,                  -- of the record
--postgres:    hash        bytea       NOT NULL,   -- of the record
    aside       text,                   -- what belongs to the record and is no part of it: JSON
    PRIMARY KEY (chat, version)
) WITHOUT ROWID;

-- For people with a shell: SELECT * FROM audit_log WHERE chat_id = '...'
--sqlite:CREATE VIEW audit_log AS
--sqlite:    SELECT id AS chat_id, audit.version, lower(hex(hash)) AS hash, body, lower(hex(digests)) AS digests, aside
--sqlite:    FROM audit JOIN chats ON number = chat
--sqlite:    ORDER BY number, audit.version;

CREATE TABLE events (
    chat        bigint      NOT NULL REFERENCES chats (number),
    seq         bigint      NOT NULL,
    kind        text        NOT NULL,
--sqlite:    step        bigint,                 -- of part events: with `attempt`, finds what was shown
--sqlite:    attempt     bigint,
    position    bigint,                 -- of message events: the message, which the body leaves out
    body        text        NOT NULL,   -- without what the columns say
--sqlite:    at          timestamptz,
--postgres:    at          timestamptz NOT NULL,
    changed     bigint,                 -- the number of the commit; NULL for an imported chat, and between commits
    PRIMARY KEY (chat, seq)
) WITHOUT ROWID;
--sqlite:CREATE INDEX events_parts ON events (chat, step, attempt) WHERE kind = 'part';

--postgres:-- What was shown of work under way, numbered in one sequence with `events`. Only a crash of the server itself empties
--postgres:-- it: the numbers are skipped then, and the messages of finished steps hold the same text.
--postgres:CREATE UNLOGGED TABLE partial_events (
--postgres:    chat        bigint      NOT NULL,
--postgres:    seq         bigint      NOT NULL,
--postgres:    kind        text        NOT NULL,
--postgres:    step        bigint      NOT NULL,
--postgres:    attempt     bigint,                 -- of parts: with `step`, finds what was shown
--postgres:    at          timestamptz NOT NULL,
--postgres:    body        text        NOT NULL,
--postgres:    PRIMARY KEY (chat, seq)
--postgres:);
--postgres:CREATE INDEX partial_events_parts ON partial_events (chat, step, attempt) WHERE kind = 'part';

--postgres:-- Workers whose sessions hold a lock while they live: one without a lock has died.
--postgres:CREATE TABLE workers (
--postgres:    worker      text        PRIMARY KEY,
--postgres:    since       timestamptz NOT NULL
--postgres:);

-- Reports of workers: which agents each runs, and when it reported last.
CREATE TABLE worker_reports (
    worker      text        PRIMARY KEY,
    body        text        NOT NULL,
    seen        timestamptz NOT NULL
) WITHOUT ROWID;

-- Rows that could not be read, as they were stored, quarantined by a repair.
CREATE TABLE quarantine (
    chat        bigint      NOT NULL REFERENCES chats (number),
    version     bigint      NOT NULL,   -- the transition that repaired the chat
    origin      text        NOT NULL,   -- the table it stood in
    problem     text        NOT NULL,
    row         text        NOT NULL    -- JSON: its columns
);
CREATE INDEX quarantine_of_chat ON quarantine (chat);

-- Deleted chats: proof that they existed, without any of their content.
CREATE TABLE tombstones (
    id          text        PRIMARY KEY, -- the chat's
    number      bigint      NOT NULL,   -- its order of creation, for lists that started before
    created     timestamptz,
    deleted     timestamptz NOT NULL,
    actor       text        NOT NULL,   -- who deleted it
    records     bigint      NOT NULL,   -- how many its audit log had
    head        text,                   -- the hash of the last of them
    changed     bigint      NOT NULL,   -- the number of the deletion, among the commits of all chats
    whose       text        NOT NULL    -- SHA-256 of the id and the owner: proves an owner, and names none
) WITHOUT ROWID;
CREATE INDEX tombstones_by_change ON tombstones (changed);

--postgres:-- Numbers commits. One that is under way may have a lower number than others that are committed.
--postgres:CREATE SEQUENCE changes;
--sqlite:-- The number of the last commit. It is not derived from the other tables: after damage there a number could be given
--sqlite:-- twice, and consumers would skip the second commit.
--sqlite:CREATE TABLE changes (
--sqlite:    last_value  bigint      NOT NULL
--sqlite:);
--sqlite:INSERT INTO changes VALUES (0);
--sqlite:CREATE TRIGGER number_created AFTER INSERT ON chats BEGIN UPDATE changes SET last_value = last_value + 1; END;
--sqlite:CREATE TRIGGER number_changed AFTER UPDATE OF changed ON chats BEGIN UPDATE changes SET last_value = last_value + 1; END;
--sqlite:CREATE TRIGGER number_deleted AFTER INSERT ON tombstones BEGIN UPDATE changes SET last_value = last_value + 1; END;

-- Consumers of events of all chats: how far each is, and which process delivers for it.
CREATE TABLE consumers (
    name        text        PRIMARY KEY,
    position    bigint      NOT NULL,   -- the number of a commit: up to it every event was delivered, or set aside
    worker      text,                   -- these four are the lease
    token       bigint      NOT NULL,
    since       timestamptz,            -- when it was given or prolonged
    expires     timestamptz
) WITHOUT ROWID;

-- Events that a consumer could not handle.
CREATE TABLE undelivered (
    consumer    text        NOT NULL,
    chat        bigint      NOT NULL REFERENCES chats (number),
    seq         bigint      NOT NULL,
    error       text        NOT NULL,
    at          timestamptz NOT NULL,   -- of the last try
    due         boolean     NOT NULL,   -- whether it is to be delivered again
    PRIMARY KEY (consumer, chat, seq)
) WITHOUT ROWID;

-- Which chat holds which blob, and the blobs themselves unless they are stored elsewhere.
-- No foreign key: a chat that is being imported holds its blobs before it is there.
CREATE TABLE chat_files (
    chat_id     text        NOT NULL,
    digest      text        NOT NULL,
    size        bigint      NOT NULL,
    sent        boolean     NOT NULL,   -- whether a message refers to it, or did
    at          timestamptz NOT NULL,   -- when it was put last
    PRIMARY KEY (chat_id, digest)
) WITHOUT ROWID;
CREATE INDEX chat_files_by_digest ON chat_files (digest);
CREATE INDEX chat_files_unsent ON chat_files (at) WHERE NOT sent;

-- What the principals of services may still send, all replicas together.
CREATE TABLE rates (
    name        text        PRIMARY KEY, -- the principal's
    allowance   double precision NOT NULL, -- requests
    at          timestamptz NOT NULL    -- when it was so many
) WITHOUT ROWID;
CREATE INDEX rates_by_time ON rates (at);

-- Blobs that a chat has let go of: whether another holds them is looked up before they are removed.
CREATE TABLE unreferenced_files (
--sqlite:    number      integer     PRIMARY KEY AUTOINCREMENT,
--postgres:    number      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest      text        NOT NULL
);

-- The file store that holds the blobs, by its own name: no other may be asked to remove them.
CREATE TABLE file_store (
    one         integer     PRIMARY KEY CHECK (one = 1),
    name        text        NOT NULL
);

CREATE TABLE blobs (
    digest      text        PRIMARY KEY, -- SHA-256 of the bytes
    place       text        NOT NULL,   -- where its pieces are
    size        bigint      NOT NULL
) WITHOUT ROWID;

CREATE TABLE blob_pieces (
    place       text        NOT NULL,
    number      bigint      NOT NULL,   -- from 0 on
    data        bytea       NOT NULL,
    PRIMARY KEY (place, number)
);
--postgres:ALTER TABLE blob_pieces ALTER COLUMN data SET STORAGE EXTERNAL;

-- Places whose pieces are no blob: not yet, or no longer.
CREATE TABLE blob_remains (
    place       text        PRIMARY KEY,
    at          timestamptz NOT NULL    -- when the last piece came
) WITHOUT ROWID;

-- What owners, or chats, may spend in a period and have spent: changed with the commits that begin and end model calls.
CREATE TABLE budgets (
    key         text        PRIMARY KEY, -- `owner:` or `chat:`, and its name or id
    body        text        NOT NULL
) WITHOUT ROWID;
