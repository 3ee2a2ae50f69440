"""`redislock clear`: what was shown, and nothing else."""

from __future__ import annotations

import getpass
import shlex
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from redis import Redis

from django_redislock import LeaseRevoked, LockError, LockUnavailable, redis_lock
from django_redislock.inspection import Inspector, LockInfo
from django_redislock.lease.lease import Lease
from django_redislock.management.arguments import PLACEHOLDER, operator
from django_redislock.management.subcommands.clear import seen_at
from tests.operations.calling import before_clearing, call, granted, strangers
from tests.operations.terminal import Terminal
from tests.processes import Worker
from tests.waiting import eventually

KEY = "redislock:{job}"
YES = ("--yes", "--reason", "stuck")


def acquire(name: str = "job") -> Lease:
    lease = redis_lock(name, ttl=60).acquire(wait=0)
    assert lease is not None
    return lease


def pasted(out: str) -> list[str]:
    """The command that a dry run prints, as a shell reads it."""
    words = shlex.split(out.splitlines()[-1])
    assert words[:3] == ["manage.py", "redislock", "clear"]
    return [word.replace(PLACEHOLDER, "stuck") for word in words[2:]]


class TestDryRun:
    @pytest.mark.parametrize(
        "arguments", [["job"], ["--pattern", "*"], ["--stale"], ["job", "--json"]], ids=" ".join
    )
    def test_does_nothing(self, arguments: list[str], redis: Redis) -> None:
        """A dry run shows the holders and clears nothing."""
        granted(redis, "job")
        done = call("clear", *arguments)
        assert done.code == 0
        assert "--json" in arguments or "web3 · 1 · x" in done.out
        assert redis.exists(KEY)

    @pytest.mark.parametrize("reason", ["", " ", "…", "...", "WHY", "why"])
    def test_a_reason_that_is_none(self, reason: str, redis: Redis) -> None:
        """The placeholder of the command to paste is refused."""
        granted(redis, "job")
        done = call("clear", "job", "--yes", f"--reason={reason}")
        assert done.code == 1
        assert "write why, not" in done.err
        assert redis.exists(KEY)

    def test_what_it_does(self, redis: Redis, start: Callable[..., Worker]) -> None:
        """A dry run says what clearing does, and what is safer."""
        lease = acquire()
        waiter = start("wait")
        eventually(lambda: redis.zcard("redislock:{job}:queue") == 1)
        done = call("clear", "job")
        assert ") is alive; two may work at once for up to 20.0 s. Next: " in done.out
        assert f" · {waiter.process.pid}, waiting for " in done.out
        assert "It is safer to end process " in done.out
        granted(redis, "stale")
        assert "1 of 2 holders may be alive; then two may work" in call(
            "clear", "job", "stale"
        ).out  # fmt: skip
        assert "can’t come back" in call("clear", "stale").out
        cleared = call("clear", "job", *YES).out
        assert f" · {waiter.process.pid} now." in cleared
        assert call("clear", "stale", *YES).out.endswith("Nobody holds it now.\n")
        with pytest.raises(LeaseRevoked):
            lease.release()

    def test_what_to_write(self, redis: Redis) -> None:
        """The last line is a command that clears what was shown, whatever the names look like."""
        awkward = ["-x", "it's", "a b"]
        for name in awkward:
            granted(redis, name)
        done = call("clear", "--by=Ada L.", "--reason=it's stuck", "--", *awkward)
        again = call(*pasted(done.out))
        assert again.code == 0
        assert "3 of 3 locks cleared." in again.out
        granted(redis, "-y:1")
        assert "1 of 1 lock cleared." in call(*pasted(call("clear", "--pattern=-y*").out)).out
        granted(redis, "job")
        assert "1 of 1 lock cleared." in call(*pasted(call("clear", "--stale").out)).out

    def test_nothing_to_clear(self) -> None:
        """Nothing to clear is no failure, unless a lock was named: the name may be a typing
        error."""
        assert call("clear", "--stale") == (0, "There is nothing to clear.\n", "")
        done = call("clear", "job")
        assert (done.code, done.out) == (3, "Nobody holds 'job'.\nThere is nothing to clear.\n")


