-- The ids of the last writes are in the state of a task now. The column stays for processes of an older release that are
-- still running: they fill it.
ALTER TABLE mcp_tasks_tasks ALTER COLUMN writes SET DEFAULT '';
