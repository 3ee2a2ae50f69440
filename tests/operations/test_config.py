"""`redislock config`: each setting, and where it comes from."""

from __future__ import annotations

from django.test import override_settings

from django_redislock import redis_lock
from django_redislock.settings import conf
from django_redislock.settings.policy import Policy
from tests.operations.calling import AWAY, call, run
from tests.operations.schema import PAGE

SETTINGS = {
    "PREFIX": "redislock-shop",
    "TTL": 60,
    "WAIT": 5,
    "ON_CONFLICT": call,
    "LOCKS": {"report:*": {"TTL": 300}, "report:tax": {"WAIT": None}, "re*": {"RENEW": False}},
}


def test_each_source() -> None:
    """A setting comes from the default, from REDISLOCK, or from the entry of LOCKS that counts."""
    with override_settings(REDISLOCK=SETTINGS):
        found = call("config", "report:daily", "--json").json["settings"]
        assert found["TTL"] == {"value": 300, "source": "LOCKS", "entry": "report:*"}
        assert found["WAIT"] == {"value": 5, "source": "REDISLOCK", "entry": None}
        assert found["RENEW"] == {"value": True, "source": "default", "entry": None}
        assert found["PREFIX"] == {
            "value": "redislock-shop",
            "source": "REDISLOCK",
            "entry": None,
        }
        assert found["ON_CONFLICT"]["value"].endswith("in call")
        found = call("config", "report:tax", "--json").json["settings"]
        assert found["WAIT"] == {"value": None, "source": "LOCKS", "entry": "report:tax"}
        assert found["TTL"]["source"] == "REDISLOCK"


def test_for_people() -> None:
    """The source is written as in the settings."""
    with override_settings(REDISLOCK=SETTINGS):
        lines = [line.split(maxsplit=2) for line in call("config", "report:daily").out.split("\n")]
    assert ["TTL", "300", "REDISLOCK['LOCKS']['report:*']['TTL']"] in lines
    assert ["WAIT", "5", "REDISLOCK['WAIT']"] in lines
    assert ["RENEW", "True", "the default"] in lines


def test_it_is_what_locks_have() -> None:
    """The shown settings are those that locks use, whatever their source."""
    with override_settings(REDISLOCK=SETTINGS):
        for name in ("report:daily", "report:tax", "rest", "job"):
            found = conf.origins(name)
            assert set(found) == {*Policy._fields, "prefix"}
            policy = redis_lock(name)._policy()
            assert {term: found[term].value for term in Policy._fields} == policy._asdict()


def test_it_asks_nobody() -> None:
    """The command works if Redis is away."""
    done = run("config", "job", url=AWAY)
    assert (done.code, done.err) == (0, "")


def test_the_example_of_the_page() -> None:
    """It is what the command prints."""
    with override_settings(REDISLOCK={"LOCKS": {"report:*": {"TTL": 300, "WAIT": 0}}}):
        assert f"config report:daily\n{call('config', 'report:daily').out}```" in PAGE
