-- Text is compared byte by byte: in the order of Python, whatever the locale of the database.

-- One small row per task holds what the verbs ask by, and the state. Updates that change no indexed column (progress,
-- most of all) stay on their page and touch no index, hence the room that is left on each page.
CREATE TABLE mcp_tasks_tasks (
    key             bigint GENERATED ALWAYS AS IDENTITY,
    id              text COLLATE "C" NOT NULL,
    version         bigint NOT NULL,
    namespace       text COLLATE "C" NOT NULL,
    owner           text COLLATE "C" NOT NULL,  -- a backslash and a minus for none
    session         text COLLATE "C",
    parent          text COLLATE "C",
    idempotency_key text COLLATE "C",
    method          text COLLATE "C" NOT NULL,
    name            text COLLATE "C" NOT NULL,
    queue           text COLLATE "C" NOT NULL,
    rank            bigint NOT NULL,            -- the priority with its sign turned: what comes first is smaller
    status          text COLLATE "C" NOT NULL,
    worker          text COLLATE "C",
    created         bigint NOT NULL,            -- microseconds since 1970, as all instants
    ready           bigint,                     -- from when on it can be started; NULL if it is claimed, has ended, waits
    since           bigint,                     -- since when it is queued; NULL if it is not
    expires         bigint,                     -- when it may be removed; NULL while it runs, and if it is kept for good
    handed          boolean NOT NULL,           -- it is queued, and an engine has its id
    at_work         boolean NOT NULL,           -- a worker has it, and it has not ended
    resuming        boolean NOT NULL,           -- it counts as at work, but not for others that are resuming; in no index
    key_outlives    bigint,                     -- microseconds for which the key outlives the task; NULL if it does not
    size            bigint NOT NULL,            -- bytes of request, outcome and journal
    kept            bigint,                     -- the same of a task that has ended
    state           bytea NOT NULL
) WITH (fillfactor = 85);

CREATE TABLE mcp_tasks_requests (
    task    bigint PRIMARY KEY,
    request bytea NOT NULL
);

CREATE TABLE mcp_tasks_outcomes (
    task bigint PRIMARY KEY,
    body bytea NOT NULL,
    meta bytea
);

CREATE TABLE mcp_tasks_journal (
    task  bigint NOT NULL,
    n     bigint GENERATED ALWAYS AS IDENTITY,  -- the order of writing
    kind  text COLLATE "C" NOT NULL,
    key   text COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (task, n)
);

