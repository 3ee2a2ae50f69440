"""Errors: their messages, their attributes, and their way to another process."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings
from django.test import override_settings
from redis import Redis
from redis import exceptions as redis_exceptions

from django_redislock import (
    Holder,
    LeaseLost,
    LeaseRevoked,
    LockError,
    LockNotAcquired,
    LockReentered,
    LockUnavailable,
    redis_lock,
)
from django_redislock.base.exceptions import ComputationFailed, StaleLease, StaleRead
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{job}"
NOBODY = "redis://:hunter2@localhost:1/0"
"""A server that is not there, with a password."""


# Each of these makes the real thing happen, and returns the error and the tokens that were used.

Made = tuple[LockError, list[str]]


def conflict(redis: Redis, wait: float = 0) -> Made:
    with ThreadPoolExecutor(1, thread_name_prefix="busy") as thread:
        lease = thread.submit(redis_lock("job", label="shop/tasks.py:7").acquire).result(PATIENCE)
        assert lease is not None
        with pytest.raises(LockNotAcquired) as caught:
            redis_lock("job", wait=wait).__enter__()
        lease.release()
    return caught.value, [lease.token]


def conflict_with_a_stranger(redis: Redis) -> Made:
    redis.set(KEY, "0123456789abcdef0123456789abcdef")
    with pytest.raises(LockNotAcquired) as caught:
        redis_lock("job", wait=0).__enter__()
    return caught.value, ["0123456789abcdef0123456789abcdef"]


def reentry(redis: Redis) -> Made:
    with (
        redis_lock("job", label="shop/tasks.py:7") as lease,
        pytest.raises(LockReentered) as caught,
    ):
        redis_lock("job").acquire()
    return caught.value, [lease.token]


def loss(redis: Redis) -> Made:
    lease = redis_lock("job").acquire()
    assert lease is not None
    redis.delete(KEY)
    with pytest.raises(LeaseLost) as caught:
        lease.release()
    return caught.value, [lease.token]


def succession(redis: Redis) -> Made:
    lease = redis_lock("job").acquire()
    assert lease is not None
    redis.delete(KEY)
    with ThreadPoolExecutor(1, thread_name_prefix="next") as thread:
        successor = thread.submit(redis_lock("job").acquire).result(PATIENCE)
    with pytest.raises(LeaseLost) as caught:
        lease.release()
    assert successor is not None
    successor.release()
    return caught.value, [lease.token, successor.token]


def revocation(redis: Redis, by: str = "anna", reason: str = "stuck | since noon") -> Made:
    lease = redis_lock("job").acquire()
    assert lease is not None
    redis_lock("job").clear(by=by, reason=reason)
    with pytest.raises(LeaseRevoked) as caught:
        lease.release()
    return caught.value, [lease.token]


def outage(redis: Redis) -> Made:
    caches = {"default": {**settings.CACHES["default"], "LOCATION": NOBODY}}
    with override_settings(CACHES=caches), pytest.raises(LockUnavailable) as caught:
        redis_lock("job").acquire(wait=0)
    return caught.value, ["hunter2"]


def wrong_type(redis: Redis) -> Made:
    redis.hset(KEY, "a", "1")
    with pytest.raises(LockError) as caught:
        redis_lock("job").acquire()
    return caught.value, []


ALL = [
    conflict,
    conflict_with_a_stranger,
    reentry,
    loss,
    succession,
    revocation,
    outage,
    wrong_type,
]


@pytest.fixture(params=ALL, ids=lambda make: make.__name__)
def made(request: pytest.FixtureRequest, redis: Redis) -> Made:
    """Each error, made by what it is for."""
    return request.param(redis)


class TestMessages:
    def test_a_conflict(self, redis: Redis) -> None:
        """It says who holds it, from where, since when, how long yet, and how long we waited."""
        before = datetime.now(UTC) - timedelta(seconds=1)
        error, _ = conflict(redis)
        assert isinstance(error, LockNotAcquired)
        seen = re.fullmatch(
            rf"'job' is held by {re.escape(socket.gethostname())}:{os.getpid()}:busy_0 "
            r"\(shop/tasks\.py:7\) since ([-\d]+ [:\d]+) UTC, for (\d+\.\d) s; "
            r"the lease ends in (\d+\.\d) s unless it is renewed\. Waited (\d+\.\d) s\.",
            str(error),
        )
        assert seen, str(error)
        holder = error.holder
        assert holder.acquired_at is not None
        assert before < holder.acquired_at < datetime.now(UTC) + timedelta(seconds=1)
        assert holder.acquired_at.strftime("%Y-%m-%d %H:%M:%S") == seen[1]
        assert 0 <= float(seen[2]) < 5
        assert 25 < float(seen[3]) <= 30
        assert float(seen[4]) < 5

    def test_the_wait_of_a_conflict(self, redis: Redis) -> None:
        """The time that we waited is measured, not repeated from the argument."""
        error, _ = conflict(redis, wait=0.2)
        assert 0.2 <= error.waited < 5
        assert f" Waited {error.waited:.1f} s." in str(error)

    def test_the_place_in_the_queue(self, redis: Redis) -> None:
        """A waiter that gives up learns how many were before it."""
        redis.set(KEY, "a stranger's", px=60_000)
        with ThreadPoolExecutor(2) as threads:
            for number in (1, 2):
                threads.submit(redis_lock("job", wait=PATIENCE)(lambda: None))
                eventually(lambda number=number: redis.zcard(f"{KEY}:queue") == number)
            with pytest.raises(LockNotAcquired) as caught:
                redis_lock("job", wait=0.1).__enter__()
            redis.delete(KEY)
        assert caught.value.position == 2

    def test_a_stranger(self, redis: Redis) -> None:
        """A value that isn't ours has no owner and no times, and none are invented."""
        error, _ = conflict_with_a_stranger(redis)
        assert str(error) == (
            "'job' is held by a value that this package did not write; it has no TTL and stays "
            "until somebody deletes it. Waited 0.0 s."
        )

    def test_reentry(self, redis: Redis) -> None:
        """It says where this thread has taken the lock, and what to write."""
        error, _ = reentry(redis)
        assert str(error) == (
            "'job' is already held by this very thread or task, taken at shop/tasks.py:7. It "
            "would wait for itself; if the inner block belongs to the outer one, "
            "write reentrant=True on the inner lock."
        )

    @pytest.mark.parametrize(
        ("make", "why"),
        [
            (loss, "it expired before it was renewed, or its key was deleted"),
            (succession, rf"{re.escape(socket.gethostname())}:\d+:next_0 holds the lock now"),
            (revocation, r"cleared by anna \(stuck \| since noon\)"),
        ],
    )
    def test_losses(self, make: Callable[[Redis], Made], why: str, redis: Redis) -> None:
        """A lost lease says why, in the message and as `why`."""
        error, _ = make(redis)
        assert isinstance(error, LeaseLost)
        assert re.fullmatch(rf"The lease on 'job' is lost: {why}\.", str(error))
        assert re.fullmatch(why, error.why)

    @pytest.mark.parametrize(
        ("by", "reason", "text"),
        [
            ("anna", "stuck", "cleared by anna (stuck)"),
            ("", "stuck", "cleared by an operator (stuck)"),
            ("anna", "", "cleared by anna (no reason given)"),
            ("Änna|x", "a|b", "cleared by Änna/x (a|b)"),
            ("an\nna", "a\0b", "cleared by an?na (a?b)"),
        ],
    )
    def test_revocations(self, by: str, reason: str, text: str, redis: Redis) -> None:
        """Whatever an operator typed, who and why stay apart and on one line."""
        error, _ = revocation(redis, by, reason)
        assert str(error) == f"The lease on 'job' is lost: {text}."

    def test_an_outage(self, redis: Redis) -> None:
        """It says which server and lock, and what the client library said; that is the cause."""
        error, _ = outage(redis)
        assert isinstance(error, LockUnavailable)
        assert re.match(
            r"Redis 'default' \(localhost:1\) could not be reached (for \S+ s )?while locking "
            r"'job': ConnectionError: .*localhost:1",
            str(error),
        )
        assert isinstance(error.__cause__, redis_exceptions.ConnectionError)
        assert (error.doubtful, error.passing, error.name) == (False, True, "job")

    def test_they_are_logged_readably(self, made: Made) -> None:
        """A message is one line without control characters, and a repr says as much."""
        error, _ = made
        assert str(error).isprintable()
        assert len(str(error)) < 500
        assert type(error).__name__ in repr(error)
        assert "job" in repr(error)


