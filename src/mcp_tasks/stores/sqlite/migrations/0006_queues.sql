-- What decides who is next. `tool` is a digest of the method and the name of the tool: they are compared and never read
-- from here, so that with a cipher they stay in the encrypted state. Tasks from before are in the queue that there was.
ALTER TABLE tasks ADD COLUMN queue TEXT NOT NULL DEFAULT 'default';
ALTER TABLE tasks ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tasks ADD COLUMN tool BLOB NOT NULL DEFAULT x'';
ALTER TABLE tasks ADD COLUMN hand INTEGER;   -- 0: queued and in nobody's hands, 1: queued and handed out, 2: at work
ALTER TABLE tasks ADD COLUMN since INTEGER;  -- when it was queued; NULL if it is not

-- When a task was queued that waits now, nobody has written down: not before it was made. Only the few that are queued
-- or at work are written again.
UPDATE tasks SET hand = 0, since = created, tool = tool_of(state) WHERE ready = -62135596800000000;
UPDATE tasks SET hand = 2, tool = tool_of(state)
WHERE worker IS NOT NULL AND status NOT IN ('completed', 'failed', 'cancelled');

-- Whatever a query asks by is in its index, so that no row is fetched.
DROP INDEX tasks_queued;
CREATE INDEX tasks_queued ON tasks (namespace, hand, created, id) WHERE hand < 2;

-- Ordered so that from each entry one can go to the next queue, priority, owner or tool, and look at nothing in between.
CREATE INDEX tasks_waiting ON tasks (namespace, queue, priority DESC, owner, tool, created, id, hand) WHERE hand = 0;

-- For counting: what is handed out of a queue and a tool, what is at work, and what is either.
CREATE INDEX tasks_handed ON tasks (namespace, owner, queue, tool, hand) WHERE hand = 1;
CREATE INDEX tasks_owner_at_work ON tasks (namespace, owner, hand) WHERE hand = 2;
CREATE INDEX tasks_tool_hand ON tasks (namespace, tool, hand) WHERE hand > 0;

-- What is queued (`ready` is the earliest instant there is) by when it was, and behind it what sleeps by when it wakes.
CREATE INDEX tasks_backlog ON tasks (namespace, queue, ready, since) WHERE ready IS NOT NULL;
