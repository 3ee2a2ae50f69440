"""REDISLOCK in the settings: what it says, when it is read, and what is wrong with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, get_args

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.test import override_settings
from redis import Redis

from django_redislock import LeaseState, LockNotAcquired, current_lease, redis_lock
from django_redislock.settings import conf, kinds
from django_redislock.settings.policy import Kind, Policy
from tests.waiting import PATIENCE, eventually

KEY = "redislock:{job}"


def policy(name: str = "job", **arguments: Any) -> Policy:
    """What comes of the arguments and the settings."""
    return redis_lock(name, **arguments)._policy()


def configured(**settings: Any) -> override_settings:
    return override_settings(REDISLOCK=settings)


def busy(redis: Redis, key: str = KEY) -> None:
    """Somebody else holds the lock."""
    redis.set(key, "a stranger's", px=60_000)


class TestPrecedence:
    DEFAULTS = Policy(
        using="default",
        ttl=30,
        wait=10,
        renew=True,
        max_hold=None,
        release="exit",
        on_conflict="raise",
    )

    @pytest.mark.parametrize("settings", [{}, {"LOCKS": {}}, {"LOCKS": {"other": {"TTL": 5}}}])
    def test_defaults(self, settings: Any) -> None:
        """Nobody needs to set anything."""
        with override_settings(REDISLOCK=settings):
            assert policy() == self.DEFAULTS

    def test_without_the_setting(self) -> None:
        """A project without REDISLOCK has the defaults."""
        with override_settings():
            assert policy() == self.DEFAULTS

    @pytest.mark.parametrize("another_django", [False, True])
    def test_it_is_set_later(self, another_django: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """However that is done, and however often it was missing before; also where Django has
        another inside."""
        if another_django:
            monkeypatch.setattr(conf, "_without", None)
            monkeypatch.setattr(conf, "cached", lambda _: None)
        with override_settings():
            for _ in range(3):
                assert policy() == self.DEFAULTS
                settings.REDISLOCK = {"TTL": 5}
                assert policy().ttl == 5
                del settings.REDISLOCK
                assert policy() == self.DEFAULTS
                with configured(TTL=6):
                    assert policy().ttl == 6
                assert policy() == self.DEFAULTS

    VALUES = [
        ("USING", "other", "third"),
        ("TTL", 60, 90),
        ("WAIT", 0, None),
        ("WAIT", None, 0),
        ("RENEW", False, True),
        ("MAX_HOLD", 600, None),
        ("RELEASE", "commit", "exit"),
        ("ON_CONFLICT", "skip", "raise"),
        ("ON_CONFLICT", print, "skip"),
    ]

    @pytest.mark.parametrize(("key", "value", "better"), VALUES)
    def test_each_is_better_than_the_one_before(self, key: str, value: Any, better: Any) -> None:
        """Default, then REDISLOCK, then the lock's entry in LOCKS, then the argument."""
        field = key.lower()
        with configured(**{key: value}):
            assert getattr(policy(), field) == value
        with configured(**{key: value, "LOCKS": {"job": {key: better}}}):
            assert getattr(policy(), field) == better
            assert getattr(policy("other"), field) == value
            assert getattr(policy(**{field: value}), field) == value
        with configured(**{key: value}):
            assert getattr(policy(**{field: better}), field) == better

    LOCKS = {
        "report:*": {"TTL": 10},
        "report:daily:*": {"TTL": 20},
        "*": {"TTL": 40, "WAIT": 1},
        "report:daily:tax": {"TTL": 50},
        "job[12]": {"TTL": 60},
        "job?": {"TTL": 70},
    }

    @pytest.mark.parametrize(
        ("name", "ttl"),
        [
            ("report:weekly", 10),
            ("report:daily:sales", 20),
            ("report:daily:tax", 50),
            ("report:*", 10),
            ("report", 40),
            ("Report:weekly", 40),
            ("job1", 60),
            ("job3", 70),
            ("job[12]", 60),
            ("job12", 40),
        ],
    )
    @pytest.mark.parametrize("order", [list, reversed], ids=["in order", "reversed"])
    def test_which_entry_matches(self, name: str, ttl: float, order: Any) -> None:
        """The exact name, else the longest pattern; their order and other locks don't matter."""
        with configured(LOCKS=dict(order(self.LOCKS.items()))):
            assert policy(name).ttl == ttl

    def test_entries_are_not_mixed(self) -> None:
        """One entry counts: what it doesn't say is the default's, not a shorter pattern's."""
        with configured(LOCKS=self.LOCKS, WAIT=3):
            assert policy("report:weekly").wait == 3
            assert policy("elsewhere").wait == 1

    def test_a_decorated_function_is_found_by_the_name_of_the_call(self) -> None:
        """The entry belongs to the name that a template has made."""

        @redis_lock("report:{number}")
        def report(number: int) -> float:
            return current_lease().ttl

        with configured(LOCKS={"report:7": {"TTL": 77}, "report:*": {"TTL": 70}}):
            assert (report(7), report(8)) == (77, 70)

    def test_the_kinds(self) -> None:
        """Each kind that `KIND` may name has a primitive."""
        assert list(kinds.KINDS) == list(get_args(Kind))


