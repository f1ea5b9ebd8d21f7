-- The keys of the children of open tasks, and which task each stands for: they stay when the child is gone.
CREATE TABLE child_keys (
    parent          TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    namespace       TEXT NOT NULL,
    owner           NOT NULL,  -- 0 if nobody owns them
    task            TEXT NOT NULL,
    PRIMARY KEY (parent, idempotency_key, namespace, owner)
) WITHOUT ROWID;

CREATE TRIGGER child_keys_of_deleted AFTER DELETE ON tasks BEGIN
    DELETE FROM child_keys WHERE parent = old.id;
END;
CREATE TRIGGER child_keys_of_ended AFTER UPDATE OF status ON tasks
WHEN new.status IN ('completed', 'failed', 'cancelled') AND old.status NOT IN ('completed', 'failed', 'cancelled') BEGIN
    DELETE FROM child_keys WHERE parent = new.id;
END;
