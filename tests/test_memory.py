"""The in-memory server says what the Lua says: else stepping through it would prove nothing."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from redis import Redis

from django_redislock.primitives.contract import run
from django_redislock.primitives.keys import Keys
from django_redislock.transport.ports import SyncPort
from django_redislock.transport.server import server_of
from tests.memory import MemoryServer
from tests.waiting import PATIENCE

KEYS = Keys.of("redislock", "twin")
WORD = "word"
TOKENS = [letter * 32 for letter in "abcd"]


def mask(answer: Any, memory: MemoryServer | None, start: int) -> Any:
    """An answer without what depends on the clock: µs since the epoch, TTLs, lasted."""
    if isinstance(answer, list) and len(answer) == 8 and answer[6] is not None:
        return [*mask(answer[:6], memory, start), "<lasted>", answer[7]]
    if isinstance(answer, list):
        return [mask(item, memory, start) for item in answer]
    if isinstance(answer, bytes):
        return re.sub(rb"\b\d{16}\b", b"<time>", answer)
    if isinstance(answer, int) and answer > 100:
        return "<time>" if answer > 10**12 else "<ttl>"
    return answer


def random_command(rng: random.Random) -> tuple[str, list[str], list[Any]]:
    token = rng.choice(TOKENS)
    keys = KEYS.mutex(token)
    commands = ["acquire", "acquire", "acquire", "release", "extend", "clear", "holder", "adopt"]
    commands += ["write", "read", "write down", "put back", "take", "drop"]
    match rng.choice(commands):
        case "acquire":
            inbox = rng.choice(
                ["", *(f"redislock:inbox:{one}" for one in ("m1", "earlier", "dead", "m2"))]
            )
            ticket = rng.choice(["", str(rng.randrange(10**6))])  # from before all others
            args: list[str | int] = [token, 30_000, "owner|a|label", inbox, ticket]
            if rng.random() < 0.3:
                return "mutex_acquire_guarded", [*keys, KEYS.guard], args
            return "mutex_acquire", keys, args
        case "take":
            its = [KEYS.lock, KEYS.queue, KEYS.gone(token), KEYS.clock]
            if rng.random() < 0.3:
                its.insert(3, KEYS.record)
            return "mutex_take", its, [token, 30_000, "owner|a|label"]
        case "drop":
            return "mutex_drop", [KEYS.lock], [token]
        case "put back":
            its = [KEYS.lock, KEYS.gone(token), KEYS.guard, KEYS.index, KEYS.clock]
            value = f"{token}+{10**15}|{10**15}|30000|owner|a|label"
            ends = rng.choice([10**15, 10**16, 10**16])
            return "mutex_put_back", its, [WORD, rng.choice([0, 1]), value, 30_000, ends]
        case "release":
            home = rng.choice(["", "redislock:inbox:m1", "redislock:inbox:dead"])
            return "mutex_release", keys, [token, int(rng.random() < 0.1), home]
        case "extend":
            ttl, why = rng.choice([30_000, 40_000]), rng.choice([[], [KEYS.gone(token)]])
            its = [KEYS.lock, KEYS.index, KEYS.clock, *why]
            return "mutex_extend", its, [WORD, rng.choice([0, 1]), token, ttl]
        case "adopt":
            heir = rng.choice(TOKENS)
            return "mutex_adopt", keys, [token, heir, 30_000, "heir|a|label"]
        case "clear":
            return "mutex_clear", keys, [WORD, "operator", "a reason", token]
        case "write down":
            return "mutex_write_down", [KEYS.lock, KEYS.history, KEYS.index], [WORD, token]
        case "write":
            return (
                "record_write",
                [KEYS.record, KEYS.lock, KEYS.gone(token)],
                [token, f"by {token}".encode(), rng.choice(["", 30_000]), rng.choice([0, 1])],
            )
        case "read":
            return "record_get", [KEYS.record], [WORD]
        case _:
            return "mutex_holder", [KEYS.lock], [WORD]


def parts(message: str) -> tuple[str, int]:
    """Its token, and how much else it says."""
    return message[:32], message.count("|")


@pytest.mark.parametrize("seed", range(30))
def test_it_answers_as_the_lua_does(redis: Redis, seed: int) -> None:
    """Two hundred random commands get the same answers from both, send the same messages, and
    leave the same queue, index and guard."""
    rng = random.Random(seed)
    memory = MemoryServer()
    told: list[str] = []
    inboxes = ["redislock:inbox:m1", "redislock:inbox:earlier"]
    memory.listening.update(dict.fromkeys(inboxes, told.append))
    port = SyncPort(server_of("default"))
    with redis.pubsub() as listener:
        listener.subscribe(*inboxes)
        for _ in inboxes:
            listener.get_message(timeout=PATIENCE)
        for number in range(200):
            script, keys, args = random_command(rng)
            seconds, micros = redis.time()
            memory.time = seconds + micros / 1e6
            real = run(port.script(script, keys, args))
            model = memory.call(script, keys, args)
            assert mask(real, None, 0) == mask(model, memory, 0), (number, script, args)
            queue = [token.decode() for token in redis.zrange(KEYS.lock + ":queue", 0, -1)]
            name = memory._name(KEYS.lock)
            assert queue == sorted(name.queue, key=name.queue.__getitem__), (number, script, args)
            indexed = redis.zscore(KEYS.index, KEYS.lock) is not None
            assert indexed == (KEYS.lock in memory.index), (number, script, args)
            while told:
                message = listener.get_message(timeout=PATIENCE)
                assert message is not None
                same = parts(message["data"].decode()) == parts(told.pop(0))
                assert same, (number, script, args)
            guard = redis.get(KEYS.guard)
            assert (guard is None) == (memory.guard is None), (number, script, args)
            if rng.random() < 0.03:  # the lease ends
                redis.delete(KEYS.lock)
                name.value, name.expires = None, float("inf")
            if rng.random() < 0.05:  # nothing was forgotten for long
                redis.set(KEYS.guard, 0)
                memory.guard = 0
            if rng.random() < 0.02:  # the data are lost
                redis.flushdb()
                memory.flush()
