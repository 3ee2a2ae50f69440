"""Each Python example of the README and of docs/ runs, and holds the locks that it says.

EXAMPLES has the examples of each page in their order. An entry is the names of the locks that are
held when the example does its work; or a function that tries more; or a word for what only has to
be valid. Whoever adds an example says here what it does.
"""

from __future__ import annotations

import asyncio
import copy
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib import admin
from django.core import checks
from django.core.cache import cache
from django.core.management import call_command
from django.db import connection, models, transaction
from django.db.models import F
from django.dispatch import receiver
from django.http import Http404, HttpResponse
from django.test import RequestFactory, override_settings
from django.test.utils import isolate_apps
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from redis import Redis
from rest_framework.decorators import api_view, permission_classes
from rest_framework.permissions import IsAuthenticated
from rest_framework.test import APIRequestFactory, force_authenticate
from rest_framework.views import APIView

from devtools.redis_server import RedisServer, find_server
from django_redislock import (
    LeaseLost,
    LockNotAcquired,
    LockOrderError,
    current_lease,
    redis_lock,
    signals,
)
from django_redislock.admin import LockAdmin
from django_redislock.fencing import FencedModel
from django_redislock.leader import Leader
from django_redislock.lease import order
from django_redislock.models import LockStatus
from django_redislock.periodic import Ledger, RunOutcome, job_finished
from django_redislock.periodic import job as registry
from django_redislock.primitives import redlock
from django_redislock.testing import check_lock_order, leading, redis_unavailable
from django_redislock.views import idempotent_view, lock_view
from tests.caches import caches, entry
from tests.classic import Classic
from tests.docs.world import ROOT, StandIn, World, examples, functions, request
from tests.models import Product
from tests.operations.calling import granted
from tests.test_decorators import held_elsewhere
from tests.waiting import PATIENCE, eventually

ANOTHER_TEST = "another test"
"""It runs elsewhere."""
SETTINGS = "settings"
"""They are valid, and no check of ours objects."""