class TestWhich:
    """Two locks whose processes live, and two whose processes are dead."""

    @pytest.mark.parametrize(
        ("arguments", "cleared"),
        [
            (["a:1"], {"a:1"}),
            (["a:1", "b:2", "a:1"], {"a:1", "b:2"}),
            (["--pattern", "a:*"], {"a:1", "a:2"}),
            (["--pattern", "*"], {"a:1", "a:2", "b:1", "b:2"}),
            (["--stale"], {"a:2", "b:2"}),
            (["--stale", "--pattern", "a:*"], {"a:2"}),
            (["legacy", "old"], {"legacy", "old"}),
        ],
    )
    def test_names_and_patterns(
        self, arguments: list[str], cleared: set[str], redis: Redis
    ) -> None:
        """Values of others are cleared only when they are named."""
        alive = [acquire("a:1"), acquire("b:1")]
        granted(redis, "a:2")
        granted(redis, "b:2")
        strangers(redis)
        everything = {"a:1", "a:2", "b:1", "b:2", "legacy", "old"}
        assert call("clear", *arguments, *YES).code == 0
        assert {
            name for name in everything if not redis.exists(f"redislock:{{{name}}}")
        } == cleared
        for lease in alive:
            if lease.name in cleared:
                with pytest.raises(LeaseRevoked):
                    lease.extend()
            else:
                lease.release()

    def test_more_than_a_page(self, redis: Redis) -> None:
        """All locks that match are cleared."""
        for number in range(120):
            granted(redis, f"n:{number}")
        assert "120 of 120 locks cleared." in call("clear", "--stale", *YES).out


class TestWhoIsTold:
    def test_the_holder(self) -> None:
        """The holder learns by whom and why its lock was cleared."""
        lease = acquire()
        assert call("clear", "job", "--by", "Ada|x", "--yes", "--reason", "a|b").code == 0
        with pytest.raises(LeaseRevoked) as revoked:
            lease.extend()
        assert (revoked.value.by, revoked.value.reason) == ("Ada/x", "a|b")

    def test_the_operator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The operator is the user and the host; in a container the user may have no name."""
        assert operator() == f"{getpass.getuser()}@{socket.gethostname()}"

        def nameless() -> str:
            raise KeyError("uid not found")

        monkeypatch.setattr(getpass, "getuser", nameless)
        assert operator().startswith("uid ")


class TestChangedHands:
    """Only what was shown is cleared."""

    @pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
    def test_between_the_look_and_the_clearing(
        self, form: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The new holder keeps its lock, the others are cleared, and the exit code says so."""
        leases = [acquire("job"), acquire("other")]

        def overtake(lock: LockInfo) -> None:
            if lock.name == "job":
                leases[0].release()
                leases[0] = acquire("job")

        before_clearing(monkeypatch, overtake)
        done = call("clear", "job", "other", *YES, *form)
        assert done.code == 75
        if form:
            outcomes = [item["outcome"] for item in done.json["items"]]
            assert outcomes == ["changed hands", "cleared"]
        else:
            assert "'job' has changed hands, and was left alone." in done.out
            assert "1 of 2 locks cleared." in done.out
        leases[0].release()
        with pytest.raises(LeaseRevoked):
            leases[1].extend()

    @pytest.mark.parametrize("arguments", [["job"], ["--pattern", "j*"]], ids=" ".join)
    def test_since_the_dry_run(self, arguments: list[str]) -> None:
        """The command that a dry run prints leaves a later holder alone."""
        acquire().release()
        first = acquire()
        command = pasted(call("clear", *arguments).out)
        first.release()
        with redis_lock("job") as lease:
            done = call(*command)
            assert done.code == 75
            assert "'job' has changed hands" in done.out
            lease.extend()

    def test_handed_to_a_waiter_since_the_dry_run(
        self, redis: Redis, start: Callable[..., Worker]
    ) -> None:
        """A waiter that has the lock now is a later holder."""
        lease = acquire()
        waiter = start("wait")
        eventually(lambda: redis.zcard(f"{KEY}:queue"))
        command = pasted(call("clear", "job").out)
        lease.release()
        waiter.holds()
        assert call(*command).code == 75
        waiter.go_on()
        assert waiter.ends() == 0

    def test_the_same_holder(self) -> None:
        """The holder that was shown is cleared, even if its lease was renewed since."""
        lease = acquire()
        command = pasted(call("clear", "job").out)
        lease.extend()
        assert call(*command).code == 0

    def test_several_looks(self) -> None:
        """The time of the first look counts, so a holder that came during the others is left
        alone."""
        inspector = Inspector()
        with redis_lock("a"):
            first = inspector.get("a")
            with redis_lock("b") as lease:
                second = inspector.get("b")
        assert first is not None
        assert second is not None
        seen = seen_at([second, first])
        assert seen is not None
        assert seen < lease.acquired_at


