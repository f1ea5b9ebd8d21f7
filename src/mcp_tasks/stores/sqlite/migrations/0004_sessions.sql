-- The session that a task belongs to, and the task that started it. Tasks from before have neither. The indexes are
-- partial, so that tasks without them cost nothing more. A session's tasks in one status are few: no index for those.
ALTER TABLE tasks ADD COLUMN session TEXT;
ALTER TABLE tasks ADD COLUMN parent TEXT;
CREATE INDEX tasks_session ON tasks (namespace, session, created, id) WHERE session IS NOT NULL;
CREATE INDEX tasks_parent ON tasks (namespace, parent, created, id) WHERE parent IS NOT NULL;
