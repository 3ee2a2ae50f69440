"""The drawings of devtools/diagrams.py: for each a title, a description, lanes and lines."""

from __future__ import annotations

STORIES: dict[str, tuple[str, str, str, str]] = {
    "race-setnx": (
        "SETNX without an end",
        """The first client sets the key and is killed. The key stays, and whoever comes later is
        refused for ever.""",
        "first Redis second",
        """
        first > Redis: SETNX lock 1
        Redis > first: 1
        first + has the lock
        second > Redis: SETNX lock 1
        Redis > second: 0
        first -
        first ! is killed
        second > Redis: SETNX lock 1
        Redis > second: 0
        second ! waits for ever
        """,
    ),
    "race-timestamp-del": (
        "A time at the key, and two who take over with DEL",
        """The time at the key is over. Two clients read that. The first deletes the key and sets
        it; the second deletes what the first has set, and sets it again. Both are in.""",
        "first Redis second",
        """
        Redis: the time at the key is over
        first > Redis: GET lock
        second > Redis: GET lock
        Redis > first: a time that is over
        Redis > second: a time that is over
        first > Redis: DEL lock, SETNX lock now+30
        Redis > first: 1
        first + has the lock
        second > Redis: DEL lock, SETNX lock now+30
        Redis > second: 1
        second + has the lock
        second ! both are in
        """,
    ),
    "race-timestamp-getset": (
        "A time at the key, taken over with GETSET",
        """Two clients read that the time is over. Both send GETSET. The first gets the old time
        back, and so has the lock. The second gets the time that the first has just written, which
        is not over: it has lost, and has moved the winner's time a little.""",
        "first Redis second",
        """
        first > Redis: GET lock
        second > Redis: GET lock
        Redis > first: a time that is over
        Redis > second: a time that is over
        first > Redis: GETSET lock now+30
        Redis > first: the time that is over
        first + has the lock
        second > Redis: GETSET lock now+30
        Redis > second: the first one's time
        second * is not in
        Redis: it has moved the first one's time
        """,
    ),
    "race-del": (
        "SET NX EX, and the DEL of one who took too long",
        """The first client takes longer than its thirty seconds. The key expires, the second
        client sets it. Now the first is done and deletes the key, which is the second one's. A
        third client gets in beside the second.""",
        "first Redis second third",
        """
        first > Redis: SET lock 1 NX EX 30
        first + has the lock
        Redis: the key expires
        first ~ believes so
        second > Redis: SET lock 1 NX EX 30
        second + has the lock
        first > Redis: DEL lock
        first -
        third > Redis: SET lock 1 NX EX 30
        third + has the lock
        third ! two are in
        """,
    ),
    "race-token": (
        "A token, compared where it is deleted",
        """As before, but each client writes a token of its own, and its release deletes the key
        only if that token is there. The late release of the first client does nothing to the
        second.""",
        "first Redis second third",
        """
        first > Redis: SET lock 8f3a NX PX 30000
        first + has the lock
        Redis: the key expires
        first ~ believes so
        second > Redis: SET lock c19e NX PX 30000
        second + has the lock
        first > Redis: delete it if it is 8f3a
        Redis > first: it is not yours
        first -
        third > Redis: SET lock 77b0 NX PX 30000
        Redis > third: no
        second * keeps its lock
        """,
    ),
    "race-pause": (
        "A pause beyond the lease, and a row that refuses",
        """The first client gets the lock with the fencing token 6 and shows it to the row. It is
        paused until its lease has ended. The second gets token 7, shows it, and writes. When the
        first goes on and writes with token 6, the row has seen 7 and refuses.""",
        "first Redis second row",
        """
        first > Redis: acquire
        Redis > first: yours, token 6
        first + has the lock
        first > row: reads, shows 6
        first: is paused
        Redis: the lease ends
        first ~
        second > Redis: acquire
        Redis > second: yours, token 7
        second + has the lock
        second > row: reads, shows 7
        second > row: writes with 7
        first: goes on
        first > row: writes with 6
        row * refuses: it has seen 7
        """,
    ),
    "race-failover": (
        "A failover that loses a lease",
        """The first client acquires the lock at the primary, which dies before the replica has
        heard of it. The replica takes over and gives the lock to the second client. Until the
        first one's next renewal, both believe that they hold it.""",
        "first primary replica second",
        """
        first > primary: acquire
        primary > first: yours
        first + has the lock
        primary ! dies, before it has told the replica
        replica: becomes the primary
        first ~ believes so
        second > replica: acquire
        replica > second: yours
        second + has the lock
        first > replica: renew
        replica > first: it is not yours
        first - learns that it is lost
        """,
    ),
    "race-redlock": (
        "Redlock, and a server that forgets",
        """The first client gets the lock at servers a and b, a majority of three; c is down. Then
        b restarts without its data, and c comes back. The second client gets b and c, a majority
        as well. Both are in until the first one's next renewal.""",
        "first a b c second",
        """
        c: is down
        first > a: acquire
        first > b: acquire
        first + has the lock: two of three
        b ! restarts, empty
        c: is back
        first ~ believes so
        second > a: acquire
        a > second: no
        second > b: acquire
        second > c: acquire
        second + has the lock: two of three
        first > a: renew
        first > b: renew
        b > first: it is not yours
        first - learns that it is lost
        """,
    ),
    "handoff": (
        "From one holder to the next",
        """Two processes wait in the queue. When the holder releases, Redis gives the lock to the
        first of them in the same step, for up to five seconds, and tells it so by a message. Its
        watchdog renews the lease. At no moment was the lock free.""",
        "holder Redis first_waiter second_waiter",
        """
        holder + has the lock
        first_waiter > Redis: acquire
        Redis > first_waiter: held by …; you are first
        second_waiter > Redis: acquire
        Redis > second_waiter: held by …; you are second
        holder > Redis: release
        Redis: writes the first one's token, for 5 s
        holder -
        Redis > first_waiter: you have it (PUBLISH)
        first_waiter + has the lock
        first_waiter > Redis: renew (its watchdog): ttl 30 s
        second_waiter > Redis: acquire (its sign of life)
        Redis > second_waiter: held by …; you are first
        """,
    ),
    "straight": (
        "A free lock, from the block to the socket and back",
        """The block asks the lock, which looks up its plan, makes a claim and sends one script
        over a line. The answer makes a young lease, which the register knows. At the end of the
        block the lease sends one more script. Any other answer to one of the two, and any error,
        goes to the primitive, as the answer to its own first request.""",
        "block lock claims line Redis",
        """
        block > lock: __enter__
        lock: plan.py: what the settings decide
        lock > claims: take(claim)
        claims: mutex.py: the request, as data
        claims > line: ports.straight
        line > Redis: mutex_take
        Redis > line: token, fencing token
        line > claims: the number
        claims > lock: a grant
        lock: lease.py, register.py: a young lease
        lock > block: the lease
        block + the body runs
        block > claims: release_straight(claim), by lease.py
        claims > line: ports.straight
        line > Redis: mutex_drop
        Redis > line: token, 1
        block -
        claims * else: the primitive goes on
        """,
    ),
}