class TestSecrets:
    def test_no_message_contains_a_token(
        self, made: Made, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Whoever reads logs can't release or extend a lock, nor log in to Redis."""
        error, secrets = made
        texts = [str(error), repr(error), caplog.text, *map(str, error.args)]
        texts += [str(value) for value in vars(error).values()]
        if isinstance(error, LockNotAcquired):
            texts += map(str, error.holder)
        for secret in secrets:
            assert not [text for text in texts if secret in text]

    def test_no_repr_contains_a_token(self, redis: Redis) -> None:
        """Locks and leases may be printed; only `token` and `export()` tell the secret."""
        lock = redis_lock("job")
        with lock as lease:
            holder = lock.holder()
            for thing in (lock, lease, holder):
                assert lease.token not in f"{thing} {thing!r}"

    def test_no_log_contains_a_token(self, redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
        """Also at DEBUG, also when things go wrong."""
        caplog.set_level(logging.DEBUG)
        tokens = [token for make in (loss, succession, revocation) for token in make(redis)[1]]
        assert len(tokens) == 4
        assert "is lost" in caplog.text
        assert not [token for token in tokens if token in caplog.text]


class TestHierarchy:
    def test_one_error_for_each_decision(self) -> None:
        """A handler of one of them doesn't catch another by accident; `except
        redis.exceptions.LockError` goes on working, and ours are a part of those."""
        apart = [LockNotAcquired, LockReentered, LeaseLost, LockUnavailable]
        for one in apart:
            assert [other for other in apart if issubclass(other, one)] == [one]
            assert issubclass(one, LockError)
        assert issubclass(LeaseRevoked, LeaseLost)
        assert issubclass(LockError, redis_exceptions.LockError)

    def test_an_outage_is_no_connection_error(self) -> None:
        """A handler of broken connections mustn't repeat what was done under a lock."""
        assert not issubclass(LockUnavailable, redis_exceptions.ConnectionError | OSError)

    def test_each_is_caught_by_the_handler_of_redis(self, made: Made) -> None:
        """Code that moves over from cache.lock() still works."""
        error, _ = made
        with pytest.raises(redis_exceptions.LockError) as caught:
            raise error
        assert caught.value is error
        if not isinstance(error, LockUnavailable) and type(error) is not LockError:
            assert error.lock_name == "job"


class TestTravel:
    @pytest.mark.parametrize("travel", [0, 2, pickle.HIGHEST_PROTOCOL, "copy", "deepcopy"])
    def test_errors(self, made: Made, travel: Any) -> None:
        """Errors cross process borders (pools, task queues) with all that they know."""
        error, _ = made
        error.add_note("of the sender")
        if isinstance(travel, int):
            copied = pickle.loads(pickle.dumps(error, travel))
        else:
            copied = getattr(copy, travel)(error)
        assert type(copied) is type(error)
        assert copied is not error
        assert str(copied) == str(error)
        assert vars(copied) == vars(error)

    def test_a_result_back_end(self, made: Made) -> None:
        """Celery writes `args` as JSON and calls the class with them: the message survives."""
        error, _ = made
        copied = type(error)(*json.loads(json.dumps(error.args)))
        assert (str(copied), copied.name) == (str(error), error.name)
        if isinstance(error, LockNotAcquired):
            assert (copied.holder, copied.position) == (error.holder, error.position)

    @pytest.mark.parametrize(
        "error",
        [
            ComputationFailed("rates", error="shop.NoRates", message="none", owner="web1:7:main"),
            StaleLease("job", "shop.Order", [UUID(int=1), 7], 5, 6),
            StaleRead("job", "shop.Order", [UUID(int=1)], "was deleted"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_a_result_back_end_with_other_errors(self, error: LockError) -> None:
        """Primary keys that JSON can't write are written as text, and keywords are kept."""
        copied = type(error)(*json.loads(json.dumps(error.args)))
        assert copied.name == error.name
        assert type(error)(*copied.args).args == copied.args == error.args

    @pytest.mark.parametrize("flags", [(True, False), (False, True)])
    def test_flags(self, flags: tuple[bool, bool]) -> None:
        """The flags of an outage survive."""
        error = LockUnavailable("away", doubtful=flags[0], passing=flags[1])
        copied = pickle.loads(pickle.dumps(error))
        assert (copied.doubtful, copied.passing) == flags

    def test_a_holder(self, redis: Redis) -> None:
        """A holder is a plain value, equal to its copy."""
        error, _ = conflict(redis)
        assert isinstance(error, LockNotAcquired)
        copied = pickle.loads(pickle.dumps(error.holder))
        assert copied == error.holder
        assert type(copied) is Holder
        assert str(copied) == str(error.holder)
        assert copied.acquired_at.tzinfo is UTC

    @pytest.mark.parametrize("travel", [pickle.dumps, copy.copy, copy.deepcopy])
    def test_a_lease_does_not(self, travel: Callable[[Any], Any]) -> None:
        """A lease is not doubled by accident: the error names `export()` instead."""
        with redis_lock("job") as lease, pytest.raises(TypeError, match=r"export\(\)"):
            travel(lease)
