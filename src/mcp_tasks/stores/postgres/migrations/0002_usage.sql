-- compatible from: 1
-- What is kept beside a task, in bytes, written with its row: nothing more has to be written for it, and nobody waits for
-- anybody, as they would for a count of their owner's. `size` is in no index, so that a step or an answer stays on its
-- page; `kept` is the same of a task that has ended, which does not change any more. What a release wrote that does not
-- know these columns is not counted: less than there is, until those tasks are gone.
ALTER TABLE mcp_tasks_tasks ADD COLUMN size bigint NOT NULL DEFAULT 0;
ALTER TABLE mcp_tasks_tasks ADD COLUMN kept bigint;
CREATE INDEX mcp_tasks_kept ON mcp_tasks_tasks (namespace, owner, kept) WHERE kept IS NOT NULL;

-- Keys that are taken though their task is gone, and until when. A task has the microseconds for which its key outlives
-- it; NULL if it does not, as that of every task from before.
ALTER TABLE mcp_tasks_tasks ADD COLUMN key_outlives bigint;
CREATE TABLE mcp_tasks_spent_keys (
    idempotency_key text COLLATE "C" NOT NULL,
    namespace       text COLLATE "C" NOT NULL,
    owner           text COLLATE "C" NOT NULL,
    until           bigint NOT NULL,
    PRIMARY KEY (idempotency_key, namespace, owner)
);
CREATE INDEX mcp_tasks_spent_until ON mcp_tasks_spent_keys (until);

-- As before, a task never leaves parts behind, whoever deletes it; and what outlives it, does. Who deletes a task with a
-- word on when has written its key already. No other can be there: who makes a task under a key takes it away.
CREATE OR REPLACE FUNCTION mcp_tasks_forget() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF OLD.key_outlives IS NOT NULL AND OLD.idempotency_key IS NOT NULL THEN
        INSERT INTO mcp_tasks_spent_keys (idempotency_key, namespace, owner, until)
        VALUES (OLD.idempotency_key, OLD.namespace, OLD.owner, coalesce(OLD.expires, OLD.created) + OLD.key_outlives)
        ON CONFLICT DO NOTHING;
    END IF;
    DELETE FROM mcp_tasks_requests WHERE task = OLD.key;
    DELETE FROM mcp_tasks_outcomes WHERE task = OLD.key;
    DELETE FROM mcp_tasks_journal WHERE task = OLD.key;
    RETURN NULL;
END
$$;
