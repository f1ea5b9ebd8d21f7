-- One small row per task: what the verbs ask by, and the state. Measured on 20,000 rows: a rowid table writes twice as
-- fast as WITHOUT ROWID here, because the rows are long and the ids are random.
CREATE TABLE tasks (
    key             INTEGER PRIMARY KEY,
    id              TEXT NOT NULL UNIQUE,
    version         INTEGER NOT NULL,
    namespace       TEXT NOT NULL,
    owner           BLOB NOT NULL,     -- '=' and the owner; empty for no owner. Bytes, which Python sorts as SQLite does
    session         TEXT,
    parent          TEXT,
    idempotency_key TEXT,
    key_outlives    INTEGER,           -- microseconds for which the key outlives the task; NULL if it does not
    queue           TEXT NOT NULL,
    rank            INTEGER NOT NULL,  -- the priority with its sign turned: what comes first is smaller
    tool            BLOB NOT NULL,     -- a digest of method and name: compared and never read, as the state may be encrypted
    status          TEXT NOT NULL,
    worker          TEXT,
    hand            INTEGER,           -- queued: 0 waiting, 1 handed out; claimed: 2 at work, 3 resuming; otherwise NULL
    created         INTEGER NOT NULL,  -- microseconds since 1970, as all instants
    since           INTEGER,           -- since when it is queued; NULL if it is not
    ready           INTEGER,           -- from when on it can be started; NULL if it is claimed, has ended, or waits
    expires         INTEGER,           -- when it may be removed; NULL while it runs, and if it is kept for good
    seq             INTEGER NOT NULL,  -- the batch that last changed it, see `meta`
    state           BLOB NOT NULL
);

-- Apart from the row, because an UPDATE writes the whole row again: a progress report on a call with a megabyte of
-- arguments would cost a megabyte.
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
CREATE INDEX journal_task ON journal (task);

CREATE TABLE heartbeats (
    worker    TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    beats     INTEGER NOT NULL
) WITHOUT ROWID;

-- Small values that a server keeps beside its tasks. They may be secret, so they are encoded like parts of a task.
CREATE TABLE notes (
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    value     BLOB NOT NULL,
    PRIMARY KEY (namespace, name)
);

-- One row. `seq` goes up by one with each batch of writes, so that a listener can ask what changed since. `release` is
-- the release that last changed the schema: an older one names it when it has to refuse the file. `compatible_from` is
-- the first schema whose releases may use the file as it is (`mcp_tasks.stores.migrations`).
CREATE TABLE meta (
    seq             INTEGER NOT NULL,
    release         TEXT NOT NULL,
    compatible_from INTEGER NOT NULL
);
INSERT INTO meta (seq, release, compatible_from) VALUES (0, '', 0);

-- Bytes of requests, outcomes and journals of each owner. Triggers count them in the transaction that writes what they
-- count: the count cannot drift, also where another program writes. There is one writer at a time anyway, so no writer
-- waits for the count of another.
CREATE TABLE stored (
    namespace TEXT NOT NULL,
    owner     BLOB NOT NULL,
    bytes     INTEGER NOT NULL,
    PRIMARY KEY (namespace, owner)
) WITHOUT ROWID;

-- Keys that are taken though their task is gone, and until when.
CREATE TABLE spent_keys (
    idempotency_key TEXT NOT NULL,
    namespace       TEXT NOT NULL,
    owner           BLOB NOT NULL,
    until           INTEGER NOT NULL,
    PRIMARY KEY (idempotency_key, namespace, owner)
) WITHOUT ROWID;
CREATE INDEX spent_keys_until ON spent_keys (until);

-- The keys of the children of open tasks, and which task each stands for: they stay when the child is gone.
CREATE TABLE child_keys (
    parent          TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    namespace       TEXT NOT NULL,
    owner           BLOB NOT NULL,
    task            TEXT NOT NULL,
    PRIMARY KEY (parent, idempotency_key, namespace, owner)
) WITHOUT ROWID;

CREATE UNIQUE INDEX tasks_key ON tasks (idempotency_key, namespace, owner) WHERE idempotency_key IS NOT NULL;

-- One index for each way of listing, with all that it filters by and sorts by: what is not on the page is not looked at,
-- however many tasks there are. Columns that never change cost a write only when a task is made. The tasks of a session
-- or a parent in one status are few: no index for those.
CREATE INDEX tasks_created ON tasks (namespace, created, id);
CREATE INDEX tasks_owner ON tasks (namespace, owner, created, id);
CREATE INDEX tasks_status ON tasks (namespace, status, created, id);
CREATE INDEX tasks_owner_status ON tasks (namespace, owner, status, created, id);
CREATE INDEX tasks_session ON tasks (namespace, session, created, id) WHERE session IS NOT NULL;
CREATE INDEX tasks_parent ON tasks (namespace, parent, created, id) WHERE parent IS NOT NULL;
CREATE INDEX tasks_seq ON tasks (seq);

