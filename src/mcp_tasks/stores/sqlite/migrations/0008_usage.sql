-- compatible from: 7
-- What is kept beside the tasks of each owner, in bytes as they are kept. Triggers count it, in the transaction that
-- writes what they count: it cannot drift, also where a release that does not know this table writes. There is one
-- writer at a time anyway, so that nobody waits for somebody else's count.
CREATE TABLE stored (
    namespace TEXT NOT NULL,
    owner     NOT NULL,  -- 0 if nobody owns them, because owners are text
    bytes     INTEGER NOT NULL,
    PRIMARY KEY (namespace, owner)
) WITHOUT ROWID;

INSERT INTO stored
SELECT namespace, ifnull(owner, 0), sum(
    ifnull((SELECT length(request) FROM requests WHERE task = t.key), 0)
        + ifnull((SELECT length(body) + ifnull(length(meta), 0) FROM outcomes WHERE task = t.key), 0)
        + ifnull((SELECT sum(length(value)) FROM journal INDEXED BY journal_task WHERE task = t.key), 0)
) AS bytes
FROM tasks t GROUP BY 1, 2 HAVING bytes > 0;

CREATE TRIGGER requests_inserted AFTER INSERT ON requests BEGIN
    INSERT INTO stored SELECT namespace, ifnull(owner, 0), length(new.request) FROM tasks WHERE key = new.task
    ON CONFLICT (namespace, owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER requests_updated AFTER UPDATE OF request ON requests BEGIN
    UPDATE stored SET bytes = bytes + length(new.request) - length(old.request)
    WHERE (namespace, owner) = (SELECT namespace, ifnull(owner, 0) FROM tasks WHERE key = new.task);
END;

-- Before: an outcome may take the place of another.
CREATE TRIGGER outcomes_inserted BEFORE INSERT ON outcomes BEGIN
    INSERT INTO stored
    SELECT namespace, ifnull(owner, 0), length(new.body) + ifnull(length(new.meta), 0)
        - ifnull((SELECT length(body) + ifnull(length(meta), 0) FROM outcomes WHERE task = new.task), 0)
    FROM tasks WHERE key = new.task
    ON CONFLICT (namespace, owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER outcomes_updated AFTER UPDATE OF body, meta ON outcomes BEGIN
    UPDATE stored
    SET bytes = bytes + length(new.body) + ifnull(length(new.meta), 0) - length(old.body) - ifnull(length(old.meta), 0)
    WHERE (namespace, owner) = (SELECT namespace, ifnull(owner, 0) FROM tasks WHERE key = new.task);
END;

CREATE TRIGGER journal_inserted AFTER INSERT ON journal BEGIN
    INSERT INTO stored SELECT namespace, ifnull(owner, 0), length(new.value) FROM tasks WHERE key = new.task
    ON CONFLICT (namespace, owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER journal_updated AFTER UPDATE OF value ON journal BEGIN
    UPDATE stored SET bytes = bytes + length(new.value) - length(old.value)
    WHERE (namespace, owner) = (SELECT namespace, ifnull(owner, 0) FROM tasks WHERE key = new.task);
END;

-- Keys that are taken though their task is gone, and until when. A task has the microseconds for which its key outlives
-- it; NULL if it does not, as that of every task from before.
ALTER TABLE tasks ADD COLUMN key_outlives INTEGER;
CREATE TABLE spent_keys (
    idempotency_key TEXT NOT NULL,
    namespace       TEXT NOT NULL,
    owner           NOT NULL,  -- 0 if nobody owns them
    until           INTEGER NOT NULL,
    PRIMARY KEY (idempotency_key, namespace, owner)
) WITHOUT ROWID;
CREATE INDEX spent_keys_until ON spent_keys (until);

-- As before, a task never leaves parts behind, whoever deletes it; and what outlives it, does. Who deletes a task that has
-- not expired knows better than this trigger from when the time of its key runs, see `operations.py`.
DROP TRIGGER tasks_deleted;
CREATE TRIGGER tasks_deleted AFTER DELETE ON tasks BEGIN
    UPDATE stored SET bytes = bytes
        - ifnull((SELECT length(request) FROM requests WHERE task = old.key), 0)
        - ifnull((SELECT length(body) + ifnull(length(meta), 0) FROM outcomes WHERE task = old.key), 0)
        - ifnull((SELECT sum(length(value)) FROM journal WHERE task = old.key), 0)
    WHERE namespace = old.namespace AND owner = ifnull(old.owner, 0);
    DELETE FROM stored WHERE namespace = old.namespace AND owner = ifnull(old.owner, 0) AND bytes <= 0;
    INSERT INTO spent_keys
    SELECT old.idempotency_key, old.namespace, ifnull(old.owner, 0), ifnull(old.expires, old.created) + old.key_outlives
    WHERE old.key_outlives IS NOT NULL AND old.idempotency_key IS NOT NULL
    ON CONFLICT (idempotency_key, namespace, owner) DO UPDATE SET until = excluded.until;
    DELETE FROM requests WHERE task = old.key;
    DELETE FROM outcomes WHERE task = old.key;
    DELETE FROM journal WHERE task = old.key;
END;
