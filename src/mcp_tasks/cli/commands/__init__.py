"""The commands, one file each. `app` has the table of them."""