def elsewhere(call: Callable[[], Any]) -> Any:
    """Call it in another thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


# What some examples do besides holding locks.


def importer(world: World, text: str) -> None:
    one = world.run(text)["Importer"]()
    one.source, one.lines, one.save = "bank", lambda: iter("ab"), StandIn("save", world._noted)
    one.run()
    for name in functions(text):
        world.call(name)
    assert world.held == {"import:bank", "report:7", "sync:shop_id"}


def told(world: World, text: str, capsys: Any) -> None:
    """It is held when the lock is free, and the holder is printed when it is not."""
    name = "import" if "import" in text else "invoice:42"
    world.run(text)
    assert world.held == {name}
    lease = redis_lock(name).acquire()
    assert lease is not None
    elsewhere(lambda: world.run(text.replace("wait=5", "wait=0")))
    assert lease.owner in capsys.readouterr().out
    lease.release()
    if "charge" in text:
        world["charge"] = lambda _: redis_lock(name).clear(reason="test", by="eva")
        world.run(text)
        assert "cleared by eva" in capsys.readouterr().out


def of_a_new_project(world: World, text: str) -> None:
    """The cache is one that django-redis serves, and the app is ours."""
    world.run(text)
    assert world["CACHES"]["default"]["BACKEND"] == "django_redis.cache.RedisCache"
    assert world["INSTALLED_APPS"] == ["django_redislock"]


def rows_of_each_name(world: World, text: str) -> None:
    """A row is shown the token of its own name."""
    shown: list[tuple[int, int]] = []

    def fenced(token: int) -> Any:
        return SimpleNamespace(get=lambda pk: shown.append((pk, token)))

    world["Account"] = SimpleNamespace(objects=SimpleNamespace(fenced=fenced))
    tokens = world.run(text)["lease"].fencing_tokens
    assert shown == [(1, tokens["account:1"]), (2, tokens["account:2"])]


def servers(world: World, text: str) -> None:
    """A Redlock is held by a majority of its servers while it runs."""
    seen: list[list[str]] = []
    world["export"] = lambda: seen.append(nodes.holding())
    with Nodes() as nodes:
        world.run(text)
        assert len(seen[0]) >= 2
        assert world.held == ({"account:7"} if "MultiLock" in text else set())


def by_settings(world: World, text: str) -> None:
    names = world.run(text)
    assert names["CACHES"].keys() == {"default", "redis-a", "redis-b", "redis-c"}
    with Nodes() as nodes, override_settings(REDISLOCK=names["REDISLOCK"]):
        with redis_lock("nightly-export"):
            assert len(nodes.holding("nightly-export")) >= 2


def two_holders(world: World, text: str) -> None:
    """Both hold it, as the page warns, until the next renewal of the first."""
    with Nodes() as nodes:
        for name in "redis-d", "redis-e":
            nodes.servers[name].stop()
        world |= {"five": [*nodes.servers], "restart_without_data": nodes.restart}
        first, restart, second = text.splitlines()
        world.run(first).run(restart)
        elsewhere(lambda: world.run(second))
        for lease in world["first"], world["second"]:
            lease.check()
        with pytest.raises(LeaseLost, match="holds the lock now"):
            world["first"].extend()  # as its next renewal does
        elsewhere(world["second"].release)


class Nodes:
    """The five servers of the pages, by their aliases."""

    def __enter__(self) -> Nodes:
        found = find_server()
        if found.url is not None:
            pytest.skip("needs servers of its own")
        self.servers = {f"redis-{letter}": RedisServer(found) for letter in "abcde"}
        for server in self.servers.values():
            server.start()
        entries = {name: entry(one.url) for name, one in self.servers.items()}
        self._settings = override_settings(CACHES={**settings.CACHES, **entries})
        self._settings.enable()
        return self

    def __exit__(self, *error: object) -> None:
        self._settings.disable()
        for server in self.servers.values():
            server.stop()

    def holding(self, name: str = "*") -> list[str]:
        """The servers that have a lock."""

        def has(server: RedisServer) -> bool:
            with Redis.from_url(server.url) as redis:
                return bool(redis.keys(f"redislock:{{{name}}}"))

        return [alias for alias, one in self.servers.items() if one.running and has(one)]

    def restart(self, *aliases: str) -> None:
        for alias in aliases:
            self.servers[alias].stop()
            self.servers[alias].start()


def command(world: World, text: str) -> None:
    world["__name__"] = "shop.management.commands.nightly"
    call_command(world.run(text)["Command"](), lock_wait=0)
    assert world.held == {"command:nightly"}


def without_redis(world: World, text: str) -> None:
    """A function that locks is seen to do so, and finds the lock busy, without a server."""

    @redis_lock("invoice:42")
    def charge(invoice: object) -> None: ...

    world |= {"charge": charge}
    world.run(text.replace(": ...", ": charge(1)"))
    world["test_it_locks"]()
    with pytest.raises(LockNotAcquired):
        world["test_somebody_else_holds_it"]()


def views(*statuses: int, name: str = "", wait: str = "") -> Callable[[World, str], None]:
    """The views of an example answer with these while somebody else holds `name`."""

    def test(world: World, text: str) -> None:
        world.run(text.replace(wait, f"{wait}, wait=0") if wait else text)
        with held_elsewhere(name):
            busy = [world.call(each).status_code for each in functions(text)]
        assert busy == [*statuses]
        for each in functions(text):
            assert world.call(each).status_code in (200, 400, 423)

    return test


def other_answers(world: World, text: str) -> None:
    def render(request: Any, template: str, context: Any, status: int) -> Any:
        return HttpResponse(f"{template} {context['error'].name}", status=status)

    world |= {"render": render}
    world.run(text.replace('{pk}"', '{pk}", wait=0'))
    with held_elsewhere("report:7"), held_elsewhere("export:7"):
        assert world["report"](request(), pk=7).status_code == 423
        assert world["export"](request(), pk=7).content == b"busy.html export:7"


@contextmanager
def in_scope(world: World, scope: Any) -> Iterator[None]:
    """With the settings of an example, and its function behind their path."""
    there: Any = {"shop.tenants": SimpleNamespace(scope=scope)}
    with mock.patch.dict(sys.modules, there), override_settings(REDISLOCK=world["REDISLOCK"]):
        yield


def tenants(world: World, text: str) -> None:
    with in_scope(world.run(text), world["scope"]):
        assert checks.run_checks(tags=["redislock"]) == []
        world["tenant"].set("acme")
        with redis_lock("invoice:42") as lease:
            assert lease.name == "acme/invoice:42"


def of_django_tenants(world: World, text: str) -> None:
    with mock.patch.object(connection, "schema_name", "acme", create=True):
        assert world.run(text)["scope"]() == "acme"


def shared_by_tenants(world: World, text: str) -> None:
    with in_scope(world.run(text), lambda: "acme"):
        world.call("rates")
        assert world.held == {"single_flight:rates:currency"}
        with redis_lock("rates:EUR") as lease:
            assert lease.name == "rates:EUR"


def while_away(world: World, text: str) -> None:
    """By name: whether it runs while Redis is away."""
    ran: list[str] = []
    world["read_feed"] = lambda: ran.append(current_lease().name)
    world.run(text)
    assert ran == ["feed"]
    with redis_unavailable():
        world.run(text)
        assert ran == ["feed", "feed"]
        with mock.patch.object(sys, "stdout"):
            world.run(text)
        world.call("report")
        world.call("refresh")
    assert world.held == set()


def of_rest_framework(world: World, text: str) -> None:
    world.run(text)
    post = APIRequestFactory().post("/")
    force_authenticate(post, SimpleNamespace(pk=3, is_authenticated=True))
    assert world["Checkout"].as_view()(post).status_code == 200
    assert world["checkout"](post).status_code == 200


def keyed(world: World, text: str) -> None:
    """A request with the same key and from the same client is not carried out again."""
    numbers = iter(range(1, 9))
    world |= {"place": lambda request: next(numbers), "ship": lambda request: next(numbers)}
    (name,) = functions(text)
    view = world.run(text)[name]

    def ask(client: str) -> bytes:
        post = request()
        post.META |= {"HTTP_IDEMPOTENCY_KEY": "1", "HTTP_X_API_KEY": client}
        return view(post).content  # type: ignore[no-any-return]

    answers = [ask(client) for client in "ABA"]
    assert answers[0] == answers[2]
    assert (answers[0] == answers[1]) == (name == "order")


def counted(world: World, text: str) -> None:
    seen: list[Any] = []
    world["metrics"] = SimpleNamespace(increment=lambda *args, **more: seen.append((args, more)))
    world.run(text)
    with held_elsewhere():
        redis_lock("job").acquire(wait=0)
    assert seen == [(("locks.not acquired",), {"tags": {"name": "job"}})]


def alert(world: World, text: str, capsys: Any) -> None:
    """The receiver hears of a lost lease, and why; or of runs that went wrong."""
    world.run(text)
    if "lock_lost" in text:
        event = SimpleNamespace(name="job", owner="web", why="told")
        signals.lock_lost.send(sender=None, event=event)
        assert capsys.readouterr().out == "job web told\n"
        return
    for outcome in RunOutcome:
        job_finished.send(None, event=SimpleNamespace(job="job", outcome=outcome, why="why"))
    assert capsys.readouterr().out == "job failed why\njob lost why\n"


def monitored(world: World, text: str, capsys: Any) -> None:
    world.run(examples("docs/periodic.md")[1]).run(text)
    assert capsys.readouterr().out == "shop.docs.abandoned_carts overdue None None\n"


def requested(world: World, text: str) -> None:
    """The request waits for a scheduler."""
    code = "from django_redislock.periodic import periodic\n@periodic(every=30)\ndef sync(): ...\n"
    jobs("sync")(world, code)
    [job] = Ledger().jobs()
    world.run(text.replace("shop.periodic.sync", job.name))
    [job] = Ledger().jobs()
    assert job.request is not None
    assert job.request.by == "ann"


def missed(world: World, text: str) -> None:
    """The job runs under its lease, which has a fencing token."""
    seen: list[Any] = []
    world |= {
        "abandoned": lambda: [1, 2],
        "put_back": lambda cart, fencing_token: seen.append((cart, fencing_token > 0)),
    }
    world.run(text)
    [job] = registry.jobs()
    hours_ago = (int(world._redis.time()[0]) - 7200) * 1_000_000
    world._redis.hset(job.keys.ledger, "claimed", hours_ago)
    call_command("runperiodic", "--once")
    assert seen == [(1, True), (2, True)]


def jobs(*names: str) -> Callable[[World, str], None]:
    def test(world: World, text: str) -> None:
        if "django.tasks" in text:
            pytest.importorskip("django.tasks")
            text = text.replace("@task\n", "")  # a task has to be in a module of its name
        world.run(text)
        assert [job.name for job in registry.jobs()] == [f"shop.docs.{name}" for name in names]

    return test


def old_client(world: World, text: str) -> None:
    """An old client of the key is kept out meanwhile."""
    redis, seen = world._redis, []
    redis.delete("lock.import")
    world |= {"work": lambda: seen.append(Classic(redis, "lock.import").acquire())}
    world["run_import"] = world["work"]
    world.run(text.replace("...", "work()"))
    if functions(text):
        world["run_import"]()
    assert seen == [False]
    assert Classic(redis, "lock.import").acquire()
    redis.delete("lock.import")


def two_orders(world: World, text: str) -> None:
    """The test of the page fails, or warns, when locks are taken in two orders."""

    def nested(outer: str, inner: str) -> None:
        with redis_lock(outer), redis_lock(inner):
            pass

    world |= {
        "place_order": lambda: nested("stock", "payments"),
        "refund": lambda: nested("payments", "stock"),
    }
    world.run(text)
    with pytest.raises(LockOrderError):
        world["test_orders_and_refunds"]()


def shards(world: World, text: str) -> None:
    """The name picks the server, which remembers it, and no other one does; all have some."""
    world.run(text)
    where = settings.CACHES["default"]["LOCATION"].partition("?")[0]
    urls = {alias: f"{where}?db={number}" for number, alias in enumerate(world["SHARDS"], 1)}
    entries = {alias: entry(url) for alias, url in urls.items()}
    with override_settings(CACHES={**settings.CACHES, **entries}), ExitStack() as stack:
        clients = {alias: stack.enter_context(Redis.from_url(url)) for alias, url in urls.items()}
        used = []
        for number in range(30):
            before = {alias: redis.get("redislock:clock") for alias, redis in clients.items()}
            used.append(world["visit"](number))
            after = {alias: redis.get("redislock:clock") for alias, redis in clients.items()}
            assert [alias for alias in after if after[alias] != before[alias]] == used[-1:]
        for redis in clients.values():
            redis.flushdb()
    assert set(used) == set(clients)


def waited_for(world: World, text: str) -> None:
    """A later caller serves what the first one has migrated."""
    world |= {"migrate_files": lambda: done.append("migrate"), "serve_files": lambda: None}
    done: list[str] = []
    for _ in range(2):
        elsewhere(lambda: world.run(text))
    assert done == ["migrate"]


def messages(world: World, text: str) -> None:
    """Refused while another consumer works on it, acknowledged when it is done."""
    said: list[str] = []
    channel = SimpleNamespace(ack=lambda _: said.append("ack"), nack=lambda _: said.append("nack"))
    world |= {"ship": lambda _: said.append("ship")}
    world.run(text)
    with held_elsewhere("deduplicate:order:7"):
        world["on_message"]({"id": 7}, channel)
    for _ in range(2):
        world["on_message"]({"id": 7}, channel)
    assert said == ["nack", "ship", "ack", "ack"]


def lost(world: World, text: str) -> None:
    """The task is cancelled when its lease is lost."""

    async def one_step() -> None:
        await redis_lock("leader").aclear(reason="test")
        with pytest.raises(LeaseLost):
            await current_lease().aextend()
        await asyncio.sleep(PATIENCE)

    world["one_step"] = one_step
    with pytest.raises(LeaseLost):
        asyncio.run(world.run(text)["lead"]())


def renamed(world: World, text: str) -> None:
    asyncio.run(world.run(text)["rename"](world["pk"], "chair"))
    assert Product.objects.get().name == "chair"


def sold(world: World, text: str) -> None:
    """It is written through the lease, or in a transaction under the lock."""
    start = text.find("with redis_lock") if "class Product" in text else 0
    world.run(text[start:])
    if "sell" in world:
        world["sell"](world["pk"])
    assert Product.objects.get().stock == 6


def each_line(world: World, text: str) -> None:
    """Of the long example, on rows of its own."""
    for line in text.splitlines():
        one, two = (Product.objects.create(name=line[:40] + end, stock=7) for end in "ab")
        with redis_lock("product") as lease:
            rows = Product.objects.fenced(lease)
            world |= {"F": F, "lease": lease, "rows": rows, "pk": one.pk}
            world |= {"product": rows.get(pk=one.pk), "products": [rows.get(pk=two.pk)]}
            world |= {"message": {"fencing_token": lease.fencing_token}}
            world["shop"] = SimpleNamespace(products=Product.objects)
            if line.startswith("await "):
                code = f"async def example():\n    return {line}"
                assert async_to_sync(world.run(code)["example"])() == one
            else:
                with transaction.atomic():
                    world.run(line)


def a_manager(world: World, text: str) -> None:
    """The base class and the method of the queryset are the project's."""
    world |= {"SomebodyElsesModel": models.Model, "__name__": "tests.models"}
    with isolate_apps("tests"):
        ticket = world.run(text)["Ticket"]
    assert ticket._meta.get_field("fencing_token").default == 0
    assert callable(ticket.objects.unsold)