class TestHalfway:
    def test_redis_goes_away(self, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        """The output says what was cleared, what may have been, and what was not tried."""
        for name in "abc":
            granted(redis, name)

        def fail(lock: LockInfo) -> None:
            if lock.name != "a":
                raise LockUnavailable("Redis is away")

        before_clearing(monkeypatch, fail)
        done = call("clear", "a", "b", "c", *YES)
        assert done.code == 69
        assert "Cleared 'a', " in done.out
        assert "'b' may have been cleared, or not: Redis is away" in done.out
        assert "'c' was left alone." in done.out

    def test_interrupted(self, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        """The output has what was cleared until then."""
        granted(redis, "a")
        granted(redis, "b")
        out = StringIO()

        def interrupt(lock: LockInfo) -> None:
            if lock.name == "b":
                raise KeyboardInterrupt

        before_clearing(monkeypatch, interrupt)
        with pytest.raises(KeyboardInterrupt):
            call_command("redislock", "clear", "a", "b", *YES, stdout=out)
        assert out.getvalue().startswith("Cleared 'a', ")

    def test_redis_refuses(self, redis: Redis, refusing: None) -> None:
        """That lock is left alone, and the others are cleared."""
        granted(redis, "refused")
        granted(redis, "job")
        done = call("clear", "refused", "job", *YES)
        assert done.code == 1
        assert "'refused' can't be cleared: no" in done.out
        assert redis.exists("redislock:{refused}")
        assert not redis.exists(KEY)

    @pytest.fixture
    def refusing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Redis refuses to clear a lock."""

        def refuse(lock: LockInfo) -> None:
            if lock.name == "refused":
                raise LockError("no")

        before_clearing(monkeypatch, refuse)

    @pytest.mark.parametrize(
        ("names", "code"),
        [(["free"], 3), (["free", "job"], 3), (["free", "refused"], 1), (["free", "new"], 75)],
    )
    def test_exit_codes(self, names: list[str], code: int, redis: Redis, refusing: None) -> None:
        """The worst outcome decides."""
        granted(redis, "refused")
        granted(redis, "job")
        with redis_lock("new"):
            yesterday = (datetime.now(UTC) - timedelta(minutes=5)).isoformat()
            assert call("clear", *names, "--as-of", yesterday, *YES).code == code


@pytest.mark.slow
class TestOnATerminal:
    def test_yes(self, redis: Redis, terminal: Callable[..., Terminal]) -> None:
        """It says what clearing does, asks, asks why until there is a reason, and does it."""
        granted(redis, "job")
        screen = terminal("clear", "job", columns=200)
        assert "Clearing is safe" in screen.says("Clear? [y/N] ")
        screen.types("y\n")
        screen.says("Why? The holder sees it: ")
        screen.types("why\n")
        eventually(lambda: screen.text.count("Why? ") == 2)
        assert redis.exists(KEY)
        screen.types("web3 is gone\n")
        assert screen.ends() == 0
        assert "1 of 1 lock cleared." in screen.text
        assert not redis.exists(KEY)
        assert "web3 is gone" in call("show", "job").out

    @pytest.mark.parametrize("answer", ["\n", "n\n", "yess\n", "\x04"])
    def test_no(self, answer: str, redis: Redis, terminal: Callable[..., Terminal]) -> None:
        """Anything but a yes, the end of the input too, does nothing."""
        granted(redis, "job")
        screen = terminal("clear", "--stale")
        screen.says("Clear? [y/N] ")
        screen.types(answer)
        assert screen.ends() == 0
        assert "Nothing was done." in screen.text
        assert redis.exists(KEY)

    def test_interrupted(self, redis: Redis, terminal: Callable[..., Terminal]) -> None:
        """Ctrl-C at the question does nothing."""
        granted(redis, "job")
        screen = terminal("clear", "job")
        screen.says("Clear? [y/N] ")
        screen.types("\x03")
        assert screen.ends() == 130
        assert redis.exists(KEY)
        assert "Traceback" not in screen.text

    def test_it_is_not_asked_with_yes(
        self, redis: Redis, terminal: Callable[..., Terminal]
    ) -> None:
        granted(redis, "job")
        assert terminal("clear", "job", *YES).ends() == 0
        assert not redis.exists(KEY)
