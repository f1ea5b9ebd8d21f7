-- A task that is `resuming` is about to be at work again: it counts as at work for those that are to be started, and not
-- for others that are resuming. It is in no index: of one owner or tool, few rows are looked at for it.
ALTER TABLE mcp_tasks_tasks ADD COLUMN resuming boolean NOT NULL DEFAULT false;