def of_another_user(world: World, text: str) -> None:
    """A user who may not see an object can't lock its name."""
    world["Order"] = Product.objects.annotate(owner=F("name"))
    world.run(text)
    with pytest.raises(Http404):
        world["pay"](SimpleNamespace(user="somebody else"), world["pk"])
    world["pay"](SimpleNamespace(user="lamp"), world["pk"])
    assert world.held == {f"order:{world['pk']}"}


def handed_on(world: World, text: str) -> None:
    """The thread works under the lock, and a second one is not begun."""
    agent, go_on = SimpleNamespace(pk=7), threading.Event()
    world["run"] = lambda agent: (world._noted(), go_on.wait(PATIENCE))
    world.run(text)
    assert world["start"](agent) is True
    assert world["start"](agent) is False
    go_on.set()
    eventually(lambda: not world.locked())
    assert world.held == {"agent:7"}


def in_parts(world: World, text: str) -> None:
    """Each part is exported under the lock."""
    assert world.run(text).held == {"export"}


def until_the_commit(world: World, text: str) -> None:
    """Each lock is held until the transaction has ended."""
    held: list[set[str]] = []
    world |= {"order": StandIn("order", world._noted), "look": lambda: held.append(world.locked())}
    world.run(text.replace("pay(order)   ", "pay(order); look()   "))
    if "checkout" in world:
        world["checkout"]([SimpleNamespace(pk=pk, save=world._noted) for pk in (1, 2)])
        assert held == [{"order:1"}, {"order:1", "order:2"}]
    else:
        assert held == [{"order:7"}]


