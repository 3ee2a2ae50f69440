"""What a lock leaves on the server."""

from __future__ import annotations

from typing import NamedTuple

from redis import Redis

from django_redislock import Lease

SLACK = 5.0
"""Seconds that a busy machine may take for what takes milliseconds, or a slice of waiting."""


class Seen(NamedTuple):
    """The value of a lock's key, and when its TTL ends. All times are the server's, in seconds."""

    token: str
    fencing_token: int
    acquired: float
    ends: float


def seen(redis: Redis, name: str = "job") -> Seen | None:
    """Who has the lock now; None: nobody."""
    key = f"redislock:{{{name}}}"
    with redis.pipeline(transaction=True) as pipeline:
        # In this order: if the server is held up in between, its end is rather too early here.
        value, time, ttl = pipeline.get(key).time().pttl(key).execute()
    if value is None:
        return None
    text = value.decode()
    fencing_token, acquired, _ = text[33:].split("|", 2)  # the token, and a mark, come first
    assert ttl >= 0, "a lock has a TTL at every moment"
    ends = server_time(time) + ttl / 1000
    return Seen(text[:32], int(fencing_token), int(acquired or fencing_token) / 1e6, ends)


def late(lease: Lease, before: Seen) -> float:
    """Seconds from the end of what one had until the next one got it, by the server's clock."""
    seconds = lease._grant.acquired_us / 1e6 - before.ends
    assert seconds > -0.005, "not before it had ended; Redis counts in milliseconds"
    assert seconds < SLACK
    return seconds


def server_time(time: tuple[int, int]) -> float:
    """The answer to TIME, in seconds."""
    seconds, microseconds = time
    return seconds + microseconds / 1e6


def queued(redis: Redis, number: int, name: str = "job", *, prefix: str = "redislock") -> bool:
    """Whether so many wait for a lock, and the server can tell each of them."""
    waiters = redis.hvals(f"{prefix}:{{{name}}}:waiters")
    inboxes = {waiter.split(b"|")[2] for waiter in waiters}
    return len(waiters) == number and all(
        listening for _, listening in redis.pubsub_numsub(*inboxes)
    )


def remains(redis: Redis, name: str = "job", *, prefix: str = "redislock") -> list[str]:
    """The keys of a lock that somebody holds or waits for; none when nobody does.

    What may outlive it says nothing of a holder, and goes by itself.
    """
    lock, index = f"{prefix}:{{{name}}}", f"{prefix}:index"
    for key in (f"{lock}:history", *redis.scan_iter(match=f"{lock}:gone:*", count=1000)):
        assert redis.pttl(key) != -1, f"{key!r} would stay for ever"
    found = [key for key in (lock, f"{lock}:queue", f"{lock}:waiters") if redis.exists(key)]
    if redis.zscore(index, lock) is not None:
        found.append(index)
    return found
