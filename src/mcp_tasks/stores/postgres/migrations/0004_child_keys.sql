-- The keys of the children of open tasks, and which task each stands for: they stay when the child is gone.
CREATE TABLE mcp_tasks_child_keys (
    parent          text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    namespace       text COLLATE "C" NOT NULL,
    owner           text COLLATE "C" NOT NULL,
    task            text COLLATE "C" NOT NULL,
    PRIMARY KEY (parent, idempotency_key, namespace, owner)
);

CREATE FUNCTION mcp_tasks_forget_children() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM mcp_tasks_child_keys WHERE parent = OLD.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER mcp_tasks_parent_deleted AFTER DELETE ON mcp_tasks_tasks
    FOR EACH ROW EXECUTE FUNCTION mcp_tasks_forget_children();
CREATE TRIGGER mcp_tasks_parent_ended AFTER UPDATE ON mcp_tasks_tasks
    FOR EACH ROW WHEN (
        NEW.status IN ('completed', 'failed', 'cancelled') AND OLD.status NOT IN ('completed', 'failed', 'cancelled')
    ) EXECUTE FUNCTION mcp_tasks_forget_children();
