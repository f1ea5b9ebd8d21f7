"""The older era at a client: driving tasks of 2025-11-25 servers, and hosting tasks that they ask for."""