CREATE TABLE mcp_tasks_heartbeats (
    worker    text COLLATE "C" PRIMARY KEY,
    namespace text COLLATE "C" NOT NULL,
    beats     bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE mcp_tasks_notes (
    namespace text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    value     bytea NOT NULL,
    PRIMARY KEY (namespace, name)
);

-- Keys that are taken though their task is gone, and until when.
CREATE TABLE mcp_tasks_spent_keys (
    idempotency_key text COLLATE "C" NOT NULL,
    namespace       text COLLATE "C" NOT NULL,
    owner           text COLLATE "C" NOT NULL,
    until           bigint NOT NULL,
    PRIMARY KEY (idempotency_key, namespace, owner)
);
CREATE INDEX mcp_tasks_spent_until ON mcp_tasks_spent_keys (until);

-- The keys of the children of open tasks, and which task each stands for: they stay when the child is gone.
CREATE TABLE mcp_tasks_child_keys (
    parent          text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    namespace       text COLLATE "C" NOT NULL,
    owner           text COLLATE "C" NOT NULL,
    task            text COLLATE "C" NOT NULL,
    PRIMARY KEY (parent, idempotency_key, namespace, owner)
);

CREATE UNIQUE INDEX mcp_tasks_id ON mcp_tasks_tasks (id);
CREATE UNIQUE INDEX mcp_tasks_key ON mcp_tasks_tasks (idempotency_key, namespace, owner)
    WHERE idempotency_key IS NOT NULL;

-- Listings, with all that they filter by and sort by: what is not on the page is not looked at, however many tasks there
-- are. One of tasks in any status is put together from those of each: two indexes less to keep. POSIX sorts as C does,
-- and only this index has that order, so the planner cannot take another for an owner who had all tasks when it last
-- looked.
CREATE INDEX mcp_tasks_status ON mcp_tasks_tasks (namespace, status, created, id);
CREATE INDEX mcp_tasks_owner ON mcp_tasks_tasks (namespace, owner, status, created, id COLLATE "POSIX");
CREATE INDEX mcp_tasks_session ON mcp_tasks_tasks (namespace, session, created, id) WHERE session IS NOT NULL;
CREATE INDEX mcp_tasks_parent ON mcp_tasks_tasks (namespace, parent, created, id) WHERE parent IS NOT NULL;

-- The others hold only the few tasks that are queued, parked, claimed or finished. The number is `ready` of a task that
-- can be started at any time, the earliest instant there is; queries write it out, so that Postgres sees that it fits.
CREATE INDEX mcp_tasks_queued ON mcp_tasks_tasks (namespace, handed, created, id)
    WHERE ready = -62135596800000000;
CREATE INDEX mcp_tasks_backlog ON mcp_tasks_tasks (namespace, queue, ready, since) WHERE ready IS NOT NULL;
CREATE INDEX mcp_tasks_waiting ON mcp_tasks_tasks (namespace, queue, rank, owner, method, name, created, id)
    WHERE ready = -62135596800000000 AND NOT handed;
CREATE INDEX mcp_tasks_due ON mcp_tasks_tasks (namespace, ready, id) WHERE ready > -62135596800000000;
CREATE INDEX mcp_tasks_claimed ON mcp_tasks_tasks (worker, created, id, namespace) WHERE worker IS NOT NULL;

-- For counting: what is handed out of a queue and a tool or at work, and what is either. The last condition says the same
-- in other words, so that Postgres cannot take one index for the other when all tasks are of one tool.
CREATE INDEX mcp_tasks_in_hand_of_owner ON mcp_tasks_tasks (namespace, owner, handed, queue, name, method)
    WHERE handed OR at_work;
CREATE INDEX mcp_tasks_in_hand_of_tool ON mcp_tasks_tasks (namespace, name, method, handed)
    WHERE handed::int + at_work::int > 0;
CREATE INDEX mcp_tasks_expires ON mcp_tasks_tasks (expires, created, id) WHERE expires IS NOT NULL;

-- Stored bytes are written with the row: nothing more has to be written for them, and no writer waits for another, as it
-- would for a count by owner. `size` is in no index, so that a step or an answer stays on its page; `kept` does not
-- change any more.
CREATE INDEX mcp_tasks_kept ON mcp_tasks_tasks (namespace, owner, kept) WHERE kept IS NOT NULL;

-- No deletion of a task leaves parts behind; only its key may outlive it. A `delete` that says from when the
-- time of the key runs has written the key already. No other can be there: a creation under a key takes it away.
CREATE FUNCTION mcp_tasks_forget() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF OLD.key_outlives IS NOT NULL AND OLD.idempotency_key IS NOT NULL THEN
        INSERT INTO mcp_tasks_spent_keys (idempotency_key, namespace, owner, until)
        VALUES (OLD.idempotency_key, OLD.namespace, OLD.owner, coalesce(OLD.expires, OLD.created) + OLD.key_outlives)
        ON CONFLICT DO NOTHING;
    END IF;
    DELETE FROM mcp_tasks_requests WHERE task = OLD.key;
    DELETE FROM mcp_tasks_outcomes WHERE task = OLD.key;
    DELETE FROM mcp_tasks_journal WHERE task = OLD.key;
    DELETE FROM mcp_tasks_child_keys WHERE parent = OLD.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER mcp_tasks_deleted AFTER DELETE ON mcp_tasks_tasks
    FOR EACH ROW EXECUTE FUNCTION mcp_tasks_forget();

CREATE FUNCTION mcp_tasks_forget_children() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM mcp_tasks_child_keys WHERE parent = OLD.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER mcp_tasks_parent_ended AFTER UPDATE ON mcp_tasks_tasks
    FOR EACH ROW WHEN (
        NEW.status IN ('completed', 'failed', 'cancelled') AND OLD.status NOT IN ('completed', 'failed', 'cancelled')
    ) EXECUTE FUNCTION mcp_tasks_forget_children();
