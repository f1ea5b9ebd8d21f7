"""Running the tools of an author from the records of their tasks."""
