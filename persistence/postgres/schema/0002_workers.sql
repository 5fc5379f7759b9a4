-- Workers that have let be known that they live, by a lock of their session's. Who is in here without one has died.
CREATE TABLE workers (
    worker      text        PRIMARY KEY,
    since       timestamptz NOT NULL
);
