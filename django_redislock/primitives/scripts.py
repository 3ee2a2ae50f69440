"""The Lua scripts: read once, known to the server by their SHA1.

Each request to a script brings a nonce as the last of ARGV. Here every script is put into a frame
that takes it away, and gives it back beside what the script answers: so the client knows which
answer is its own (wire.py), and no script can forget to say so.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_CALL = re.compile(r"redis\.p?call\('(\w+)'")
_SENT = {"eval", "evalsha", "ping", "subscribe"}
SOMETIMES = {
    "select": "a database other than 0",
    "wait": "REPLICAS",
    "cluster|slots": "a Redis Cluster",
    "asking": "a Redis Cluster",
}
"""Commands that we send too, and what needs them."""
_INCLUDE = re.compile(r"^ *-- include (\S+)$", re.MULTILINE)
_FRAME = "return {{table.remove(ARGV), (function()\n{}\nend)()}}"


class Script(NamedTuple):
    source: str
    sha: str


def _read(filename: str) -> str:
    return files(__package__).joinpath("lua", filename).read_text(encoding="utf-8")


@cache
def load(name: str) -> Script:
    """The script in `lua/<name>.lua`, with the files that it includes put in."""
    source = _read(f"{name}.lua")
    while _INCLUDE.search(source):  # what is included includes others
        source = _INCLUDE.sub(lambda include: _read(include[1]), source)
    source = _FRAME.format(source)
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


@cache
def permissions(without: frozenset[str] = frozenset()) -> str:
    """What a Redis user has to be allowed besides our keys and channels: rules of its ACL.

    `without` those of `SOMETIMES` that are not needed.
    """
    called = {
        command.lower()
        for path in files(__package__).joinpath("lua").iterdir()
        for command in _CALL.findall(_read(path.name))
    }
    # And what we send ourselves; PING keeps an idle subscription alive.
    return " ".join(
        f"+{command}" for command in sorted((called | _SENT | SOMETIMES.keys()) - without)
    )