class TestReadLive:
    def test_a_lock_that_was_made_before(self) -> None:
        """Module level locks and decorated functions follow the settings of the moment."""
        lock = redis_lock("job")
        work = lock(lambda: current_lease().ttl)
        for ttl in (5, 6):
            with configured(TTL=ttl):
                assert work() == ttl
                with lock as lease:
                    assert lease.ttl == ttl
        assert work() == 30

    def test_changed_in_place(self) -> None:
        """A change inside of the dict counts, also deep inside."""
        settings: dict[str, Any] = {"TTL": 5, "LOCKS": {"job": {"WAIT": 1}}}
        with override_settings(REDISLOCK=settings):
            assert (policy().ttl, policy().wait) == (5, 1)
            settings["TTL"] = 6
            settings["LOCKS"]["job"]["WAIT"] = 2
            assert (policy().ttl, policy().wait) == (6, 2)
            settings["LOCKS"].clear()
            assert policy().wait == 10
            settings["TTL"] = "6"
            with pytest.raises(ImproperlyConfigured, match=r"REDISLOCK\['TTL'\]"):
                policy()

    def test_a_change_while_the_lock_is_held(self, redis: Redis) -> None:
        """A lease stays what and where it was acquired, and is released there."""
        with redis_lock("job") as lease, configured(PREFIX="redislock-new", TTL=5):
            lease.extend()
            assert lease.ttl == 30
            assert redis.exists(KEY)
        assert not redis.exists(KEY)
        assert not redis.keys("redislock-new*")


def function_with_state() -> Callable[..., Any]:
    """A bound method of something that can't be copied."""

    class Handler:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def handle(self, conflict: LockNotAcquired) -> str:
            return f"{conflict.name} was busy"

    return Handler().handle


# One for each key: test_bad_input.py has all that is wrong as an argument.
WRONG = [
    ("USING", None, "using must be an alias of CACHES"),
    ("TTL", 0, "ttl must be between"),
    ("TTL", "30", "ttl must be a number of seconds"),
    ("WAIT", -1, "wait must be 0 or more"),
    ("RENEW", 1, "renew must be True or False"),
    ("REPLICAS_TIMEOUT", "1", "replicas_timeout must be a number of seconds"),
    ("REPLICAS_TIMEOUT", 0, "replicas_timeout must be between"),
    ("AFTER_LOSS", "pause", "after_loss must be 'go' or 'wait'"),
    ("MAX_HOLD", 0, "max_hold must be between"),
    ("RELEASE", "never", "release must be 'exit' .*'warn' .* or 'commit'"),
    ("ON_CONFLICT", None, "on_conflict must be 'raise', 'skip' or a function"),
]


LOCKS, JOB = r"REDISLOCK\['LOCKS'\]", r"REDISLOCK\['LOCKS'\]\['job'\]"
HAS = "it has USING, TTL, WAIT, RENEW, REPLICAS, REPLICAS_TIMEOUT, AFTER_LOSS, MAX_HOLD, "
HAS += "NOTE_TTL, KEEP_NOTE, MAX_RESUMPTIONS, "
HAS += "RELEASE, ON_CONFLICT, UNAVAILABLE, VIEW_WAIT, VIEW_STATUS, VIEW_RESPONSE, LOCK_ORDER"
HAS += ", TRACE_NAMES, SCOPE"
OF_LOCKS = f"{HAS}, KIND, LIMIT, TIMESTAMP_KEY, FRACTIONS$"


def entry(value: Any) -> dict[str, Any]:
    return {"LOCKS": {"job": value}}


