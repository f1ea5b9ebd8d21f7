-- What is about to be at work again (`hand` is 3) stands in the indexes behind what is at work (2), so that both are
-- counted together, or one without the other.
DROP INDEX tasks_owner_at_work;
CREATE INDEX tasks_owner_at_work ON tasks (namespace, owner, hand) WHERE hand > 1;