def in_development(world: World, text: str) -> None:
    """Locks work, and Redis has none of them."""
    with override_settings(DEBUG=True, REDISLOCK=world.run(text)["REDISLOCK"]):
        with redis_lock("job"):
            assert redis_lock("job").locked()
            assert world.locked() == set()


def rebuilt(world: World, text: str) -> None:
    """While one works, another one does nothing."""
    locking = "django_redislock.client.LockingClient"
    with override_settings(CACHES=caches(world["url"], CLIENT_CLASS=locking)):
        world.run(text)
        done: list[int] = []

        def build() -> None:
            done.append(1)
            elsewhere(world["rebuild_report"])

        world["build"] = build
        world["rebuild_report"]()
    assert done == [1]


def both_locks(world: World, text: str) -> None:
    """The old lock and ours are held together; while they are, nobody else gets either."""
    redis = world._redis
    if "pottery" in text:
        old = pytest.importorskip("pottery").Redlock(key="import", masters={redis})
    elif "redis_lock import" in text:
        old = pytest.importorskip("redis_lock").Lock(redis, "import", expire=60)
    else:
        old = cache.lock("import", timeout=60)
    world.run(examples("docs/migrating.md")[0])
    world.run("from django_redis import get_redis_connection")
    with world.run(text)["import_lock"]() as lease:
        lease.check()
        assert not elsewhere(lambda: old.acquire(blocking=False))
        assert elsewhere(lambda: redis_lock("import").acquire(wait=0)) is None
    assert old.acquire(blocking=False)
    old.release()
    redis.delete("lock:import", "lock-signal:import", "redlock:import")


