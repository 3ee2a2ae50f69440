"""Reads the LOCATION of an entry of CACHES. Only this module does, since it may have a password.

A LOCATION that can't be read is never quoted, and no error of urllib or redis-py about it is
passed on: they quote parts of it, and after a `/`, `#` or `?` in a password, the password is in
these parts. For the same reason nothing here raises: a crash reporter shows the variables of each
function that an exception leaves.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from redis.connection import parse_url

UNREADABLE = (
    "must be a URL, such as 'redis://localhost:6379/0', and this one can't be read. If it has a "
    "password, write that as urllib.parse.quote(password, safe='') does"
)
"""The error text for a LOCATION for which `read` returns `None`."""

DEFAULT_PORT = 6379

_OPTIONS = re.compile(r"[a-z_]+=[^=]*(&[a-z_]+=[^=]*)*")
_salt = secrets.token_bytes(16)


class Location(NamedTuple):
    """The place of a server, without the means to log in."""

    scheme: str
    host: str
    """Empty for a Unix socket."""
    port: int
    path: str
    """The path of a Unix socket; else empty."""
    db: int | None
    """The number of the database, if the URL has one."""
    key: str
    """A hash of the URL, user and password included, that differs from process to process."""

    @property
    def where(self) -> str:
        """The server, for people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.path or f"{host}:{self.port}"

    @property
    def address(self) -> str:
        """The server, the database and the user, in a text that shows no secret."""
        db = "" if self.db is None else f"?db={self.db}" if self.path else f"/{self.db}"
        return f"{self.scheme}://{self.where}{db}#{self.key}"


def read(url: object) -> Location | None:
    """Read a URL. `None` if it is no URL, or has a password that is not encoded."""
    try:
        parts = urlsplit(str(url))
        port = parts.port or DEFAULT_PORT
        known = parts.scheme in ("redis", "rediss", "unix")
        options = parse_url(str(url)) if known else {}
    except ValueError:
        return None
    if "://" not in str(url) or _cut_in_two(parts):
        return None
    unix = parts.scheme == "unix"
    return Location(
        scheme=parts.scheme,
        host="" if unix else parts.hostname or "localhost",
        port=port,
        path=parts.path if unix else "",
        db=options.get("db"),
        key=blake2b(str(url).encode(), key=_salt, digest_size=8).hexdigest(),
    )


def readable(urls: Iterable[object]) -> bool:
    """Return whether all of these URLs can be read."""
    return None not in map(read, urls)


def _cut_in_two(parts: SplitResult) -> bool:
    """Return whether the `@` that ends a password comes after the part that names the server: then
    a character in the password has ended that part."""
    if "@" in parts.fragment or ("@" in parts.query and not _OPTIONS.fullmatch(parts.query)):
        return bool(parts.netloc)
    if parts.scheme != "unix":
        return "@" in parts.path
    host = parts.netloc.rpartition("@")[2]
    return bool(host) and (":" in parts.netloc or "@" in parts.netloc + parts.path)
