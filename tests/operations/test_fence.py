"""`redislock fence`: the way out if rows have seen newer fencing tokens than any new lease has."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from redis import Redis

from django_redislock import Lease, Semaphore, StaleLease, redis_lock
from tests.models import Product, Shop
from tests.operations.calling import call

HOUR = 3_600_000_000
CLOCK = "redislock:clock"

pytestmark = pytest.mark.django_db


def acquire(name: str = "product:lamp", **options: Any) -> Lease:
    lease = redis_lock(name, **options).acquire(wait=0)
    assert lease is not None
    return lease


def now(redis: Redis) -> int:
    seconds, micros = redis.time()
    return int(seconds * 1_000_000 + micros)


@pytest.fixture
def ahead(redis: Redis) -> int:
    """The fencing token that the lamp's row has seen, before Redis lost its data and its clock was
    set back by an hour."""
    newest = now(redis) + HOUR
    Product.objects.create(name="lamp", stock=5)
    Product.objects.fenced(newest).update(stock=4)
    redis.flushall()
    return newest


def sell() -> int:
    with redis_lock("product:lamp") as lease:
        lamp = Product.objects.fenced(lease).get(name="lamp")
        lamp.stock -= 1
        lamp.save(lease=lease)
        assert lease.fencing_token is not None
        return lease.fencing_token


def test_the_way_out(redis: Redis, ahead: int) -> None:
    """The error names a command, its dry run names one with --yes, and then the row can be written
    again."""
    with pytest.raises(StaleLease) as caught:
        sell()
    named = re.search("`manage.py redislock (.*)`", str(caught.value))
    assert named
    dry = call(*shlex.split(named[1]))
    assert "'product:lamp' is 1 h 00 min behind the newest token that was seen." in dry.out
    with pytest.raises(StaleLease):
        sell()
    done = call(*shlex.split(dry.out.splitlines()[-1])[2:])
    assert (done.code, done.out.splitlines()[-1]) == (0, "1 lock raised.")
    tokens = [sell(), sell(), sell()]
    assert ahead < tokens[0] < tokens[1] < tokens[2]
    assert Product.objects.get().stock == 1


def test_it_lasts(redis: Redis, ahead: int) -> None:
    """The raised token lasts, even if nobody takes the lock."""
    call("fence", "product:lamp", f"--above={ahead}", "--yes")
    assert int(redis.get(CLOCK)) >= ahead
    assert redis.pttl(CLOCK) == -1
    acquire(ttl=1).release()
    assert int(redis.get(CLOCK)) > ahead
    assert redis.pttl(CLOCK) == -1
    again = call("fence", "product:lamp", f"--above={ahead}", "--yes")
    assert again.out.startswith("1 lock unchanged")


def test_while_somebody_holds_it(redis: Redis, ahead: int) -> None:
    """A held lock is no obstacle: neither its renewals nor its release write a token."""
    lease = acquire()
    assert call("fence", "product:lamp", f"--above={ahead}", "--yes").code == 0
    lease.extend()
    lease.release()
    assert not redis.exists("redislock:{product:lamp}")
    assert sell() > ahead


def test_places_are_raised_while_they_are_held(redis: Redis, ahead: int) -> None:
    """Later renewals and releases of the holders keep the raised token."""
    holders = [Semaphore("product:lamp", 3).acquire(wait=0) for _ in range(2)]
    assert call("fence", "product:lamp", f"--above={ahead}", "--yes").code == 0
    for holder in holders:
        holder.extend()
        holder.release()
    last = Semaphore("product:lamp", 3).acquire(wait=0)
    assert last.fencing_token > ahead
    last.release()


def test_a_lock_for_each_row(redis: Redis, ahead: int) -> None:
    """Names may contain columns of the rows. Rows that accept new leases need nothing. The first
    token that is raised is raised for all names."""
    shop = Shop.objects.create(name="corner")
    Product.objects.create(name="bulb", shop=shop)
    Product.objects.filter(name="bulb").fenced(ahead + 1).update(stock=1)
    Product.objects.create(name="cord")
    with redis_lock("product:cord") as lease:
        Product.objects.filter(name="cord").fenced(lease).update(stock=1)
    found = call("fence", "product:{name}", "--model=tests.Product", "--json").json
    assert {item["name"]: (item["seen"], item["outcome"]) for item in found["items"]} == {
        "product:bulb": (ahead + 1, "would"),
        "product:cord": (lease.fencing_token, "above"),
        "product:lamp": (ahead, "would"),
    }
    done = call("fence", "product:{name}", "--model=tests.Product", "--yes")
    assert done.out.splitlines()[-1] == "1 lock raised."
    assert sell() > ahead
    by_shop = call("fence", "{shop__name}:{name}", "--model=tests.Product", "--json").json
    assert "corner:bulb" in [item["name"] for item in by_shop["items"]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["job"], "--model or --above"),
        (["job", "--model=tests.Product", "--above=1"], "--model or --above"),
        (["job", "--model=tests.Nothing"], "not a model with a fencing token"),
        (["job", "--model=tests.Shop"], "not a model with a fencing token"),
        (["job", "--model=x"], "not a model with a fencing token"),
        (["p:{size}", "--model=tests.Product"], "Write columns in braces"),
        (["p:{", "--model=tests.Product"], "Write columns in braces"),
        (["job:{pk}", "--above=1"], "name contains a brace"),
        (["job", "--above=-1"], "write a fencing token"),
        (["job", f"--above={2**53 - 1000}"], "write a fencing token"),
    ],
)
def test_wrong_usage(arguments: list[str], says: str) -> None:
    """The error says what to write."""
    done = call("fence", *arguments)
    assert done.code in (1, 2)
    assert says in done.err


def test_a_token_that_no_lease_had(redis: Redis) -> None:
    """A row may have such a token from elsewhere; no lock can be raised above it."""
    Product.objects.create(name="lamp")
    Product.objects.fenced(2**60).update(stock=1)
    done = call("fence", "product:lamp", "--model=tests.Product", "--yes")
    assert done.code == 1
    assert "which no lease ever had" in done.err


def test_more_than_a_day_ahead(redis: Redis) -> None:
    """Such a token is refused, in a dry run as well, unless the operator has read what it costs.
    The command that a dry run prints can be pasted."""
    far = now(redis) + 26 * HOUR + HOUR // 2
    Product.objects.create(name="lamp")
    Product.objects.fenced(far).update(stock=1)
    for wanted in (f"--above={far}", "--model=tests.Product"):
        for how in ([], ["--yes"]):
            done = call("fence", "product:lamp", wanted, *how)
            assert done.code == 2
            assert "is 1 d 02 h ahead of the clock of Redis" in done.err
            assert "With --force" in done.err
            assert not redis.exists(CLOCK)
    dry = call("fence", "product:lamp", f"--above={far}", "--force")
    done = call(*shlex.split(dry.out.splitlines()[-1])[2:])
    assert (done.code, done.out.splitlines()[-1]) == (0, "1 lock raised.")
    assert acquire().fencing_token == far + 1


@pytest.mark.parametrize("seen", [-HOUR, HOUR])
def test_a_clock_key_that_can_not_be_read(redis: Redis, seen: int) -> None:
    """It is mended as well."""
    seen += now(redis)
    redis.set(CLOCK, "9" * 400)
    dry = call("fence", "product:lamp", f"--above={seen}")
    assert dry.out.startswith("The last fencing token of 'product:lamp' can't be read.\n")
    assert redis.get(CLOCK) == b"9" * 400
    done = call(*shlex.split(dry.out.splitlines()[-1])[2:])
    assert (done.code, done.out.splitlines()[-1]) == (0, "1 lock raised.")
    assert max(seen, now(redis) - HOUR) <= int(redis.get(CLOCK)) <= now(redis) + HOUR
