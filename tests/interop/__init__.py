"""Other implementations of the tasks extension, run against ours."""
