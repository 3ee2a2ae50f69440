"""The shop's activity during the tour. The page shows these functions.

Each thread of each process calls one of them again and again. `ROLES` says which process calls
which functions, and `manage.py traffic` runs one process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from django.core.cache import cache
from django.core.management import call_command
from django_redis import get_redis_connection

from django_redislock import Semaphore, StaleLease, TimestampLock, once, redis_lock, single_flight
from django_redislock.inspection import Inspector

from ..catalogue import lock as catalogue
from ..models import LockIncident, Product
from ..services import Sale, record, sell
from . import moments
from .moments import Doing

LAMP, LAMPS = 1, 10_000
STOCK = f"stock:{LAMP}"
UNLOCKED = "tour:unlocked"
OLD_KEY = "redislock-shop:prices"


def work(seconds: float = 1.5) -> None:
    """Stand in for work that takes some time."""
    time.sleep(seconds * random.uniform(0.6, 1.4))


@once("opening", wait=10)
def open_shop() -> None:
    """Put the lamps on the shelf, once. The other processes wait until that is done."""
    Product.objects.create(pk=LAMP, name="lamp", stock=LAMPS)


def buy(customer: str) -> None:
    """Read the stock, pay, and write the new stock, while nobody else does."""
    with redis_lock(STOCK, wait=None) as lease, moments.working(customer):
        stock = Product.objects.fenced(lease).get(pk=LAMP).stock
        work()
        # A payment service that writes it may know nothing of leases: the token is enough.
        sale = Sale(LAMP, customer, stock - 1, lease.fencing_token)
        record(sale, lease.fencing_token)


def buy_unlocked(customer: str) -> None:
    """Do the same without the lock: another customer may sell the same lamp meanwhile."""
    with moments.working(customer):
        sell(LAMP, customer, think=lambda _sale: work())


def customer(name: str) -> None:
    """Buy one lamp after the other."""
    moments.note(name, Doing.WAITS)
    try:
        buy_unlocked(name) if cache.get(UNLOCKED) else buy(name)
    except StaleLease as late:
        LockIncident.objects.create(outcome="refused", name=STOCK, owner=name, why=str(late))
        moments.note(name, Doing.REFUSED)


@Semaphore("export", 3, wait=None)
def export(_name: str) -> None:
    """Make a long answer. The database can make three of them at a time."""
    work(3)


def read_catalogue(_name: str) -> None:
    """Read, together with other readers, while nobody prints."""
    with catalogue.read():
        work()
    work()


def print_catalogue(_name: str) -> None:
    """Print alone; then check it while others may read, but nobody else may print."""
    with catalogue.write() as lease:
        work()
        lease.downgrade()
        work()
    work(4)


@single_flight("bestsellers", ttl=2)
def bestsellers() -> int:
    """Compute once for all callers that come meanwhile or within two seconds afterwards."""
    work(2)
    return cache.incr("tour:computed")


def ask_for_bestsellers(_name: str) -> None:
    bestsellers()
    cache.incr("tour:asked")
    work(0.5)


def import_prices(_name: str) -> None:
    """Import prices while nobody else changes them, including the old program below."""
    with TimestampLock(OLD_KEY):
        work()
    work()


def old_program(_name: str) -> None:
    """Lock as an old program does, with SETNX. The value is the time at which its lock ends."""
    redis = get_redis_connection()
    if redis.setnx(OLD_KEY, int(time.time()) + 10):
        work(3)
        redis.delete(OLD_KEY)
    time.sleep(0.1)


@redis_lock("export:accounts", ttl=900)
def accounts(_name: str) -> None:
    """Hold a lock with a TTL of a quarter of an hour. The tour kills this process."""
    # A lock is listed when it is a second old, or when its own process looks at the list.
    Inspector().counts()
    print("ready", flush=True)
    time.sleep(900)


def scheduler(_name: str) -> None:
    """Run the jobs in shop/periodic.py, as each host does."""
    call_command("runperiodic", verbosity=0)


ROLES: dict[str, list[Callable[[str], object]]] = {
    "customer": [customer],
    "office": [export, export, read_catalogue, print_catalogue, ask_for_bestsellers],
    "branch": [export, export, read_catalogue, read_catalogue, ask_for_bestsellers, import_prices],
    "old-program": [old_program],
    "scheduler": [scheduler],
    "accounts": [accounts],
}
