-- Everything turnwise keeps about chats. Bodies are JSON, kept as text: byte for byte what was written.
-- Every row is written by the statement that raises its chat's version or event number. A foreign key would find
-- nothing there, and cost a look-up for each row.

-- A row of `chats` is small and often rewritten: its indexes leave out what changes with every event and renewal.
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
    calls       text[]      NOT NULL,   -- the ids of the current step's calls
    worker      text,                   -- these three are the lease
    token       bigint,
    expires     timestamptz,
    rested      timestamptz,            -- when a resting chat was changed last; NULL while a chat works
    agent       text        NOT NULL DEFAULT 'default',
    needs       text[]      NOT NULL DEFAULT '{}', -- the tools of the open local calls
    wake_at     timestamptz,            -- when the first scheduled message is due
    awaits      text,                   -- who answers in `requires_action`: `client`, `subagents` or `both`
    action_of   text,                   -- whose action is needed there: see `ActionOf`
    fair_key    text        COLLATE "C" NOT NULL DEFAULT '', -- the key by which claims go round
    capped_model text       COLLATE "C" NOT NULL DEFAULT ''  -- provider and model, if a setting caps each model
) WITH (fillfactor = 70);
CREATE INDEX chats_to_wake ON chats (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX chats_of_owner ON chats (owner, number) WHERE owner IS NOT NULL;
-- Beyond the worker: what caps count.
CREATE INDEX chats_leased ON chats (worker, fair_key, agent, capped_model) WHERE worker IS NOT NULL;
-- Owner and state are spelled as sums so that only lists find these two indexes: claims and sweeps, which ask for states,
-- too, have others, and the planner would rather sort all chats of an owner, however many these are.
-- The first also counts the chats of each state, without a look at the rows.
CREATE INDEX chats_of_state ON chats ((state || ''), number) INCLUDE (state, archived);
CREATE INDEX chats_of_owner_in_state ON chats ((owner || ''), (state || ''), number) WHERE owner IS NOT NULL;
CREATE INDEX chats_claimable ON chats (agent, since, number)
    WHERE NOT archived AND state = 'pending' AND worker IS NULL;
CREATE INDEX chats_fair ON chats (agent, capped_model, fair_key, since, number)
    WHERE NOT archived AND state = 'pending' AND worker IS NULL;
CREATE INDEX chats_unsettled ON chats (since, number) WHERE NOT archived AND state = 'interrupted' AND NOT settled;
CREATE INDEX chats_at_rest ON chats (archived, rested) WHERE rested IS NOT NULL;
CREATE INDEX chats_awaiting ON chats (awaits, number) WHERE awaits IS NOT NULL;
CREATE INDEX chats_by_action ON chats (action_of, since) WHERE action_of IS NOT NULL AND NOT archived;
CREATE INDEX chats_awaiting_subagents ON chats (number) WHERE awaits IN ('subagents', 'both');

CREATE TABLE facts (
    chat        bigint      PRIMARY KEY,
    body        text        NOT NULL,   -- what the columns and the other tables do not hold
    salt        text,                   -- of the digest of the chat's row that the last audit record holds
    changed     bigint      NOT NULL DEFAULT 0 -- the number of the last commit, among those of all chats
) WITH (fillfactor = 70);
-- Here and not in `chats`: an index on what every commit changes would cost an entry in each of the many there.
CREATE INDEX facts_by_change ON facts (changed);

-- Numbers commits. One that is under way may have a lower number than others that are committed.
CREATE SEQUENCE changes;

CREATE TABLE profiles (
    chat        bigint      PRIMARY KEY,
    body        text        NOT NULL,
    salt        text
);

CREATE TABLE messages (
    chat        bigint      NOT NULL,
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
    PRIMARY KEY (chat, position),
    UNIQUE (chat, id)
);

CREATE TABLE boundaries (
    chat        bigint      NOT NULL,
    position    bigint      NOT NULL,   -- of the marker message
    reason      text        NOT NULL,
    step        bigint      NOT NULL,
    carried     bigint[]    NOT NULL,   -- positions
    cut         bigint,
    PRIMARY KEY (chat, position)
);
CREATE UNIQUE INDEX boundaries_one_compaction_per_step ON boundaries (chat, step) WHERE reason = 'compaction';

CREATE TABLE calls (
    chat        bigint      NOT NULL,
    call_id     text        NOT NULL,
    step        bigint      NOT NULL,
    idx         integer     NOT NULL,
    status      text        NOT NULL,
    deadline    timestamptz,
    body        text        NOT NULL,
    PRIMARY KEY (chat, call_id)
);
CREATE INDEX calls_by_deadline ON calls (deadline) WHERE deadline IS NOT NULL;

CREATE TABLE queue (
    chat        bigint      NOT NULL,
    id          text        NOT NULL,
    rank        bigint      NOT NULL,
    body        text        NOT NULL,
    salt        text,
    PRIMARY KEY (chat, id)
);

CREATE TABLE receipts (
    chat        bigint      NOT NULL,
    client_id   text        NOT NULL,
    body        text        NOT NULL,
    PRIMARY KEY (chat, client_id)
);

CREATE TABLE usage (
    chat        bigint      NOT NULL,
    version     bigint      NOT NULL,   -- the transition that booked it
    number      integer     NOT NULL,   -- among the writes of that transition
    body        text        NOT NULL,
    PRIMARY KEY (chat, version, number)
);

CREATE TABLE audit (
    chat        bigint      NOT NULL,
    version     bigint      NOT NULL,
    hash        bytea       NOT NULL,   -- of the record
    body        text        NOT NULL,   -- without what the columns say, and without the hash before it
    digests     bytea       NOT NULL,   -- of the writes, 32 bytes each
    aside       text,                   -- what belongs to the record and is no part of it: JSON
    PRIMARY KEY (chat, version)
);

CREATE TABLE events (
    chat        bigint      NOT NULL,
    seq         bigint      NOT NULL,
    kind        text        NOT NULL,
    at          timestamptz NOT NULL,
    position    bigint,                 -- of message events: the message, which the body leaves out
    body        text        NOT NULL,   -- without what the columns say
    changed     bigint,                 -- the number of the commit; NULL for those of an imported chat
    PRIMARY KEY (chat, seq)
);

-- What was shown of work under way, numbered in one sequence with `events`. Only a crash of the server itself empties
-- it: the numbers are skipped then, and the messages of finished steps hold what was said.
CREATE UNLOGGED TABLE partial_events (
    chat        bigint      NOT NULL,
    seq         bigint      NOT NULL,
    kind        text        NOT NULL,
    step        bigint      NOT NULL,
    attempt     bigint,                 -- of parts: with `step`, finds what was shown
    at          timestamptz NOT NULL,
    body        text        NOT NULL,
    PRIMARY KEY (chat, seq)
);
CREATE INDEX partial_events_parts ON partial_events (chat, step, attempt) WHERE kind = 'part';

-- Workers whose sessions hold a lock while they live: one without a lock has died.
CREATE TABLE workers (
    worker      text        PRIMARY KEY,
    since       timestamptz NOT NULL
);

-- What the workers of the store say of themselves: which agents they run, and when they said so last.
CREATE TABLE worker_reports (
    worker      text        PRIMARY KEY,
    body        text        NOT NULL,
    seen        timestamptz NOT NULL
);

-- Rows that could not be read, as they were stored, quarantined by a repair.
CREATE TABLE quarantine (
    chat        bigint      NOT NULL,
    version     bigint      NOT NULL,   -- the transition that repaired the chat
    origin      text        NOT NULL,   -- the table it stood in
    problem     text        NOT NULL,
    row         text        NOT NULL    -- JSON: its columns
);
CREATE INDEX quarantine_of_chat ON quarantine (chat);

-- What is left of deleted chats: proof that they were there, and nothing that was said in them.
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
);
CREATE INDEX tombstones_by_change ON tombstones (changed);

