"""The shop as its visitors see it, whatever server it runs under."""

from __future__ import annotations

from collections import Counter

import pytest
from redis.lock import Lock

from django_redislock import redis_lock
from tests.servers.visitor import Answer, Visitor
from tests.waiting import PATIENCE, eventually

FOR_LONG = {"seconds": 60}
"""To pay, or to supply; longer than any test waits."""
ANN, BOB = {"customer": "Ann"}, {"customer": "Bob"}


def is_conflict(answer: Answer) -> bool:
    """It says so, as documented, and when to come again."""
    assert answer.status == 409, answer
    assert answer.headers["Cache-Control"] == "no-store"
    return int(answer.headers["Retry-After"]) >= 1


class TestLockView:
    def test_conflict(self, shop: Visitor) -> None:
        """A visitor who buys what somebody else is buying is told so at once; programs and people
        alike."""
        lamp = shop.product(stock=2)
        buy = ("POST", f"/products/{lamp}/buy/", FOR_LONG)
        first = shop.ask_meanwhile(*buy)
        eventually(lambda: shop.is_held(f"stock:{lamp}"))

        second = shop.ask(*buy)
        assert is_conflict(second)
        assert second.headers["Content-Type"] == "application/problem+json"
        assert second.data["status"] == 409
        third = shop.ask(*buy, Accept="text/html,application/xhtml+xml,*/*;q=0.8")
        assert is_conflict(third)
        assert third.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "<h1>Conflict</h1>" in third.body

        assert shop.ask("POST", f"/news/paid-{lamp}/").status == 204
        assert first.result(PATIENCE).status == 201
        assert not shop.is_held(f"stock:{lamp}")
        assert (shop.stock(lamp), shop.orders(lamp)) == (1, 1)

    def test_async(self, shop: Visitor) -> None:
        """The same for a coroutine, on servers that have an event loop and on those that have
        not."""
        lamp = shop.product(stock=0)
        reorder = ("POST", f"/products/{lamp}/reorder/", FOR_LONG)
        first = shop.ask_meanwhile(*reorder)
        eventually(lambda: shop.is_held(f"reorder:{lamp}"))
        assert is_conflict(shop.ask(*reorder))

        shop.happens(f"supplied-{lamp}")
        answer = first.result(PATIENCE)
        assert answer.status == 202
        assert answer.data["fencing_token"] > 0
        assert not shop.is_held(f"reorder:{lamp}")

    @pytest.mark.parametrize(
        ("view", "event"), [("buy", "paid"), ("reorder", "supplied")], ids=["sync", "async"]
    )
    def test_a_client_that_goes_away(self, shop: Visitor, view: str, event: str) -> None:
        """The lock is free as soon as the view has ended. ASGI servers notice, and Django cancels
        coroutines then; all else goes on to its own end."""
        lamp = shop.product(stock=1)
        name = f"{'stock' if view == 'buy' else 'reorder'}:{lamp}"
        with shop.asking("POST", f"/products/{lamp}/{view}/", FOR_LONG):
            token = eventually(lambda: shop.token(name))
            shop.await_waiting()
        if not (shop.server.is_asgi and view == "reorder"):
            assert shop.is_held(name)
            shop.happens(f"{event}-{lamp}")
        shop.await_release(name, token)
        assert shop.stock(lamp) == (0 if view == "buy" else 1)

    def test_never_oversold(self, shop: Visitor) -> None:
        """Twelve at once want one of five, and wait for each other."""
        lamp = shop.product(stock=5)
        answers = [
            shop.ask_meanwhile(
                "POST", f"/products/{lamp}/orders/", ANN, Idempotency_Key=f"{lamp}-{n}"
            )
            for n in range(12)
        ]
        got = [answer.result(PATIENCE) for answer in answers]
        assert Counter(answer.status for answer in got) == {201: 5, 410: 7}
        assert len({answer.data["receipt"] for answer in got if answer.status == 201}) == 5
        assert (shop.stock(lamp), shop.orders(lamp)) == (0, 5)

    def test_released_after_commit(self, shop: Visitor, in_the_shop: None) -> None:
        """A request that waited for a view that wrote sees what was written: with ATOMIC_REQUESTS,
        and a database that takes its time for each commit."""
        lamp = shop.product(stock=3)
        with redis_lock(f"stock:{lamp}"):
            order = shop.ask_meanwhile(
                "POST", f"/products/{lamp}/orders/", ANN, Idempotency_Key=f"{lamp}"
            )
            shop.await_queue(f"stock:{lamp}", 1)
            labels = shop.ask_meanwhile("GET", f"/products/{lamp}/labels.csv")
            shop.await_queue(f"stock:{lamp}", 2)
        assert order.result(PATIENCE).status == 201
        assert labels.result(PATIENCE).body == f"product,unit\n{lamp},1\n{lamp},2\n"


