"""Pages that a server wants somebody to visit: which may be opened from here, and what to know before that.

The address is the server's choosing. What opens it may be more than a browser: a handler of files, of mail, of other
programs. So only https is opened, and http on this machine; never by itself; and the host is shown as it is, not as it
looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """An address that somebody is asked to visit.

    Attributes:
        host: Where it leads, in ASCII: letters that look like others cannot pass for them.
        refusal: Why it is not opened from here; None if it may be.
        warnings: What somebody should know before they go there.
    """

    host: str
    refusal: str | None
    warnings: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """The warnings, and the refusal if there is one."""
        return self.warnings if self.refusal is None else (*self.warnings, self.refusal)


def link_to(url: str) -> Link:
    """What is to be known of an address."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        shown = _ascii(host)
    except ValueError:
        return Link(host="?", refusal="This is not an address that can be opened.", warnings=())
    warnings: list[str] = []
    if shown != host or "xn--" in shown:
        warnings.append("The host name has letters that can look like others.")
    return Link(host=shown or "?", refusal=_refusal(parts.scheme, shown, parts.netloc, url), warnings=tuple(warnings))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _refusal(scheme: str, host: str, netloc: str, url: str) -> str | None:
    if scheme not in ("https", "http") or not host:
        return "Only web addresses (https) are opened from here."
    if scheme == "http" and not is_loopback(host):
        return "This is not an https address: others can read along, and change it. It is not opened from here."
    if "@" in netloc:
        return "The part before the @ is not the host, and there is no reason for it. It is not opened from here."
    if not url.isprintable() or any(char in " \\" for char in url):
        # What one program passes over, another takes for the end of the host.
        return "It has characters that no address has. It is not opened from here."
    return None


def _ascii(host: str) -> str:
    """A host name as it is looked up."""
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode()
    except UnicodeError as exc:
        raise ValueError(host) from exc
