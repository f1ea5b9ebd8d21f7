-- Tasks of the first release have no namespace: its rule was one file per server, so they are all of the server that
-- opens the file now.
ALTER TABLE tasks ADD COLUMN namespace TEXT NOT NULL DEFAULT '';
UPDATE tasks SET namespace = :namespace;

-- A step may end with an error from now on, so its entry is an object. Joined as text: an entry that is damaged stays
-- damaged, and no other is touched by a parser.
UPDATE journal SET value = '{"value":' || value || '}' WHERE kind = 'step';

-- A heartbeat is a number that grows. Until when somebody was believed alive is of no use any more.
DROP TABLE holders;
CREATE TABLE heartbeats (
    holder    TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    beats     INTEGER NOT NULL
) WITHOUT ROWID;

-- Sweeps read ids from an index alone, in the order of the index: as much as they are asked for, however many there
-- are, and never a row. `ready` is this number for tasks that can be started at any time, see `queries.py`.
DROP INDEX tasks_ready;
DROP INDEX tasks_held;
DROP INDEX tasks_expires;
CREATE INDEX tasks_queued ON tasks (namespace, ready, created, id) WHERE ready = -62135596800000000;
CREATE INDEX tasks_due ON tasks (namespace, ready, id) WHERE ready > -62135596800000000;
CREATE INDEX tasks_held ON tasks (holder, created, id, namespace) WHERE holder IS NOT NULL;
CREATE INDEX tasks_expires ON tasks (expires, created, id, version) WHERE expires IS NOT NULL;