class TestStreaming:
    def test_held_until_it_is_sent(self, shop: Visitor) -> None:
        """The view has returned, and nobody buys as long as the client has not got everything."""
        units = 1_000_000  # more than the buffers between us take in
        lamp = shop.product(stock=units)
        with shop.downloading(f"/products/{lamp}/labels.csv") as labels:
            assert labels.read(13) == b"product,unit\n"
            token = shop.token(f"stock:{lamp}")
            assert token
            assert is_conflict(shop.ask("POST", f"/products/{lamp}/buy/"))
            while part := labels.read(100_000):
                last = part
        assert last.endswith(f"\n{lamp},{units}\n".encode())
        shop.await_release(f"stock:{lamp}", token)

    def test_abandoned(self, shop: Visitor) -> None:
        """The client goes away in the middle of what would have no end for a long time."""
        lamp = shop.product(stock=2_000_000_000)
        with shop.downloading(f"/products/{lamp}/labels.csv") as labels:
            assert labels.read(13) == b"product,unit\n"
            token = shop.token(f"stock:{lamp}")
            assert token
        shop.await_release(f"stock:{lamp}", token)
        assert shop.ask("POST", f"/products/{lamp}/buy/").status == 201


class TestIdempotentView:
    def test_replay(self, shop: Visitor) -> None:
        """The same request again is answered as the first, and not carried out; another one with
        its key is refused, and so is one without a key."""
        lamp = shop.product(stock=9)
        path = f"/products/{lamp}/orders/"
        first = shop.ask("POST", path, ANN, Idempotency_Key=f"{lamp}")
        assert first.status == 201
        assert "Idempotent-Replayed" not in first.headers

        again = shop.ask("POST", path, ANN, Idempotency_Key=f"{lamp}")
        assert again.headers["Idempotent-Replayed"] == "true"
        assert (again.status, again.body) == (201, first.body)
        assert shop.ask("POST", path, BOB, Idempotency_Key=f"{lamp}").status == 422
        assert shop.ask("POST", path, ANN).status == 400
        assert (shop.stock(lamp), shop.orders(lamp)) == (8, 1)

    def test_again_while_it_is_carried_out(self, shop: Visitor, in_the_shop: None) -> None:
        """Neither is it carried out twice, nor is there an answer yet."""
        lamp = shop.product(stock=9)
        order = ("POST", f"/products/{lamp}/orders/", ANN)
        with redis_lock(f"stock:{lamp}"):
            first = shop.ask_meanwhile(*order, Idempotency_Key=f"{lamp}")
            shop.await_queue(f"stock:{lamp}", 1)
            assert is_conflict(shop.ask(*order, Idempotency_Key=f"{lamp}"))
        assert first.result(PATIENCE).status == 201
        again = shop.ask(*order, Idempotency_Key=f"{lamp}")
        assert (again.status, again.headers["Idempotent-Replayed"]) == (201, "true")
        assert shop.orders(lamp) == 1

    def test_sold_out_is_no_answer_for_ever(self, shop: Visitor) -> None:
        """It was rolled back, so the same request may succeed when there is something again."""
        lamp = shop.product(stock=1)
        order = ("POST", f"/products/{lamp}/orders/", ANN)
        assert shop.ask(*order, Idempotency_Key=f"{lamp}-1").status == 201
        for _ in range(2):
            # A rollback frees the lock a moment later: 409 until then.
            sold_out = eventually(
                lambda: (a := shop.ask(*order, Idempotency_Key=f"{lamp}-2")).status != 409 and a
            )
            assert sold_out.status == 410
            assert "Idempotent-Replayed" not in sold_out.headers


def test_drop_in(shop: Visitor) -> None:
    """`cache.lock()` waits for a plain lock of redis-py's, in our queue."""
    lamp = shop.product(stock=1)
    with shop.redis() as redis, Lock(redis, ":1:receipts", timeout=60):
        order = shop.ask_meanwhile(
            "POST", f"/products/{lamp}/orders/", ANN, Idempotency_Key=f"{lamp}"
        )
        shop.await_queue(":1:receipts", 1, kind="key:")
    assert order.result(PATIENCE).status == 201


def test_signals(shop: Visitor) -> None:
    """A lock that is lost while a customer pays: nothing is sold, and the shop has it on its
    page."""
    lamp = shop.product(stock=1)
    name = f"stock:{lamp}"
    buy = shop.ask_meanwhile("POST", f"/products/{lamp}/buy/", FOR_LONG)
    eventually(lambda: shop.is_held(name))
    with shop.redis() as redis:
        redis.delete(f"redislock-shop:{{{name}}}")
    eventually(lambda: f"{name} lost: " in shop.ask("GET", "/").body)
    shop.happens(f"paid-{lamp}")
    assert buy.result(PATIENCE).status == 500
    assert (shop.stock(lamp), shop.orders(lamp)) == (1, 0)


def test_redis_away(shop: Visitor) -> None:
    """Nothing is sold without a lock; when Redis is back, so is the shop."""
    lamp = shop.product(stock=1)
    shop.redis_server.stop()
    try:
        answer = shop.ask("POST", f"/products/{lamp}/buy/")
        assert answer.status == 503
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.headers["Cache-Control"] == "no-store"
        assert int(answer.headers["Retry-After"]) >= 1
    finally:
        shop.redis_server.start()
    assert shop.ask("POST", f"/products/{lamp}/buy/").status == 201
    assert shop.stock(lamp) == 0
