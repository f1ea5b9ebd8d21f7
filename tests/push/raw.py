"""For tests with many connections."""

import resource


def allow_open_files(wanted: int) -> bool:
    """Raise the limit of open files as far as this process may; whether it is enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted and (hard == resource.RLIM_INFINITY or hard >= wanted):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return soft == resource.RLIM_INFINITY or soft >= wanted
