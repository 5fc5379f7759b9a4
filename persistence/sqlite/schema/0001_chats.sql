-- Everything turnwise keeps about chats. Times are microseconds since 1970, UTC; bodies are JSON.

CREATE TABLE chats (
    number      INTEGER PRIMARY KEY,        -- order of creation
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
    facts       TEXT    NOT NULL            -- what the columns and the other tables do not hold
);
CREATE INDEX chats_of_owner ON chats (owner, number) WHERE owner IS NOT NULL;
CREATE INDEX chats_claimable ON chats (since, number)
    WHERE archived = 0 AND (state = 'pending' OR (state = 'interrupted' AND settled = 0));
CREATE INDEX chats_stray ON chats (number)
    WHERE state NOT IN ('waiting', 'pending', 'streaming', 'executing_tools', 'compacting', 'requires_action',
                        'interrupted', 'error');

-- Apart from `chats`, whose rows are rewritten with every transition: a system prompt may be long.
CREATE TABLE profiles (
    chat_id     TEXT    PRIMARY KEY REFERENCES chats (id),
    body        TEXT    NOT NULL
) WITHOUT ROWID;

CREATE TABLE messages (
    chat_id     TEXT    NOT NULL REFERENCES chats (id),
    position    INTEGER NOT NULL,
    id          TEXT    NOT NULL,
    role        TEXT    NOT NULL,
    turn        INTEGER NOT NULL,
    step        INTEGER NOT NULL,
    audience    TEXT    NOT NULL,
    added       INTEGER NOT NULL,           -- the version that appended it
    cut         INTEGER,                    -- the version that took it out of the history
    erased      INTEGER NOT NULL,
    digest      TEXT    NOT NULL,           -- of what was said; an erasure leaves it
    format      INTEGER NOT NULL,           -- the version of the body's form
    body        TEXT    NOT NULL,
    PRIMARY KEY (chat_id, position)
);
CREATE UNIQUE INDEX messages_by_id ON messages (chat_id, id);

CREATE TABLE boundaries (
    chat_id     TEXT    NOT NULL REFERENCES chats (id),
    position    INTEGER NOT NULL,           -- of the marker message
    reason      TEXT    NOT NULL,
    step        INTEGER NOT NULL,
    carried     TEXT    NOT NULL,           -- positions, as a JSON array
    cut         INTEGER,
    PRIMARY KEY (chat_id, position)
) WITHOUT ROWID;
CREATE UNIQUE INDEX boundaries_one_compaction_per_step ON boundaries (chat_id, step) WHERE reason = 'compaction';

CREATE TABLE calls (
    chat_id     TEXT    NOT NULL REFERENCES chats (id),
    call_id     TEXT    NOT NULL,
    step        INTEGER NOT NULL,
    idx         INTEGER NOT NULL,
    status      TEXT    NOT NULL,
    deadline    INTEGER,
    body        TEXT    NOT NULL,
    PRIMARY KEY (chat_id, call_id)
);
CREATE INDEX calls_by_deadline ON calls (deadline) WHERE deadline IS NOT NULL;

CREATE TABLE queue (
    chat_id     TEXT    NOT NULL REFERENCES chats (id),
    id          TEXT    NOT NULL,
    rank        INTEGER NOT NULL,
    body        TEXT    NOT NULL,
    PRIMARY KEY (chat_id, id)
) WITHOUT ROWID;

CREATE TABLE leases (
    chat_id     TEXT    PRIMARY KEY REFERENCES chats (id),
    worker      TEXT    NOT NULL,
    token       INTEGER NOT NULL,
    expires     INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX leases_of_worker ON leases (worker);
CREATE INDEX leases_by_expiry ON leases (expires);

CREATE TABLE receipts (
    chat_id     TEXT    NOT NULL REFERENCES chats (id),
    client_id   TEXT    NOT NULL,
    body        TEXT    NOT NULL,
    PRIMARY KEY (chat_id, client_id)
) WITHOUT ROWID;

CREATE TABLE usage (
    chat_id     TEXT    NOT NULL REFERENCES chats (id),
    version     INTEGER NOT NULL,           -- the transition that booked it
    number      INTEGER NOT NULL,           -- among the writes of that transition
    body        TEXT    NOT NULL,
    PRIMARY KEY (chat_id, version, number)
);

CREATE TABLE audit (
    chat_id     TEXT    NOT NULL REFERENCES chats (id),
    version     INTEGER NOT NULL,
    body        TEXT    NOT NULL,
    PRIMARY KEY (chat_id, version)
);

CREATE TABLE events (
    chat_id     TEXT    NOT NULL REFERENCES chats (id),
    seq         INTEGER NOT NULL,
    kind        TEXT    NOT NULL,
    step        INTEGER,                    -- of part events: with `attempt`, finds what was shown
    attempt     INTEGER,
    position    INTEGER,                    -- of message events: the message, which the body leaves out
    body        TEXT    NOT NULL,
    PRIMARY KEY (chat_id, seq)
);
CREATE INDEX events_parts ON events (chat_id, step, attempt) WHERE kind = 'part';
