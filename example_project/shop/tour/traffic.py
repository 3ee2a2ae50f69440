"""What goes on in the shop while somebody looks around. The page shows these functions.

Each thread of each process calls one of them again and again: `ROLES` tells which, and
`manage.py traffic` does it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from django.core.cache import cache
from django.core.management import call_command
from django_redis import get_redis_connection

from django_redislock import Semaphore, StaleLease, TimestampLock, once, redis_lock, single_flight

from ..catalogue import lock as catalogue
from ..models import LockIncident, Product
from ..services import Sale, record, sell

LAMP, LAMPS = 1, 10_000
STOCK = f"stock:{LAMP}"
UNLOCKED = "tour:unlocked"
OLD_KEY = "redislock-shop:prices"


def work(seconds: float = 1.5) -> None:
    """Stands for whatever takes its time."""
    time.sleep(seconds * random.uniform(0.6, 1.4))


@once("opening", wait=10)
def open_shop() -> None:
    """Put the lamps on the shelf. The others wait until that is done, and don't do it again."""
    Product.objects.create(pk=LAMP, name="lamp", stock=LAMPS)


def buy(customer: str) -> None:
    """Read the stock, pay, write the new stock, with nobody else at it."""
    with redis_lock(STOCK, wait=None) as lease:
        stock = Product.objects.fenced(lease).get(pk=LAMP).stock
        work()
        # Who writes it, say a payment service, may know nothing of leases: the token is enough.
        sale = Sale(LAMP, customer, stock - 1, lease.fencing_token)
        record(sale, lease.fencing_token)


def buy_unlocked(customer: str) -> None:
    """The same, and whoever is at it at the same time sells the same lamp."""
    sell(LAMP, customer, think=lambda _sale: work())


def customer(name: str) -> None:
    """Buy a lamp, and another one."""
    try:
        buy_unlocked(name) if cache.get(UNLOCKED) else buy(name)
    except StaleLease as late:
        LockIncident.objects.create(outcome="refused", name=STOCK, owner=name, why=str(late))


@Semaphore("export", 3, wait=None)
def export(_name: str) -> None:
    """A long answer, of which the database can make three at a time."""
    work(3)


def read_catalogue(_name: str) -> None:
    """With others who read, and while nobody prints it."""
    with catalogue.read():
        work()
    work()


def print_catalogue(_name: str) -> None:
    """Alone; then others may read it while it is checked, and nobody prints the next one yet."""
    with catalogue.write() as lease:
        work()
        lease.downgrade()
        work()
    work(4)


@single_flight("bestsellers", ttl=2)
def bestsellers() -> int:
    """Computed by one, for all who ask meanwhile and for two seconds more."""
    work(2)
    return cache.incr("tour:computed")


def ask_for_bestsellers(_name: str) -> None:
    bestsellers()
    cache.incr("tour:asked")
    work(0.5)


def import_prices(_name: str) -> None:
    """With nobody else at the prices, that one below included."""
    with TimestampLock(OLD_KEY):
        work()
    work()


def old_program(_name: str) -> None:
    """It knows SETNX, and nothing else. The value is the time at which its lock ends."""
    redis = get_redis_connection()
    if redis.setnx(OLD_KEY, int(time.time()) + 10):
        work(3)
        redis.delete(OLD_KEY)
    time.sleep(0.1)


@redis_lock("export:accounts", ttl=900)
def accounts(_name: str) -> None:
    """Somebody set its TTL to a quarter of an hour. Then its process was killed."""
    print("ready", flush=True)
    time.sleep(900)


def scheduler(_name: str) -> None:
    """As on each host; shop/periodic.py has the jobs."""
    call_command("runperiodic", verbosity=0)


ROLES: dict[str, list[Callable[[str], object]]] = {
    "customer": [customer],
    "office": [export, export, read_catalogue, print_catalogue, ask_for_bestsellers],
    "branch": [export, export, read_catalogue, read_catalogue, ask_for_bestsellers, import_prices],
    "old-program": [old_program],
    "scheduler": [scheduler],
    "accounts": [accounts],
}