-- Consumers of events of all chats: how far each is, and which process delivers for it.
CREATE TABLE consumers (
    name        text        PRIMARY KEY,
    position    bigint      NOT NULL,   -- the number of a commit: up to it every event was delivered, or set aside
    worker      text,                   -- these four are the lease
    token       bigint      NOT NULL,
    since       timestamptz,            -- when it was given or prolonged
    expires     timestamptz
);

-- Events that a consumer could not handle.
CREATE TABLE undelivered (
    consumer    text        NOT NULL,
    chat        bigint      NOT NULL,
    seq         bigint      NOT NULL,
    error       text        NOT NULL,
    at          timestamptz NOT NULL,   -- of the last try
    due         boolean     NOT NULL,   -- whether it is to be delivered again
    PRIMARY KEY (consumer, chat, seq)
);

-- Which chat holds which blob, and the blobs themselves unless they are kept elsewhere.
CREATE TABLE chat_files (
    chat_id     text        NOT NULL,
    digest      text        NOT NULL,
    size        bigint      NOT NULL,
    sent        boolean     NOT NULL,   -- whether a message refers to it, or did
    at          timestamptz NOT NULL,   -- when it was put last
    PRIMARY KEY (chat_id, digest)
);
CREATE INDEX chat_files_by_digest ON chat_files (digest);
CREATE INDEX chat_files_unsent ON chat_files (at) WHERE NOT sent;

-- What the principals of services may still send, all replicas together.
CREATE TABLE rates (
    name        text        PRIMARY KEY, -- the principal's
    allowance   double precision NOT NULL, -- requests
    at          timestamptz NOT NULL    -- when it was so many
);
CREATE INDEX rates_by_time ON rates (at);

-- Blobs that a chat has let go of: whether another holds them is looked up before they are removed.
CREATE TABLE unreferenced_files (
    number      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest      text        NOT NULL
);

-- The file store that keeps the blobs, by its own name: no other may be asked to remove them.
CREATE TABLE file_store (
    one         integer     PRIMARY KEY CHECK (one = 1),
    name        text        NOT NULL
);

CREATE TABLE blobs (
    digest      text        PRIMARY KEY, -- SHA-256 of the bytes
    place       text        NOT NULL,   -- where its pieces are
    size        bigint      NOT NULL
);

CREATE TABLE blob_pieces (
    place       text        NOT NULL,
    number      bigint      NOT NULL,   -- from 0 on
    data        bytea       NOT NULL,
    PRIMARY KEY (place, number)
);
ALTER TABLE blob_pieces ALTER COLUMN data SET STORAGE EXTERNAL;

-- Places whose pieces are no blob: not yet, or no longer.
CREATE TABLE blob_remains (
    place       text        PRIMARY KEY,
    at          timestamptz NOT NULL    -- when the last piece came
);

-- What owners, or chats, may spend in a period and have spent: changed with the commits that begin and end model calls.
CREATE TABLE budgets (
    key         text    PRIMARY KEY,        -- `owner:` or `chat:`, and its name or id
    body        text    NOT NULL
);