def a_site(world: World, text: str) -> None:
    assert world.run(text)["site"].is_registered(LockStatus)


def of_unfold(world: World, text: str) -> None:
    """Its class and ours become one. tests/browser has the real one."""

    class Theirs(admin.ModelAdmin):  # type: ignore[type-arg]
        list_before_template = "theirs"

    theirs = SimpleNamespace(ModelAdmin=Theirs)
    sys.modules["unfold"] = sys.modules["unfold.admin"] = theirs  # type: ignore[assignment]
    try:
        world.run(text)
        assert admin.site._registry[LockStatus].list_before_template == "theirs"  # type: ignore[attr-defined]
    finally:
        del sys.modules["unfold"], sys.modules["unfold.admin"]
        admin.site.unregister(LockStatus)
        admin.site.register(LockStatus, LockAdmin)


def live(world: World, text: str) -> None:
    granted(world._redis, "old", owner="web3:1:x")
    granted(world._redis, "older", owner="web4:1:x")
    assert [lock.name for lock in world.run(text)["stale"]] == ["old"]
    world._redis.flushdb()


def computed(world: World, text: str) -> None:
    """Kept for a while, and not kept."""
    calls: list[str] = []

    def fetch(currency: str) -> str:
        calls.append(currency)
        return currency

    async def build() -> str:
        calls.append("report")
        return "report"

    world |= {"fetch_rates": fetch, "build_report": build}
    world.run(text)
    for _ in range(2):
        assert [world["rates"](currency) for currency in ("EUR", "USD")] == ["EUR", "USD"]
        assert asyncio.run(world["report"]()) == "report"
    assert calls == ["EUR", "USD", "report", "report"]