-- Sweeps read ids from an index alone, in the order of the index, and never a row. The partial ones hold only the few
-- tasks that are queued, parked, claimed or finished. The number is `ready` of a task that can be started at any time,
-- the earliest instant there is: in the backlog what is queued comes first, and behind it what sleeps by when it wakes.
CREATE INDEX tasks_queued ON tasks (namespace, hand, created, id) WHERE hand < 2;
CREATE INDEX tasks_due ON tasks (namespace, ready, id) WHERE ready > -62135596800000000;
CREATE INDEX tasks_claimed ON tasks (worker, created, id, namespace) WHERE worker IS NOT NULL;
CREATE INDEX tasks_expires ON tasks (expires, created, id, version) WHERE expires IS NOT NULL;
CREATE INDEX tasks_backlog ON tasks (namespace, queue, ready, since) WHERE ready IS NOT NULL;

-- Ordered so that from each entry one can go to the next queue, priority, owner or tool, and look at nothing in between.
CREATE INDEX tasks_waiting ON tasks (namespace, queue, rank, owner, tool, created, id, hand) WHERE hand = 0;

-- For counting: what is handed out of a queue and a tool, what is at work or resuming, and what is any of these.
CREATE INDEX tasks_handed ON tasks (namespace, owner, queue, tool, hand) WHERE hand = 1;
CREATE INDEX tasks_owner_at_work ON tasks (namespace, owner, hand) WHERE hand > 1;
CREATE INDEX tasks_tool_hand ON tasks (namespace, tool, hand) WHERE hand > 0;

CREATE TRIGGER requests_inserted AFTER INSERT ON requests BEGIN
    INSERT INTO stored SELECT namespace, owner, length(new.request) FROM tasks WHERE key = new.task
    ON CONFLICT (namespace, owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER requests_updated AFTER UPDATE OF request ON requests BEGIN
    UPDATE stored SET bytes = bytes + length(new.request) - length(old.request)
    WHERE (namespace, owner) = (SELECT namespace, owner FROM tasks WHERE key = new.task);
END;

-- Before: an outcome may take the place of another.
CREATE TRIGGER outcomes_inserted BEFORE INSERT ON outcomes BEGIN
    INSERT INTO stored
    SELECT namespace, owner, length(new.body) + ifnull(length(new.meta), 0)
        - ifnull((SELECT length(body) + ifnull(length(meta), 0) FROM outcomes WHERE task = new.task), 0)
    FROM tasks WHERE key = new.task
    ON CONFLICT (namespace, owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER outcomes_updated AFTER UPDATE OF body, meta ON outcomes BEGIN
    UPDATE stored
    SET bytes = bytes + length(new.body) + ifnull(length(new.meta), 0) - length(old.body) - ifnull(length(old.meta), 0)
    WHERE (namespace, owner) = (SELECT namespace, owner FROM tasks WHERE key = new.task);
END;

CREATE TRIGGER journal_inserted AFTER INSERT ON journal BEGIN
    INSERT INTO stored SELECT namespace, owner, length(new.value) FROM tasks WHERE key = new.task
    ON CONFLICT (namespace, owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER journal_updated AFTER UPDATE OF value ON journal BEGIN
    UPDATE stored SET bytes = bytes + length(new.value) - length(old.value)
    WHERE (namespace, owner) = (SELECT namespace, owner FROM tasks WHERE key = new.task);
END;

-- No deletion of a task leaves parts behind; only its key may outlive it. `delete` corrects from when the
-- time of that key runs, see `writes.py`.
CREATE TRIGGER tasks_deleted AFTER DELETE ON tasks BEGIN
    UPDATE stored SET bytes = bytes
        - ifnull((SELECT length(request) FROM requests WHERE task = old.key), 0)
        - ifnull((SELECT length(body) + ifnull(length(meta), 0) FROM outcomes WHERE task = old.key), 0)
        - ifnull((SELECT sum(length(value)) FROM journal WHERE task = old.key), 0)
    WHERE namespace = old.namespace AND owner = old.owner;
    DELETE FROM stored WHERE namespace = old.namespace AND owner = old.owner AND bytes <= 0;
    INSERT INTO spent_keys
    SELECT old.idempotency_key, old.namespace, old.owner, ifnull(old.expires, old.created) + old.key_outlives
    WHERE old.key_outlives IS NOT NULL AND old.idempotency_key IS NOT NULL
    ON CONFLICT (idempotency_key, namespace, owner) DO UPDATE SET until = excluded.until;
    DELETE FROM requests WHERE task = old.key;
    DELETE FROM outcomes WHERE task = old.key;
    DELETE FROM journal WHERE task = old.key;
    DELETE FROM child_keys WHERE parent = old.id;
END;
CREATE TRIGGER child_keys_of_ended AFTER UPDATE OF status ON tasks
WHEN new.status IN ('completed', 'failed', 'cancelled') AND old.status NOT IN ('completed', 'failed', 'cancelled') BEGIN
    DELETE FROM child_keys WHERE parent = new.id;
END;
