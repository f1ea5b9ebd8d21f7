"""The documentation as a site: `python -m docs.site` builds it, offline, and fails on everything that is not right."""
