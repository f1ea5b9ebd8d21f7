"""Words that a shell completes: the script for it, and what there is to choose from."""