TYPOS = ("TIMEOUT", "ttl", "Ttl", "REENTRANT", "", 42, None)
UNKNOWN = [
    *(({key: 5}, f"REDISLOCK has no key {key!r}; {HAS}") for key in TYPOS),
    *((entry({key: 5}), f"{JOB} has no key {key!r}; {OF_LOCKS}") for key in TYPOS),
    ({"PREFFIX": "shop"}, "REDISLOCK has no key 'PREFFIX'; it has .*PREFIX.*LOCKS"),
    (entry({"PREFIX": "shop"}), f"{JOB} has no key 'PREFIX'"),
    (entry({"LOCKS": "shop"}), f"{JOB} has no key 'LOCKS'"),
]
"""A typo must not be silent."""

NO_DICTS = (None, [], "redislock", 42)
NO_NAMES = (42, None, ("report", "*"), b"report:*")
OF_ANOTHER_TYPE = [
    *((value, "REDISLOCK must be a dict, not ") for value in NO_DICTS),
    *(({"LOCKS": value}, f"{LOCKS} must be a dict, not ") for value in NO_DICTS),
    *((entry(value), f"{JOB} must be a dict, not ") for value in NO_DICTS),
    *(({"LOCKS": {name: {"TTL": 5}}}, LOCKS) for name in NO_NAMES),
]

KINDS = [
    (entry({"KIND": "latch"}), rf"{JOB}\['KIND'\]: kind must be 'mutex'.*, not 'latch'"),
    (entry({"LIMIT": 0}), rf"{JOB}\['LIMIT'\]: limit must be between 1 and"),
    (entry({"LIMIT": "3"}), rf"{JOB}\['LIMIT'\]: limit must be a number of holders, such as 3"),
    (entry({"TIMESTAMP_KEY": ""}), rf"{JOB}\['TIMESTAMP_KEY'\]: timestamp_key is empty"),
    (entry({"TIMESTAMP_KEY": 1}), rf"{JOB}\['TIMESTAMP_KEY'\]: timestamp_key must be a str"),
    *(({key: 1}, f"REDISLOCK has no key '{key}'") for key in ("KIND", "LIMIT", "TIMESTAMP_KEY")),
]
"""What makes a lock one of another kind stands in its own entry, and nowhere else."""


class TestWrong:
    @pytest.mark.parametrize(("key", "value", "words"), WRONG)
    def test_a_value(self, key: str, value: Any, words: str, redis: Redis) -> None:
        """A wrong value is named by its place, with what is right there; nothing is locked."""
        with (
            configured(**{key: value}),
            pytest.raises(ImproperlyConfigured, match=rf"^REDISLOCK\['{key}'\]: {words}"),
        ):
            redis_lock("job").acquire()
        assert not redis.keys("redislock*")

    @pytest.mark.parametrize(("key", "value", "words"), WRONG)
    def test_a_value_of_an_entry(self, key: str, value: Any, words: str) -> None:
        """Also in LOCKS, and also when the entry is for another lock."""
        place = rf"^REDISLOCK\['LOCKS'\]\['report:\*'\]\['{key}'\]: {words}"
        with (
            configured(LOCKS={"report:*": {key: value}}),
            pytest.raises(ImproperlyConfigured, match=place),
        ):
            asyncio.run(redis_lock("job").aacquire())

    @pytest.mark.parametrize(("setting", "words"), [*UNKNOWN, *OF_ANOTHER_TYPE, *KINDS], ids=str)
    def test_others(self, setting: Any, words: str) -> None:
        """A wrong key or type is named by its place, with what is right there."""
        with (
            override_settings(REDISLOCK=setting),
            pytest.raises(ImproperlyConfigured, match=f"^{words}"),
        ):
            policy()

    @pytest.mark.parametrize(
        "prefix",
        ["", None, 42, b"shop", "sh{op", "sh{o}p", "sh}op", "sh\nop"],
        ids=repr,
    )
    def test_a_prefix(self, prefix: Any, redis: Redis) -> None:
        """A prefix is a printable text without braces, which mark the name in the key."""
        words = r"^REDISLOCK\['PREFIX'\]: prefix must be a non-empty str without braces and \|, "
        with configured(PREFIX=prefix), pytest.raises(ImproperlyConfigured, match=words):
            redis_lock("job").acquire()

    def test_an_explicit_argument_does_not_hide_it(self) -> None:
        """A wrong setting is an error for every lock, and so found on the first day."""
        with configured(TTL=0), pytest.raises(ImproperlyConfigured, match="TTL"):
            redis_lock("job", ttl=30).acquire()

    def test_it_is_gone_when_it_is_corrected(self) -> None:
        """An error is not remembered."""
        with configured(TTL=0), pytest.raises(ImproperlyConfigured):
            policy()
        assert policy().ttl == 30


