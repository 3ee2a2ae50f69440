"""A plugin, `-p tests.testing_kit.dragonfly`: the server in memory acts as Dragonfly does.

Only where it differs for scripts. By its documentation and its source, in November 2026:

1.  Lua is 5.4, with `unpack`. FAKEREDIS_LUA_VERSION has to say so.
2.  A script may use only the keys that it was given, unless its first line asks for more.
3.  A score is a number for scripts, not a text; so are the two parts of TIME.
4.  A number with a fraction stays one in an answer.
"""

from __future__ import annotations

from typing import Any

import fakeredis
from fakeredis._helpers import SimpleError
from fakeredis.commands_mixins import scripting_mixin
from fakeredis.commands_mixins.server_mixin import ServerCommandsMixin

from django_redislock.transport.connections import VERSION, PoolsInMemory

ANY_KEY = b"--!df flags=allow-undeclared-keys\n"
WITHOUT_KEYS = {b"PING", b"PUBLISH", b"PUBSUB", b"SCAN", b"TIME"}
ONLY_KEYS = {b"DEL", b"EXISTS", b"MGET", b"UNLINK"}
"""Commands all of whose arguments are keys. Of others, the first one is."""

Mixin = scripting_mixin.ScriptingCommandsMixin
pools, runtime, known = (
    PoolsInMemory.__init__,
    Mixin._get_server_runtime,
    scripting_mixin._check_for_lua_globals,
)
evaluate, call, time = Mixin.eval, Mixin._lua_redis_call, ServerCommandsMixin.time
to_lua, from_lua = Mixin._convert_redis_result, Mixin._convert_lua_result
undeclared = 0
"""How often a key was refused."""


def pools_of_dragonfly(self: PoolsInMemory, address: str, using: str) -> None:
    pools(self, address, using)
    self.server = fakeredis.FakeServer(version=VERSION, server_type="dragonfly")
    self._options.update(server=self.server, server_type="dragonfly")
    self._shared = self.background()


def runtime_with_unpack(self: Any, server: Any) -> Any:
    made = runtime(self, server)
    made.execute("unpack = table.unpack")
    return made


def globals_with_unpack(made: Any, expected: set[Any]) -> None:
    known(made, {*expected, b"unpack"})


def evaluate_with_keys(self: Any, script: bytes, number: int, *more: bytes) -> Any:
    self.declared = None if script.startswith(ANY_KEY) else set(more[:number])
    return evaluate(self, script, number, *more)


def call_with_keys(self: Any, made: Any, expected: Any, op: bytes, *words: Any) -> Any:
    global undeclared
    if op not in WITHOUT_KEYS and self.declared is not None:
        for key in words if op in ONLY_KEYS else words[:1]:
            if key not in self.declared:
                undeclared += 1
                raise SimpleError(f"ERR script tried accessing undeclared key, key: {key!r}")
    return call(self, made, expected, op, *words)


def time_in_numbers(self: Any) -> list[int]:
    return [int(part) for part in time(self)]


def score_in_lua(self: Any, made: Any, result: Any) -> Any:
    if isinstance(result, float) and result.is_integer():
        return int(result)
    return to_lua(self, made, result)


def number_in_answer(self: Any, result: Any, nested: bool = True) -> Any:
    return b"%.17g" % result if isinstance(result, float) else from_lua(self, result, nested)


def pytest_configure() -> None:
    assert scripting_mixin.LUA_VERSION == "5.4"
    PoolsInMemory.__init__ = pools_of_dragonfly  # type: ignore[method-assign]
    scripting_mixin._check_for_lua_globals = globals_with_unpack
    Mixin._get_server_runtime = runtime_with_unpack
    Mixin.eval, Mixin._lua_redis_call = evaluate_with_keys, call_with_keys
    Mixin._convert_redis_result, Mixin._convert_lua_result = score_in_lua, number_in_answer
    ServerCommandsMixin.time = time_in_numbers


def pytest_unconfigure() -> None:
    assert not undeclared