def charged_once(world: World, text: str) -> None:
    """The charge is in a step, and is not repeated when the rest fails."""
    charges: list[str] = []

    def charge(order: Any, idempotency_key: str) -> str:
        charges.append(idempotency_key)
        return "ch_1"

    def save() -> None:
        if failing:
            raise ZeroDivisionError

    failing, order = [True], SimpleNamespace(pk=7, save=save)
    objects = SimpleNamespace(get_or_create=lambda number: (order, True))
    world |= {"charge": charge, "Order": SimpleNamespace(objects=objects)}
    view = world.run(text)["pay"]

    def ask() -> Any:
        post = RequestFactory().post("/", {"number": "1"}, headers={"idempotency-key": "1"})
        post.user = request().user
        return view(post)

    with pytest.raises(ZeroDivisionError):
        ask()
    failing.clear()
    assert [ask().content, ask().content] == [b'{"charge": "ch_1"}'] * 2
    assert charges == ["order:7"]


def renewed(world: World, text: str) -> None:
    """An old result is given at once, and replaced in the background."""
    calls: list[str] = []
    world["fetch_rates"] = lambda currency: calls.append(currency) or len(calls)
    world.run(text)
    assert world["rates"]("EUR") == 1
    world._redis.pexpire("redislock:{single_flight:rates:EUR}:record", 299_000)
    assert world["rates"]("EUR") == 1
    eventually(lambda: world["rates"]("EUR") == 2)


def leads(world: World, text: str) -> None:
    """The callbacks are those of a scheduler."""
    world.run(text)
    with leading(world["leader"]):
        assert world["leader"].is_leader
    assert world["leader"].name == "leader:scheduler"


def started(world: World, text: str) -> None:
    """The app starts it."""
    world.run("from django.apps import AppConfig\n" + text)
    leader = mock.Mock()
    with mock.patch.dict(
        sys.modules,
        {"shop": mock.Mock(), "shop.scheduling": SimpleNamespace(leader=leader)},  # type: ignore[dict-item]
    ):
        world["ShopConfig"].ready(None)
    leader.start.assert_called_once_with()