class TestInEffect:
    def test_prefix(self, redis: Redis) -> None:
        """All keys begin with PREFIX, and locks of different prefixes don't know each other."""
        with redis_lock("job"), configured(PREFIX="redislock-shop"):
            other = redis_lock("job").acquire(wait=0)
            assert redis.exists("redislock-shop:{job}")
            assert redis.exists("redislock-shop:clock")
            other.release()
            assert redis.pexpiretime("redislock:{job}")
            assert not redis.exists("redislock-shop:{job}")

    def test_using(self, redis: Redis) -> None:
        """USING names the CACHES entry whose server has the locks."""
        default = settings.CACHES["default"]
        server = default["LOCATION"].partition("?")[0]
        second = f"{server}?db=1" if server.startswith("unix:") else f"{server.rstrip('/')}/1"
        caches = {"default": default, "locks": {**default, "LOCATION": second}}
        with override_settings(CACHES=caches, REDISLOCK={"USING": "locks"}):
            with redis_lock("job") as lease:
                assert lease.using == "locks"
                assert not redis.exists(KEY)
                with redis_lock("job", using="default"):
                    assert redis.exists(KEY)

            async def main() -> None:
                async with redis_lock("job"):
                    assert not redis.exists(KEY)

            asyncio.run(main())

    def test_wait(self, redis: Redis) -> None:
        """WAIT is how long acquire waits when it isn't told."""
        busy(redis)
        with configured(WAIT=0), pytest.raises(LockNotAcquired) as caught:
            redis_lock("job").__enter__()
        assert caught.value.waited < 1
        with configured(WAIT=0.15), pytest.raises(LockNotAcquired) as caught:
            redis_lock("job").__enter__()
        assert 0.15 <= caught.value.waited < 5

    @pytest.mark.parametrize(
        "settings", [{"MAX_HOLD": 0.2}, {"TTL": 0.2, "RENEW": False}], ids=["MAX_HOLD", "RENEW"]
    )
    def test_the_end_of_renewal(self, settings: Any, redis: Redis) -> None:
        """After MAX_HOLD, and without RENEW after the ttl, a lease that is kept is lost."""
        lost = threading.Event()
        with configured(**settings):
            lease = redis_lock("job", on_lost=lambda _lease: lost.set()).acquire()
        assert lost.wait(PATIENCE)
        assert lease.state == LeaseState.LOST
        eventually(lambda: not redis.exists(KEY))

    def test_on_conflict_skip(self, redis: Redis) -> None:
        """ON_CONFLICT is what decorated functions do; an argument of theirs is better."""
        busy(redis)
        with configured(ON_CONFLICT="skip", WAIT=0):
            assert redis_lock("job")(lambda: "worked")() is None
            with pytest.raises(LockNotAcquired):
                redis_lock("job", on_conflict="raise")(lambda: "worked")()

    def test_on_conflict_method(self, redis: Redis) -> None:
        """Any callable will do, also a method of an object that can't be copied."""
        busy(redis)
        with configured(ON_CONFLICT=function_with_state(), WAIT=0):
            assert redis_lock("job")(lambda: "worked")() == "job was busy"

    @pytest.mark.parametrize("value", ["skip", print], ids=["skip", "function"])
    def test_a_block_can_not_be_skipped(self, value: Any, redis: Redis) -> None:
        """Under any ON_CONFLICT of the settings, a block that gets no lock raises."""
        busy(redis)

        async def block() -> None:
            async with redis_lock("job"):
                pass

        with configured(ON_CONFLICT=value, WAIT=0):
            with pytest.raises(LockNotAcquired):
                redis_lock("job").__enter__()
            with pytest.raises(LockNotAcquired):
                asyncio.run(block())
            assert redis_lock("job").acquire() is None

    @pytest.mark.django_db(transaction=True)
    def test_release(self, redis: Redis) -> None:
        """RELEASE="commit" keeps locks until the end of the transaction around them."""
        with configured(RELEASE="commit"):
            with transaction.atomic():
                with redis_lock("job"):
                    pass
                assert redis.exists(KEY)
                with redis_lock("job:now", release="exit"):
                    pass
                assert not redis.exists("redislock:{job:now}")
            assert not redis.exists(KEY)
