"""The official conformance suite, run against servers of ours; `README.md` beside this file says how."""
