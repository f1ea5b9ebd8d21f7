-- The first schema whose releases may use the file as it is (`mcp_tasks.stores.migrations`).
ALTER TABLE meta ADD COLUMN compatible_from INTEGER NOT NULL DEFAULT 0;
