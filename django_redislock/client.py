"""`cache.lock()` with redis-py's interface and our commands.

    "OPTIONS": {"CLIENT_CLASS": "django_redislock.client.LockingClient"}

`Lock` is a subclass of redis-py's. The signature, the return values, the errors and the place of
the token are those of the installed redis-py; only the commands to the server differ. It locks the
same key as redis-py's lock, so the two exclude each other. docs/drop-in.md lists the intended
differences.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Coroutine
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, cast

from redis.exceptions import ConnectionError, LockNotOwnedError, RedisError, TimeoutError
from redis.lock import Lock as RedisLock
from redis.utils import HIREDIS_AVAILABLE

from .base import people, tokens
from .base.exceptions import LockNotAcquired, LockUnavailable
from .lease import claims
from .lease.holds import Hold
from .lease.lease import Lease
from .lease.watchdog import watchdog
from .primitives import mutex
from .primitives.contract import Claim, Grant, run
from .primitives.keys import Keys, Word
from .primitives.scripts import ask, flag
from .settings import conf, kinds
from .settings.policy import Policy
from .settings.validators import validate_wait
from .transport.ports import SyncPort
from .transport.server import Server, server_of_client

T = TypeVar("T")

MIN_TIMEOUT = 0.01
"""Seconds. A shorter lock would end before the answer that it was acquired arrives."""


class _Held(NamedTuple):
    """The claim that a `Lock` holds."""

    token: bytes
    """redis-py's token."""
    claim: Claim
    grant: Grant
    lease: Lease | None
    """The lease that is renewed, if the lock has no timeout."""
    process: str
    """The process that acquired it. A forked child has a copy and does not hold it."""


