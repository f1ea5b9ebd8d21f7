-- What a poll, a listing or a sweep needs is one small row. The result moves out of it, and what a policy goes by (method
-- and name of the tool) moves in. Encoded parts are blobs: no text has to be decoded twice, and they may be encrypted.
ALTER TABLE tasks RENAME TO old_tasks;
ALTER TABLE requests RENAME TO old_requests;
ALTER TABLE journal RENAME TO old_journal;
ALTER TABLE heartbeats RENAME TO old_heartbeats;

CREATE TABLE tasks (
    key             INTEGER PRIMARY KEY,
    id              TEXT NOT NULL UNIQUE,
    version         INTEGER NOT NULL,
    namespace       TEXT NOT NULL,
    owner           TEXT,
    idempotency_key TEXT,
    status          TEXT NOT NULL,
    worker          TEXT,
    created         INTEGER NOT NULL,  -- microseconds since 1970, as all instants
    ready           INTEGER,           -- from when on it can be started; NULL if it is claimed, has ended, or waits
    expires         INTEGER,           -- when it may be removed; NULL while it runs, and if it is kept for good
    seq             INTEGER NOT NULL,  -- the batch that last changed it, see `meta`
    state           BLOB NOT NULL
);

CREATE TABLE requests (
    task    INTEGER PRIMARY KEY,
    request BLOB NOT NULL
);

CREATE TABLE outcomes (
    task INTEGER PRIMARY KEY,
    body BLOB NOT NULL,
    meta BLOB
);

CREATE TABLE journal (
    n     INTEGER PRIMARY KEY,  -- the order of writing
    task  INTEGER NOT NULL,
    kind  TEXT NOT NULL,
    key   TEXT NOT NULL,
    value BLOB NOT NULL
);

CREATE TABLE heartbeats (
    worker    TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    beats     INTEGER NOT NULL
) WITHOUT ROWID;

-- The functions are in `old_rows.py`. What they cannot read they leave as it is: it is one unreadable task. They get
-- bytes, because text that is not valid could not be handed to them.
INSERT INTO tasks
SELECT t.key, t.id, t.version, t.namespace, t.owner, NULL, t.status, t.holder, t.created, t.ready, t.expires, t.seq,
    upgraded_state(CAST(t.state AS BLOB), CAST(r.request AS BLOB))
FROM old_tasks t LEFT JOIN old_requests r ON r.task = t.key;

INSERT INTO outcomes
SELECT key, outcome_body(CAST(state AS BLOB)), outcome_meta(CAST(state AS BLOB)) FROM old_tasks
WHERE status IN ('completed', 'failed') AND outcome_body(CAST(state AS BLOB)) IS NOT NULL;

INSERT INTO requests SELECT task, CAST(request AS BLOB) FROM old_requests;
INSERT INTO journal SELECT n, task, kind, key, CAST(value AS BLOB) FROM old_journal;
INSERT INTO heartbeats SELECT holder, namespace, beats FROM old_heartbeats;

DROP TABLE old_tasks;
DROP TABLE old_requests;
DROP TABLE old_journal;
DROP TABLE old_heartbeats;

-- One index for each way of listing, with all that it filters by and sorts by: what is not on the page is not looked at,
-- however many tasks there are. Columns that never change cost a write only when a task is made.
CREATE INDEX tasks_created ON tasks (namespace, created, id);
CREATE INDEX tasks_owner ON tasks (namespace, owner, created, id);
CREATE INDEX tasks_status ON tasks (namespace, status, created, id);
CREATE INDEX tasks_owner_status ON tasks (namespace, owner, status, created, id);
CREATE INDEX tasks_seq ON tasks (seq);

-- Sweeps read ids from an index alone, in the order of the index, and never a row. The partial ones hold only the few
-- tasks that are queued, parked, claimed or finished. `ready` is this number for tasks that can be started at any time,
-- see `queries.py`.
CREATE INDEX tasks_queued ON tasks (namespace, ready, created, id) WHERE ready = -62135596800000000;
CREATE INDEX tasks_due ON tasks (namespace, ready, id) WHERE ready > -62135596800000000;
CREATE INDEX tasks_claimed ON tasks (worker, created, id, namespace) WHERE worker IS NOT NULL;
CREATE INDEX tasks_expires ON tasks (expires, created, id, version) WHERE expires IS NOT NULL;
CREATE INDEX journal_task ON journal (task);

-- NULLs differ from each other in a unique index. 0 is no owner, because owners are text.
CREATE UNIQUE INDEX tasks_key ON tasks (idempotency_key, namespace, ifnull(owner, 0)) WHERE idempotency_key IS NOT NULL;

-- A trigger, so that a task never leaves parts behind, whoever deletes it.
CREATE TRIGGER tasks_deleted AFTER DELETE ON tasks BEGIN
    DELETE FROM requests WHERE task = old.key;
    DELETE FROM outcomes WHERE task = old.key;
    DELETE FROM journal WHERE task = old.key;
END;