def in_a_lifespan(world: World, text: str) -> None:
    """It leads while the application is up."""
    said: list[str] = []

    async def end() -> None:
        said.append("end")

    world |= {"Leader": Leader, "begin": lambda: said.append("begin"), "end": end}
    world.run("from contextlib import asynccontextmanager\n" + text)

    async def main() -> None:
        async with world["lifespan"](None):
            while not said:
                await asyncio.sleep(0.002)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert said == ["begin", "end"]


def leads_at_night(world: World, text: str) -> None:
    """Only the leader reports, with its fencing token."""
    leader, reported = Leader("scheduler"), []
    world |= {"leader": leader, "report": lambda **given: reported.append(given)}
    world.run(text)
    world["nightly"]()
    assert not reported
    with leading(leader):
        world["nightly"]()
        assert reported == [{"fencing_token": leader.fencing_token}]


def serves_by_rule(world: World, text: str) -> None:
    """The rule is asked at the start."""
    world |= {"Leader": Leader, "begin": None, "end": None, "sys": SimpleNamespace(argv=["bot"])}
    world.run(text)
    world["leader"].start()
    try:
        eventually(lambda: world["leader"].is_leader)
    finally:
        world["leader"].stop()


ONCE = "once:warm-cache", "once:import:shop_id", "once:seed"

EXAMPLES: dict[str, list[Any]] = {
    "README.md": [
        {"invoice:42"},
        of_a_new_project,
        {"invoice:42", "report:7", "sync:shop_id", "order:7"},
        {"exports", "catalogue", "export:7", "once:warm-cache", "single_flight:rates:currency"},
        views(409, 400, name="checkout:3"),
        command,
        jobs("tidy_up"),
        ANOTHER_TEST,  # tests/docs/test_tasks.py
        without_redis,
        SETTINGS,
    ],
    "docs/admin.md": [a_site, of_unfold, live],
    "docs/asgi.md": [{"shop:7", "feed:feed_id", "import"}, renamed, {"report"}, lost],
    "docs/capacity.md": [SETTINGS, shards],
    "docs/deployment.md": [{"once:release:RELEASE"}],
    "docs/fencing.md": [sold, each_line, a_manager],
    "docs/index.md": [{"invoice:42"}],
    "docs/kinds.md": [SETTINGS],
    "docs/leader.md": [leads, started, in_a_lifespan, leads_at_night, serves_by_rule],
    "docs/lock-order.md": [two_orders, set(), SETTINGS, SETTINGS],
    "docs/migrating.md": [both_locks, both_locks, both_locks, rebuilt, rebuilt, rebuilt],
    "docs/multi-lock.md": [
        {"account:7"},
        {"account:7", "product:7"},
        set(),
        rows_of_each_name,
    ],
    "docs/once.md": [
        {*ONCE},
        waited_for,
        messages,
        set(),
        computed,
        renewed,
        SETTINGS,
    ],
    "docs/once-in-transaction.md": [
        set(),
        {"once_in_transaction:order-paid:7"},
        keyed,
        charged_once,
    ],
    "docs/periodic.md": [
        jobs("stock_report", "sync"),
        missed,
        SETTINGS,
        monitored,
        requested,
        alert,
        jobs("rebuild_index"),
    ],
    "docs/redlock.md": [servers, by_settings, two_holders],
    "docs/security.md": [of_another_user],
    "docs/settings.md": [
        {"invoice:42"},
        in_development,
        SETTINGS,
        SETTINGS,
        SETTINGS,
        {"once:warm-cache"},
    ],
    "docs/shared.md": [{"exports", "supplier:supplier_id"}, {"catalogue"}, SETTINGS],
    "docs/signals.md": [counted, set()],
    "docs/unavailable.md": [while_away, SETTINGS],
    "docs/tenants.md": [tenants, of_django_tenants, shared_by_tenants],
    "docs/threads.md": [handed_on, in_parts],
    "docs/timestamp-lock.md": [old_client, SETTINGS, old_client],
    "docs/transactions.md": [sold, until_the_commit, SETTINGS, SETTINGS],
    "docs/using.md": [
        {"invoice:42"},
        {"invoice:42"},
        importer,
        {"invoice:7", "row._meta.label_lower:7"},
        told,
        {"import"},
        {"shop:7"},
        until_the_commit,
        {"nightly", "tree", "feed"},
        told,
    ],
    "docs/views.md": [
        views(409, 200, name="checkout:3"),
        of_rest_framework,
        other_answers,
        keyed,
        keyed,
        views(400, name="stock:7", wait='"stock:{pk}"'),
    ],
}

