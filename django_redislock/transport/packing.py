"""Commands in Redis' protocol.

redis-py's packing, for any type and encoding, takes three times as long.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..primitives.contract import Word
from ..primitives.keys import ScriptKeys


def pack(command: tuple[Word, ...]) -> bytes:
    """Return a command in Redis' protocol, in UTF-8. The CACHES entry may name another encoding
    for the project's own values. Keys from elsewhere may be any bytes (keys.py)."""
    if bytes not in map(type, command):
        texts = list(map(str, command))
        text = "".join([f"${len(word)}\r\n{word}\r\n" for word in texts])
        if text.isascii():  # so that characters are bytes
            return f"*{len(texts)}\r\n{text}".encode()
    words = [
        word if isinstance(word, bytes) else str(word).encode(errors="surrogateescape")
        for word in command
    ]
    sized = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"*%d\r\n%b" % (len(words), b"".join(sized))


def pack_script(sha: str, keys: Sequence[str], args: Sequence[Word]) -> bytes:
    """Return the EVALSHA of a script whose ARGV are texts and numbers."""
    if type(keys) is ScriptKeys:
        text = f"*{3 + len(keys) + len(args)}\r\n$7\r\nEVALSHA\r\n$40\r\n{sha}\r\n{keys.packed()}"
        for arg in args:
            word = arg if isinstance(arg, str) else str(arg)
            text += f"${len(word)}\r\n{word}\r\n"
        if text.isascii():  # so that characters are bytes
            return text.encode()
    return pack(("EVALSHA", sha, len(keys), *keys, *args))