class Lock(RedisLock):
    """redis-py's `Lock`, also for its `lock_class=`: `Redis(…).lock("name", lock_class=Lock)`.

    Waiters are woken, and served in order of arrival. With `timeout=None` the lock is renewed for
    as long as this object and its process live; redis-py's would stay without end.
    """

    # Methods that redis-py's own methods call after their checks.

    def acquire(
        self,
        sleep: float | None = None,  # noqa: ARG002 - redis-py's signature
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock. Return False if somebody else held it for all of `blocking_timeout`.

        `sleep` has no effect, since waiters are woken. Of two locks with the same `token`, only
        one is acquired.
        """
        if blocking is None:
            blocking = self.blocking
        if blocking_timeout is None:
            blocking_timeout = self.blocking_timeout
        if not isinstance(blocking_timeout, int | float | None):
            validate_wait(blocking_timeout, "blocking_timeout")  # refuses it
        wait = None if blocking_timeout is None else max(0.0, blocking_timeout)
        given = secrets.token_hex(16) if token is None else token
        return self.do_acquire(self._encode(given), wait if blocking else 0.0)

    def do_acquire(self, token: Any, wait: float | None = 0.0) -> bool:
        number = isinstance(self.timeout, int | float)
        if self.timeout and not (number and self.timeout >= MIN_TIMEOUT):
            raise (ValueError if number else TypeError)(
                f"timeout must be {MIN_TIMEOUT} seconds or more, or None for a lock that is "
                f"renewed until it is released, not {self.timeout!r}"
            )
        keys, server = self._keys(), server_of_client(self.redis)
        policy = conf.policy(keys.name, {})
        renewed = policy.ttl if policy.max_hold is None else min(policy.ttl, policy.max_hold)
        claim = Claim(
            keys=keys,
            # A lock with a timeout does not depend on its process: it ends by itself.
            token=people.Secret(
                (tokens.NO_PROCESS if self.timeout else tokens.process)
                + _tag(token)
                + secrets.token_hex(4)
            ),
            ttl=float(self.timeout or renewed),
            owner=people.owner(people.holder()),
            label=people.of_caller(),
            primitive=mutex,
            guarded=kinds.guarded(
                Policy(using=server.using, after_loss=policy.after_loss),
                lambda _: server.clustered,
            ),
        )
        return _ask(self._attempt(token, server, claim, policy, wait))

    def register_scripts(self) -> None:
        """Register none: they are not used, and would keep the first client alive for good."""

    def owned(self) -> bool:
        """Whether this lock holds the key now."""
        token = self.local.token
        if token is None or self._of_parent:
            return False
        held, found = self._held(token), self._find(token)
        if found is not None and (held is None or held.claim.token == found.token):
            return True
        return super().owned()  # acquired elsewhere by redis-py's Lock, with our token

    def do_release(self, expected_token: Any) -> None:
        held = self._held(expected_token)
        claim = held.claim if held else self._find(expected_token)
        if claim is None:
            super().do_release(expected_token)
            return
        try:
            server = server_of_client(self.redis)
            port = _ImpatientPort(server)
            self._forget()
            begun = claims.release_straight(server, claim)
            refusal = None
            if begun is not None:
                port.begun = begun.begun
                refusal = _ask(claims.release(port, claim))
        except BaseException:
            # redis-py forgets the token in any case, so the caller can't try again.
            claim.doubtful = True
            claims.withdraw(server_of_client(self.redis), claim)
            raise
        if refusal is None:
            run(claims.report(port, "released", claim, server))
            return
        lost = refusal.error(claim.keys.name)
        if held and held.lease:
            # Unless the lease knows it already.
            held.lease._lifetime.lose(lost, at_release=True)
        else:
            run(claims.report(port, "lost", claim, server, why=lost.why))
        raise LockNotOwnedError(
            "Cannot release a lock that's no longer owned", lock_name=_text(self.name)
        ) from lost

    def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        if not self._expire(additional_time, "replace" if replace_ttl else "add"):
            super().do_extend(additional_time, replace_ttl)
        return True

    def do_reacquire(self) -> Literal[True]:
        assert self.timeout is not None
        if not self._expire(self.timeout, "repair"):
            super().do_reacquire()
        return True

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        if not self._of_parent:  # a forked child leaves only its copy of the block
            super().__exit__(exc_type, exc_value, traceback)

    # Beyond redis-py's interface.

    @property
    def fencing_token(self) -> int | None:
        """An integer that only grows per name, so that the database can refuse a smaller one.

        None if this lock holds nothing, or continues what another lock object has acquired.
        """
        if self._of_parent:
            return None
        held = self._held(getattr(self.local, "token", None))
        return None if held is None else held.grant.fencing_token

    # Internals.

    async def _attempt(
        self, token: Any, server: Server, claim: Claim, policy: Policy, wait: float | None
    ) -> bool:
        policy = policy._replace(using=server.using, renew=True, release="exit")
        hold = partial(self._hold, token, server, claim, policy)
        try:
            port = _ImpatientPort(server, terms=policy.terms())
            if not (claim.guarded or server.clustered or policy.replicas):
                _, begun = claims.take(server, policy.terms(), claim, wait, hold)
                if begun is None:
                    return True
                port.begun = begun.begun
            got = await claims.acquire(port, server, claim, wait, hold)
        except BaseException:
            held: _Held | None = getattr(self.local, "held", None)
            if held is not None and held.claim is claim:
                self._forget()
                self.local.token = None
            raise
        return not isinstance(got, LockNotAcquired)

    def _hold(self, token: Any, server: Server, claim: Claim, policy: Policy, got: Grant) -> None:
        lease = None
        if not self.timeout:
            lease = Lease(server, claim, got, policy, Hold(people.holder()))
        else:
            watchdog(server).write_down_later(claim)
        claim.granted = got
        self._forget()  # an earlier claim is lost, or this acquire would have failed
        self.local.held = _Held(token, claim, got, lease, tokens.process)
        self.local.token = token

    def _encode(self, value: Any) -> bytes:
        if isinstance(value, str) and HIREDIS_AVAILABLE:
            return value.encode()  # hiredis packs commands, and ignores the encoding
        return cast(bytes, self.redis.get_encoder().encode(value))

    def _keys(self) -> Keys:
        return Keys.verbatim(conf.prefix(), self._encode(self.name))

    def _port(self) -> _ImpatientPort:
        return _ImpatientPort(server_of_client(self.redis))

    def _held(self, token: Any) -> _Held | None:
        """Return what this lock holds by `token`; None if another lock object has acquired it.

        Raises `LockNotOwnedError` in a forked child if its parent holds the lock.
        """
        held: _Held | None = getattr(self.local, "held", None)
        if held is None or held.token != token:
            return None
        if self._of_parent:
            raise LockNotOwnedError(
                "The lock belongs to the process that acquired it, of which this one is a fork",
                lock_name=_text(self.name),
            )
        return held

    @property
    def _of_parent(self) -> bool:
        """Whether this process is a fork of the process that holds the lock."""
        held: _Held | None = getattr(self.local, "held", None)
        return held is not None and held.process != tokens.process

    def _forget(self) -> None:
        """Stop renewing the claim, which this lock no longer holds."""
        held: _Held | None = getattr(self.local, "held", None)
        if held is not None:
            if held.lease is not None:
                held.lease._close()
            else:
                watchdog(server_of_client(self.redis)).forget(held.claim)
        self.local.held = None

    def _find(self, token: Any) -> Claim | None:
        """Return the claim that another lock object acquired with `token` and still holds."""
        keys = self._keys()
        sight = next(iter(_ask(mutex.holders(self._port(), keys))), None)
        if sight is None or sight.token[8:24] != _tag(self._encode(token)).encode():
            return None
        of = sight.holder
        return Claim(
            keys,
            people.Secret(sight.token.decode()),
            of.remaining or 0.0,
            of.owner or "",
            of.label,
            mutex,
        )

    def _expire(self, seconds: float, how: str) -> bool:
        """Run lua/mutex_expire.lua. Return False if we do not hold the lock."""
        token = self.local.token
        held = self._held(token)
        claim = held.claim if held else self._find(token)
        if claim is None:
            return False
        keys = claim.keys
        args: list[Word] = [claim.token, int(seconds * 1000), how]
        return _ask(ask(self._port(), flag, "mutex_expire", keys.mutex(claim.token), args))


def _tag(token: bytes) -> str:
    """Return the part of our token that stands for redis-py's `token`.

    Our tokens have a fixed length, and no two acquires may have the same token. redis-py's
    `token=` may be any text, and the same each time. So the rest of our token is random.
    """
    return hashlib.blake2b(token, digest_size=8).hexdigest()


def _text(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


class _ImpatientPort(SyncPort):
    """A port that gives up at once if the server is unreachable, as redis-py does."""

    _failed = False

    async def script(self, *args: Any) -> Any:
        try:
            answer = await super().script(*args)
        except LockUnavailable as error:
            # Only an idle connection that the server had closed is tried again.
            error.passing &= error.doubtful and not error.silent and not self._failed
            self._failed = True
            raise
        self._failed = False
        return answer


def _ask(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the answer, or raise the error that redis-py would raise: callers catch that."""
    try:
        return run(coroutine)
    except LockUnavailable as error:
        cause: BaseException | None = error.__cause__
        if cause is None:
            cause = TimeoutError(str(error))
        elif not isinstance(cause, RedisError):
            cause = ConnectionError(str(error))
    raise cause


class Locking:
    """A mixin for your own client class: `class Client(Locking, HerdClient)`."""

    def lock(
        self: Any,
        key: str,
        version: int | None = None,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        client: Any = None,
        thread_local: bool = True,
    ) -> Lock:
        """Return a lock on the key that django-redis' own client would lock."""
        if client is None:
            client = self.get_client(write=True)
        name = self.make_key(key, version=version)
        return Lock(client, name, timeout, sleep, blocking, blocking_timeout, thread_local)


try:
    from django_redis.client import DefaultClient, SentinelClient
except ModuleNotFoundError:
    pass  # `Lock` does not need it
else:

    class LockingClient(Locking, DefaultClient):  # type: ignore[misc]
        """django-redis' default client, with our locks."""

    class SentinelLockingClient(Locking, SentinelClient):  # type: ignore[misc]
        """django-redis' Sentinel client, with our locks."""