ELSEWHERE = {
    "docs/commands.md": "tests/test_commands.py",
    "docs/drop-in.md": "tests/test_client.py",
    "docs/metrics.md": "tests/test_prometheus.py",
    "docs/notes.md": "tests/docs/test_notes.py",
    "docs/task-queues.md": "tests/docs/test_task_queues.py",
    "docs/tasks.md": "tests/docs/test_tasks.py",
    "docs/testing.md": "tests/testing_kit/test_docs.py",
    "docs/topologies.md": "tests/cluster/test_docs.py",
    "docs/tutorial.md": "tests/docs/test_tutorial.py",
}
"""Pages whose examples need more than this process, and the test that has them."""


def test_every_example_has_an_entry() -> None:
    """And every page."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        page = str(path.relative_to(ROOT))
        found = examples(page)
        if page in ELSEWHERE:
            assert path.name in (ROOT / ELSEWHERE[page]).read_text(encoding="utf-8"), page
        else:
            assert len(found) == len(EXAMPLES.get(page, [])), page


@pytest.fixture
def world(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(registry, "_registry", {})
    monkeypatch.setattr(redlock, "WITHIN", 5.0)  # a busy machine is no fault here
    monkeypatch.setattr(order, "_of_this_process", order.Order())
    heard = [one for one in vars(signals).values() if hasattr(one, "receivers")] + [job_finished]
    before = [[*one.receivers] for one in heard]
    product = Product.objects.create(name="lamp", stock=7)
    yield World(
        redis,
        APIView=APIView,
        IsAuthenticated=IsAuthenticated,
        permission_classes=permission_classes,
        CACHES=copy.deepcopy(settings.CACHES),
        FencedModel=FencedModel,
        INSTALLED_APPS=[],
        LockAdmin=LockAdmin,
        LockStatus=LockStatus,
        Product=Product,
        View=View,
        admin=admin,
        api_view=api_view,
        check_lock_order=check_lock_order,
        csrf_exempt=csrf_exempt,
        idempotent_view=idempotent_view,
        lock_lost=signals.lock_lost,
        lock_view=lock_view,
        make_salt=lambda: "salt",
        pk=product.pk,
        pytest=pytest,
        receiver=receiver,
        secrets=secrets,
        url=settings.CACHES["default"]["LOCATION"],
    )
    for one, receivers in zip(heard, before, strict=True):
        one.receivers = receivers
        one.sender_receivers_cache.clear()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page, entries in EXAMPLES.items() for number in range(len(entries))],
)
def test_example(page: str, number: int, world: World, request: pytest.FixtureRequest) -> None:
    text, check = examples(page)[number], EXAMPLES[page][number]
    if check == ANOTHER_TEST:
        return
    if check == SETTINGS:
        names = "locks", "locks-billing", "locks-sync", "redis-a", "redis-b", "redis-c"
        entries = {name: entry(f"redis://{name}") for name in names}
        every = {**settings.CACHES, **entries}
        with override_settings(CACHES=every, REDISLOCK=world.run(text)["REDISLOCK"]):
            found = checks.run_checks(tags=["redislock"])
        assert [one for one in found if one.level >= checks.ERROR] == []
    elif callable(check):
        wants_capsys = "capsys" in check.__code__.co_varnames
        check(world, text, *([request.getfixturevalue("capsys")] if wants_capsys else []))
    else:
        world.run(text)
        for name in functions(text) if check else ():
            world.call(name)
        assert world.held == check
    assert world.locked() == set()
