-- Everything turnwise keeps about chats. Bodies are JSON, kept as text: byte for byte what was written.
-- Every row is written by the statement that raises its chat's version or event number. A foreign key would find
-- nothing there, and cost a look-up for each row.

-- A row of `chats` is small and often rewritten: its indexes leave out what changes with every event and renewal.
CREATE TABLE chats (
    number      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- order of creation
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
    expires     timestamptz
) WITH (fillfactor = 70);
CREATE INDEX chats_of_owner ON chats (owner, number) WHERE owner IS NOT NULL;
CREATE INDEX chats_leased ON chats (worker) WHERE worker IS NOT NULL;
CREATE INDEX chats_claimable ON chats (since, number)
    WHERE NOT archived AND (state = 'pending' OR (state = 'interrupted' AND NOT settled)) AND worker IS NULL;
CREATE INDEX chats_stray ON chats (number)
    WHERE state NOT IN ('waiting', 'pending', 'streaming', 'executing_tools', 'compacting', 'requires_action',
                        'interrupted', 'error');

CREATE TABLE facts (
    chat_id     text        PRIMARY KEY,
    body        text        NOT NULL    -- what the columns and the other tables do not hold
) WITH (fillfactor = 70);

CREATE TABLE profiles (
    chat_id     text        PRIMARY KEY,
    body        text        NOT NULL
);

CREATE TABLE messages (
    chat_id     text        NOT NULL,
    position    bigint      NOT NULL,
    id          text        NOT NULL,
    role        text        NOT NULL,
    turn        bigint      NOT NULL,
    step        bigint      NOT NULL,
    audience    text        NOT NULL,
    added       bigint      NOT NULL,   -- the version that appended it
    cut         bigint,                 -- the version that took it out of the history
    erased      boolean     NOT NULL,
    digest      text        NOT NULL,   -- of what was said; an erasure leaves it
    format      integer     NOT NULL,   -- the version of the body's form
    body        text        NOT NULL,
    PRIMARY KEY (chat_id, position),
    UNIQUE (chat_id, id)
);

CREATE TABLE boundaries (
    chat_id     text        NOT NULL,
    position    bigint      NOT NULL,   -- of the marker message
    reason      text        NOT NULL,
    step        bigint      NOT NULL,
    carried     bigint[]    NOT NULL,   -- positions
    cut         bigint,
    PRIMARY KEY (chat_id, position)
);
CREATE UNIQUE INDEX boundaries_one_compaction_per_step ON boundaries (chat_id, step) WHERE reason = 'compaction';

CREATE TABLE calls (
    chat_id     text        NOT NULL,
    call_id     text        NOT NULL,
    step        bigint      NOT NULL,
    idx         integer     NOT NULL,
    status      text        NOT NULL,
    deadline    timestamptz,
    body        text        NOT NULL,
    PRIMARY KEY (chat_id, call_id)
);
CREATE INDEX calls_by_deadline ON calls (deadline) WHERE deadline IS NOT NULL;

CREATE TABLE queue (
    chat_id     text        NOT NULL,
    id          text        NOT NULL,
    rank        bigint      NOT NULL,
    body        text        NOT NULL,
    PRIMARY KEY (chat_id, id)
);

CREATE TABLE receipts (
    chat_id     text        NOT NULL,
    client_id   text        NOT NULL,
    body        text        NOT NULL,
    PRIMARY KEY (chat_id, client_id)
);

CREATE TABLE usage (
    chat_id     text        NOT NULL,
    version     bigint      NOT NULL,   -- the transition that booked it
    number      integer     NOT NULL,   -- among the writes of that transition
    body        text        NOT NULL,
    PRIMARY KEY (chat_id, version, number)
);

CREATE TABLE audit (
    chat_id     text        NOT NULL,
    version     bigint      NOT NULL,
    body        text        NOT NULL,
    PRIMARY KEY (chat_id, version)
);

CREATE TABLE events (
    chat_id     text        NOT NULL,
    seq         bigint      NOT NULL,
    kind        text        NOT NULL,
    at          timestamptz NOT NULL,
    body        text        NOT NULL,   -- without what the columns hold
    PRIMARY KEY (chat_id, seq)
);

-- What was shown of work under way, numbered in one sequence with `events`. Only a crash of the server itself empties
-- it: the numbers are skipped then, and the messages of finished steps hold what was said.
CREATE UNLOGGED TABLE partial_events (
    chat_id     text        NOT NULL,
    seq         bigint      NOT NULL,
    kind        text        NOT NULL,
    step        bigint      NOT NULL,
    attempt     bigint,                 -- of parts: with `step`, finds what was shown
    at          timestamptz NOT NULL,
    body        text        NOT NULL,
    PRIMARY KEY (chat_id, seq)
);
CREATE INDEX partial_events_parts ON partial_events (chat_id, step, attempt) WHERE kind = 'part';
