"""The command line, as a process of its own, against servers in processes of their own."""
