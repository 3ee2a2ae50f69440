/* The handoff of a lock from holder to waiter, as a model for SPIN.
 *
 * It describes in Promela what lua/mutex*.lua and primitives/mutex.py of django_redislock do,
 * while the network, the clock, processes and an operator do their worst. README.md beside it
 * explains how to run it, what it leaves out, and how to read a counterexample.
 *
 * Clients. Each acquires the same lock again and again, every time with a new token. A token
 * is the number of its client here: a client begins anew only when no message of its last
 * token is left, and then that token can't be distinguished from a new one. So clients go on
 * without end in finitely many states.
 *
 * Time. It comes in ticks, and timers count down. Nothing is urgent: any number of ticks may
 * pass between any two steps. Slow clients and slow networks are the rule.
 *
 * Messages. A request changes nothing before it is carried out. So its sending is not a step
 * of its own: it is sent at the moment at which it is carried out, which is the worst case for
 * a deadline that counts from the sending. An answer that grants the lock is a step of its
 * own, may take any time and may be lost; other answers are received at once or lost, since a
 * client may wait before its next step as long as it likes. In addition there are late
 * requests: the client has given up waiting for the answer, and the request still arrives,
 * after others that were sent later.
 *
 * Mishaps. Events that are worse than slow or lost messages are counted: a run has at most
 * MISHAPS of them.
 *
 * Faults. With -DFAULT_... one thing is done wrong, to see that an invariant notices it. Each
 * fault is a mistake that somebody might make in a lock.
 *
 * Lost data. With -DLOSS all locks have AFTER_LOSS "wait" (lua/guard.lua), and a mishap is that the
 * server loses all it has. Then tombstones and the order of the queue are lost, too, so what
 * depends on them is not checked.
 *
 * Invariants stand where they could be broken, each under a comment with its name. The last
 * one is the formula at the end; with -DLIVENESS only that one is checked.
 *
 * A journal. With -DJOURNAL the server carries out the requests of journal.pml, which a real
 * server has carried out, in that order and with these answers; everything else is open. If no run
 * comes to the end of the journal, the model does not allow what has happened.
 */

#ifndef CLIENTS
#define CLIENTS 3           /* 2 to 4 */
#endif
#ifndef MISHAPS
#define MISHAPS 1
#endif

/* In ticks. Only the order matters: the claim window is the shortest. */
#ifndef TTL
#define TTL 2
#endif
#define CLAIM_WINDOW 1
#define SIGN_OF_LIFE 2

#define NOBODY CLIENTS

/* Sets are the bits of a byte, since an array of bits takes a byte for each. */
#define in(set, x)      (((set) >> (x)) & 1)
#define add(set, x)     set = set | (1 << (x))
#define remove(set, x)  set = set & ~(1 << (x))

/* The requests are members of sets, too, so they have to come last: the last name is 1. */
mtype = {
    /* The answers. */
    held,                   /* {1, ...}: it is yours */
    taken,                  /* {0, ...}: it is somebody else's; or nothing was done */
    refused,                /* {-1, ...}: your token may never have it */
    /* Only in a journal. */
    write_down,             /* mutex_write_down.lua */
    /* The requests: scripts, with those of their arguments that matter here. */
    drop,                   /* mutex_drop.lua */
    take,                   /* mutex_take.lua */
    extend,                 /* mutex_extend.lua */
    withdraw,               /* mutex_release.lua with withdraw = 1: leave a tombstone, too */
    release,                /* ... with withdraw = 0 */
    last_acquire,           /* mutex_acquire.lua without an inbox: leave the queue */
    acquire                 /* ... with one: queue me, at the place that I had */
};

/* ---- What is in Redis; see lua/value.lua and lua/queue.lua. ---- */

byte holder = NOBODY;       /* whose token is at `lock` */
byte lease;                 /* the TTL of `lock` */
byte queue;                 /* whose tokens are in `queue` ... */
byte place[CLIENTS];        /* ... and the order of the tickets, 1 comes first; 0 is none */
byte deaf;                  /* whose inbox in `waiters` is DEAF */
byte gone;                  /* whose token has a tombstone, withdrawn or cleared */
bit fence;                  /* in `tail`: the last fencing token; see grant() */
bit handed;                 /* in `tail`: the lock was handed over and is not confirmed yet */
bit noticed;                /* ... the mark: somebody waits, or has waited (lua/value.lua) */
byte listening;             /* for whose inbox PUBLISH returns 1 */

/* ---- What clients know. Their next step is their position in proctype Client. ---- */

byte busy;                  /* who has begun */
byte ticketed;              /* who knows its ticket */
byte doubtful;              /* claim.doubtful: whose requests may be late. (In Python it is also
                             * set when only the answer was lost: the client can't know.) */
byte inside;                /* who is in the guarded section */
byte own[CLIENTS];          /* how long until the own deadline of the lease */
byte late[CLIENTS];         /* which of the requests are late */
byte told;                  /* who knows, or will know by a message, that it was handed the lock */
byte brief;                 /* claim.short: who took it by `take`, and may `drop` it */

/* ---- What may go wrong. ---- */

byte mishaps = MISHAPS;     /* how many may still happen */
byte dead;                  /* who was killed */
byte stopped[CLIENTS];      /* 0: runs; else one more than the ticks without a sign of life */
byte seen = NOBODY;         /* the holder whom an operator has seen and will clear */

/* A waiter may ask at any moment, which includes wake-ups that are lost, doubled, late or
 * wrong. So wake-ups are modelled only for faults that treat them as more than a hint. */
#if defined(FAULT_WAKEUP_IS_A_GRANT) || defined(FAULT_NO_SLICES)
#define WAKEUPS
byte hints;                 /* whom a wake-up has reached */
#endif

#ifdef LOSS
bit unguarded;              /* the key of the guard is missing: the data were lost, or are new */
byte quiet;                 /* since it was written anew: for how long nobody new gets the lock */
#endif

/* ---- What only the invariants read. ---- */

byte over;                  /* who was told that it ended, while late requests are left */
byte cleared;               /* whose lease an operator has removed */
byte newest;                /* whose fencing token is the newest */
byte outdated;              /* whose token is older than one that the guarded store has seen */
bit granted;                /* the newest fencing token */
byte unclaimed;             /* 0: nobody has to confirm the lock; else one more than the ticks since */

#ifdef JOURNAL
#define NO_MARK  0          /* nobody has the lock */
#define PLAIN    1          /* | */
#define LISTED   2          /* + */
#define HANDED   3          /* ? */
#include "journal.pml"      /* STEPS; read_journal(), which fills these */
byte step;
byte whose[STEPS];          /* who has sent the request ... */
mtype asked[STEPS];         /* ... and what; */
mtype said[STEPS];          /* the answer; 0 of a release, which has none here; */
byte then[STEPS];           /* and who had the lock afterwards, */
byte mark[STEPS];           /* with which mark: NO_MARK, or as in lua/value.lua */
#define NO_JOURNAL  false   /* operators write none */
#define marked(m)  ((m) == NO_MARK || (m) == (handed -> HANDED : (noticed -> LISTED : PLAIN)))
#define is_next(c, request)  (step < STEPS && whose[step] == c && asked[step] == request)
/* As it is written, or this run is over. */
inline carried_out() {
    if
    :: reply == said[step] && holder == then[step] && marked(mark[step]) -> step++
    :: else -> step = STEPS + 1
    fi
}
#else
#define is_next(c, request)  true
#define NO_JOURNAL  true
#define carried_out()  skip
#endif

/* Used within one step only; 0 between steps. */
byte i, first, unseen;
byte way;                   /* how the next waiter is handed the lock, if that may be */
mtype what, reply;

#define runs(c)       (stopped[c] == 0)
#define silent(c)     (late[c] == 0 && seen != c)
#define listens(c)    (in(listening, c) || in(deaf, c))
#define reachable(c)  (in(queue, c) && listens(c) && stopped[c] <= SIGN_OF_LIFE)

/* The client is in the guarded section, and its own deadline has not passed. An operator takes
 * a lease away whatever its holder does: this one overlap is intended. */
#define believes(c)   (in(inside, c) && own[c] > 0 && !in(cleared, c))

#define each_client(action) \
    i = 0; do :: i < CLIENTS -> action; i++ :: else -> i = 0; break od

#define when(condition, action) \
    if :: condition -> action :: else fi

#ifndef LIVENESS
#define invariant(condition)  assert(condition)
#else
#define invariant(condition)  skip
#endif


/* ==== The server. Each script is one step, as in Redis. ==== */

/* lua/guard.lua */
#ifdef LOSS
#define paused  (unguarded || quiet > 0)
#ifndef FAULT_NO_PAUSE
inline write_guard() { when(unguarded, unguarded = 0; quiet = TTL) }
#else
inline write_guard() { unguarded = 0 }
#endif
#define keeps_order  false
#else
#define paused  false
#define keeps_order  true
#endif

inline drop_place(c) {
    each_client(when(place[i] > place[c], place[i] = place[i] - 1));
    place[c] = 0
}

/* A client that is not in the queue and knows no ticket has no place. */
inline tidy_place(c) {
    when(place[c] > 0 && !in(queue, c) && !in(ticketed, c), drop_place(c))
}

inline take_last_place(c) {
    place[c] = 1;
    each_client(when(i != c && place[i] >= place[c], place[c] = place[i] + 1))
}

inline leave_queue(c) {
    remove(queue, c);
    remove(deaf, c);
    tidy_place(c)
}

inline delete_lock() {
    holder = NOBODY;
    lease = 0;
    handed = 0;
    noticed = 0;
    unclaimed = 0;
#ifdef FAULT_FENCE_DIES_WITH_THE_LOCK
    fence = 0
#endif
}

/* Fencing tokens are only ever compared. So they are shifted after each grant: the newest is
 * 1, and all older ones are 0. */
inline grant(to, ticks) {
    /* Invariant: first come, first served. No client that can be reached has an earlier ticket. */
    each_client(invariant(i == to || !reachable(i) || (place[to] > 0 && place[to] < place[i]) || !keeps_order));
    /* Invariant: no ghosts. A token that was told that it ended never has the lock again. */
    invariant(!in(over, to) || !keeps_order);
    /* Invariant: fencing tokens grow. */
    invariant(fence + 1 > granted);
    fence = 1;
    granted = 1;
    newest = 0;
    holder = to;
    lease = ticks;
    handed = 0;
    noticed = (queue != 0);
    unclaimed = 0
}

/* No lease is ever shortened; here all are equally long, so nothing has to be done for it. */
inline set_ttl() {
    lease = TTL;
    unclaimed = 0
}

/* Ways to hand it over. */
#define TO_CONFIRM  0       /* for the claim window */
#define BY_ANSWER   1       /* the answer to its process says so */
#define BY_MESSAGE  2       /* a message says so */

/* Which clients share a process is left open; but they live and die together, so the waiter is
 * alive, as the client that asks is. A message goes to a client that was seen within the claim
 * window. */
#define at_once(c)  (in(listening, c) && \
    (way == BY_ANSWER && runs(c) || way == BY_MESSAGE && stopped[c] <= CLAIM_WINDOW))

/* The own deadline counts from the sending of the release; or, if a message says so, from a time
 * that lies before the handing over for certain (primitives/queued.py, Anchor). */
inline hand_at_once(c) {
    printf("      client %d is told that it has the lock\n", c);
    grant(c, TTL);
    leave_queue(c);
    /* Unless it does not wait: then a late request took the place. */
    when(in(ticketed, c) && !in(inside, c) && own[c] == 0,
         add(newest, c); add(told, c); own[c] = TTL)
}

/* The client does not know of it: nobody got the answer, or another client asked. */
inline forget_told(c) {
    when(in(told, c), remove(told, c); own[c] = 0)
}

inline hand_to(c) {
    printf("      the lock is handed to client %d\n", c);
    /* Invariant: the dead are passed over. The server can know that nobody listens. */
    invariant(listens(c));
#ifndef FAULT_HANDS_OVER_A_FULL_LEASE
    grant(c, CLAIM_WINDOW);
#else
    grant(c, TTL);
#endif
    handed = 1;
    unclaimed = 1;
#ifdef WAKEUPS
    add(hints, c);
#endif
    leave_queue(c)
}

/* hand_over() of lua/queue.lua. If no waiter was seen lately, the server itself had stopped, and
 * the first waiter gets the lock. */
inline hand_over(caller) {
    unseen = NOBODY;
    do
    :: true ->
        first = NOBODY;
        each_client(when(in(queue, i) && (first == NOBODY || place[i] < place[first]), first = i));
        if
        :: first == NOBODY || first == caller -> break
#ifndef FAULT_HANDS_TO_THE_DEAD
        :: first != NOBODY && first != caller && reachable(first) -> break
        :: first != NOBODY && first != caller && !reachable(first) ->
            if
            :: listens(first) && unseen == NOBODY -> unseen = first; remove(queue, first)
            :: else -> leave_queue(first)
            fi
#else
        :: else -> break
#endif
        fi
    od;
    when(first == NOBODY, first = unseen);
    if
    :: first != NOBODY && first != caller && at_once(first) -> hand_at_once(first)
    :: first != NOBODY && first != caller && !at_once(first) -> hand_to(first)
    :: else
    fi;
    when(unseen != NOBODY, leave_queue(unseen));
    first = 0;
    unseen = 0
}

/* lua/mutex_take.lua: the first request of most acquires. It does nothing in any unusual case. */
inline script_take(c) {
    reply = taken;
    when(holder == NOBODY && queue == 0 && !in(gone, c), grant(c, TTL); reply = held)
}

/* lua/mutex_drop.lua: the release of a lock of which nobody has taken notice. */
inline script_drop(c) {
    reply = taken;
#ifndef FAULT_DROP_OVERLOOKS_THE_MARK
    when(holder == c && !handed && !noticed, delete_lock(); reply = held; check_taken_up())
#else
    when(holder == c && !handed, delete_lock(); reply = held; check_taken_up())
#endif
}

/* lua/mutex_acquire.lua */
inline script_acquire(c) {
    if
#ifndef FAULT_ACQUIRE_IS_NOT_IDEMPOTENT
    :: holder == c ->
        set_ttl();
        handed = 0;
        reply = held
#endif
#ifndef FAULT_BARGING
    :: holder == NOBODY && queue == 0 && !in(gone, c) && !paused ->
#else
    :: holder == NOBODY && !in(gone, c) && !paused ->
        leave_queue(c);
#endif
        grant(c, TTL);
        reply = held
#ifdef LOSS
    /* lua/mutex_guard.lua */
    :: holder == NOBODY && !in(gone, c) && paused ->
        write_guard();
        when(what == last_acquire, leave_queue(c));
        reply = taken
#endif
    :: else ->
        if
        :: in(gone, c) -> reply = refused
        :: else ->
            reply = taken;
            if
            :: what == acquire ->
                if
                :: !in(queue, c) ->
                    when(place[c] == 0, take_last_place(c));
                    noticed = (holder != NOBODY);
                    add(queue, c)
                :: else
                fi;
                if
                :: in(listening, c) -> remove(deaf, c)
                :: else -> add(deaf, c)
                fi;
                when(stopped[c] > 1, stopped[c] = 1)
            :: else
            fi;
            if
            :: holder == NOBODY ->
                hand_over(c);
                if
                :: holder == NOBODY ->
                    grant(c, TTL);
                    leave_queue(c);
                    reply = held
                :: else
                fi
            :: else
            fi;
#ifndef FAULT_GIVING_UP_STAYS_IN_THE_QUEUE
            when(what == last_acquire, leave_queue(c))
#endif
        fi
    fi;
    /* Invariant: the holder is never turned away. */
    invariant(reply == held || holder != c)
}

/* lua/mutex_release.lua */
inline script_release(c) {
    if
#ifndef FAULT_RELEASE_WITHOUT_CHECK
    :: holder == c ->
#else
    :: holder != NOBODY ->
#endif
        /* Invariant: a release never removes another's lease. */
        invariant(holder == c);
        delete_lock();
#ifndef FAULT_NO_HANDOFF
        hand_over(NOBODY);
#endif
        check_taken_up()
    :: else -> leave_queue(c)
    fi;
#ifndef FAULT_NO_TOMBSTONE
    when(what == withdraw, add(gone, c))
#endif
}

/* lua/mutex_extend.lua */
inline script_extend(c) {
    if
#ifndef FAULT_EXTEND_WITHOUT_CHECK
    :: holder == c ->
#else
    :: true ->
        holder = c;
#endif
        set_ttl();
        reply = held
#ifdef LOSS
    /* lua/mutex_reinstate.lua: what was forgotten. From now on its release leaves a tombstone. */
#ifndef FAULT_PUTS_BACK_WHAT_HAS_ENDED
    :: holder == NOBODY && !in(gone, c) && own[c] > 0 && paused ->
#else
    :: holder == NOBODY && !in(gone, c) && paused ->
#endif
        /* Invariant: no ghosts. What was told that it ended is not reinstated. */
        invariant(!in(over, c));
        write_guard();
        holder = c;
        noticed = 1;
        set_ttl();
        when(in(busy, c), add(doubtful, c));
        reply = held
#endif
    :: else -> reply = taken
    fi
}

/* lua/mutex_clear.lua */
inline script_clear(c) {
    if
    :: holder == c ->
        /* A client that has not confirmed the lock goes on waiting. */
        when(!handed, add(gone, c); add(cleared, c));
        delete_lock();
        hand_over(NOBODY);
        check_taken_up()
    :: else
    fi
}

inline check_taken_up() {
    /* Invariant: no free lock while somebody waits. It is handed over in the same step. */
    each_client(invariant(holder != NOBODY || !in(queue, i) || !listens(i)))
}


/* ==== A client: primitives/mutex.py, and lease/lock.py, lease/claims.py, lease/watchdog.py above it. ==== */

inline check_inside(c) {
    /* Invariant: one at a time. At most one client is inside before its own deadline. */
    each_client(invariant(i == c || !believes(i) || !believes(c)));
    /* Invariant: the store refuses nobody in time. It remembers the largest fencing token. */
    invariant(!believes(c) || !in(outdated, c))
}

inline enter(c) {
    printf("client %d is inside\n", c);
    add(inside, c);
    check_inside(c);
    when(in(newest, c), each_client(when(i != c && in(inside, i), add(outdated, i))))
}

/* As far as the client knows, it has no lease now. */
inline leave(c) {
    remove(inside, c);
    remove(outdated, c);
    remove(newest, c);
    own[c] = 0
}

/* No message of the token is left, so the client may use it again as a new one. */
inline forget(c) {
    if
    :: in(over, c) && silent(c) ->
        remove(over, c);
        remove(gone, c);
        remove(cleared, c);
        remove(newest, c)
    :: else
    fi
}

inline finish(c) {
    printf("client %d knows that it does not have the lock\n", c);
    /* Invariant: no ghosts. A client is told that it does not have the lock only if that is true. */
    invariant(holder != c && !in(queue, c));
    remove(busy, c);
    remove(doubtful, c);
    remove(ticketed, c);
    remove(brief, c);
    tidy_place(c);
    forget_told(c);
    add(over, c);
    forget(c)
}

inline be_late(c) {
    printf("client %d gets no answer to %e, which may still arrive\n", c, what);
    mishaps--;
    when(what != extend, add(doubtful, c));
    add(late[c], what);
    what = 0
}

/* Its process was killed, or its host is gone. */
inline die(c) {
    printf("client %d dies\n", c);
    mishaps--;
    add(dead, c);
    stopped[c] = 1;
    remove(told, c);
    leave(c);
    remove(busy, c);
    remove(doubtful, c);
    remove(ticketed, c);
    remove(brief, c);
    tidy_place(c)
}

/* Clients that have not begun are all alike, so the first of them begins. */
#define fresh(c)  (runs(c) && !in(busy, c) && in(listening, c) && silent(c))
#if defined(LIVENESS)
#define its_turn(c)  true   /* one client is watched, so they are not alike */
#elif CLIENTS == 2
#define its_turn(c)  (c == 0 || !fresh(0))
#elif CLIENTS == 3
#define its_turn(c)  ((c == 0 || !fresh(0)) && (c <= 1 || !fresh(1)))
#else
#define its_turn(c)  ((c == 0 || !fresh(0)) && (c <= 1 || !fresh(1)) && (c <= 2 || !fresh(2)))
#endif

#ifndef LIVENESS
#define may_lose   true
#define lose       skip
#define may_renew  true
#ifndef TIMELESS
#define may_tick   true
#else
#define may_tick   false    /* nothing takes so long that a lease ends */
#endif
#define may_give_up(c)  true
#else
/* Nobody is served if every answer is lost, or if the holder renews without end. */
#define may_lose   (mishaps > 0)
#define lose       mishaps--
#define may_renew  false
/* The client that is watched waits without limit. */
#define may_give_up(c)  (c != 0)
/* And nobody is served if everything is too slow. A client that runs gets an answer within a tick, and while the
 * lock is handed to it, it asks within the claim window: the slices of waiting.py are shorter
 * at the head of the queue. */
#define in_time(c)  (!runs(c) || ((own[c] == 0 || in(inside, c)) && !(unclaimed > 0 && holder == c)))
#if CLIENTS == 2
#define may_tick   (in_time(0) && in_time(1))
#elif CLIENTS == 3
#define may_tick   (in_time(0) && in_time(1) && in_time(2))
#else
#define may_tick   (in_time(0) && in_time(1) && in_time(2) && in_time(3))
#endif
#endif

#ifndef FAULT_NO_SLICES
#define may_ask(c)  true
#else
#define may_ask(c)  (!in(ticketed, c) || in(hints, c))
#endif

proctype Client(byte c) {
end_idle:
    atomic { fresh(c) && its_turn(c) -> add(busy, c) };

    /* It may take a free lock by a short request. If nothing was done, or the request is lost or late, it goes
     * on as if it had not asked. */
    if
    :: goto asking
#ifndef LOSS                /* a lock with a guard is not taken so */
    :: atomic {
        runs(c) && is_next(c, take) ->
        d_step {
            script_take(c);
            carried_out();
            printf("client %d asks: take\n      %e\n", c, reply);
            when(reply == held, own[c] = TTL; add(newest, c); add(brief, c))
        };
        if
        :: reply == held -> reply = 0; goto answered
        :: reply == taken -> reply = 0; goto asking
        fi
       }
    :: atomic { runs(c) && mishaps > 0 -> what = take; d_step { be_late(c) }; goto asking }
#endif
    fi;

    /* The client asks at once, and then when a slice of its wait is over or it is woken, with or
     * without a reason: at any time. */
asking:
    if
    :: atomic {
        runs(c) && may_ask(c) && (is_next(c, acquire) || is_next(c, last_acquire) && may_give_up(c)) ->
        if
        :: is_next(c, acquire) -> what = acquire
        :: is_next(c, last_acquire) && may_give_up(c) -> what = last_acquire
        fi;
        if
        :: way = TO_CONFIRM
        :: way = BY_MESSAGE
        fi;
        d_step {
            printf("client %d asks: %e\n", c, what);
            forget_told(c);
            script_acquire(c);
            carried_out();
            way = 0;
            printf("      %e\n", reply);
            when(reply == held, own[c] = TTL; add(newest, c))
        };
        if
        :: reply == held -> what = 0; reply = 0; goto answered
        :: reply == refused -> what = 0; reply = 0; goto leaving
        :: reply == taken && what == acquire ->
            what = 0; reply = 0; add(ticketed, c); goto asking
        :: reply == taken && what == acquire && may_lose ->
            what = 0; reply = 0; lose; goto asking
        /* Its wait is over, or it does not wait at all. */
#ifndef FAULT_NO_LAST_WORD
        :: reply == taken && what == last_acquire && in(doubtful, c) ->
            what = 0; reply = 0; goto leaving
        :: reply == taken && what == last_acquire && !in(doubtful, c) ->
#else
        :: reply == taken && what == last_acquire ->
#endif
            d_step { what = 0; reply = 0; finish(c) };
            goto end_idle
        fi
       }
    /* An answer to its own process, or a message, says that it has the lock. */
#ifndef FAULT_HANDOVER_COUNTS_FROM_THE_ANSWER
    :: atomic {
        runs(c) && in(told, c) && own[c] > 0 -> d_step { remove(told, c); enter(c) };
        goto working
       }
#else
    :: atomic {
        runs(c) && in(told, c) -> d_step { remove(told, c); own[c] = TTL; enter(c) };
        goto working
       }
#endif
    /* It is cancelled, or gives up on a server that does not answer. */
    :: runs(c) && may_give_up(c) -> goto leaving
    :: atomic {
        runs(c) && mishaps > 0 ->
        if
        :: what = acquire
        :: may_give_up(c) -> what = last_acquire
        fi;
        d_step { be_late(c) };
        goto asking
       }
    :: atomic {
        mishaps > 0 ->
        d_step { die(c) };
        if
        :: true
        :: add(late[c], acquire)    /* the acquire is on its way */
        fi;
        goto end_dead
       }
#ifdef FAULT_WAKEUP_IS_A_GRANT
    :: atomic {
        runs(c) && in(hints, c) ->
        d_step { remove(hints, c); own[c] = TTL; enter(c) };
        goto working
       }
#endif
    fi;

    /* The answer that it holds the lock is on its way. */
answered:
    if
#ifndef FAULT_DEADLINE_COUNTS_FROM_THE_ANSWER
    :: atomic { runs(c) && own[c] > 0 -> d_step { enter(c) }; goto working }
#else
    :: atomic { runs(c) -> d_step { own[c] = TTL; enter(c) }; goto working }
#endif
    /* The answer is lost, or took longer than the lease lives, which has the same effect. */
    :: atomic {
        runs(c) && own[c] > 0 && may_lose -> lose; d_step { remove(brief, c); leave(c) }; goto asking
       }
    :: atomic { runs(c) && own[c] == 0 -> d_step { remove(brief, c); leave(c) }; goto asking }
    :: atomic { runs(c) && may_give_up(c) -> d_step { remove(brief, c); leave(c) }; goto leaving }
    :: atomic { mishaps > 0 -> d_step { die(c) }; goto end_dead }
    fi;

working:
    if
    /* The watchdog renews. A lost renewal is the same as none. */
    :: atomic {
        runs(c) && own[c] > 0 && may_renew && is_next(c, extend) ->
        d_step {
            script_extend(c);
            carried_out();
            printf("client %d renews: %e\n", c, reply);
            if
            :: reply == held -> own[c] = TTL
            :: else -> own[c] = 0
            fi;
            reply = 0;
            check_inside(c)
        };
        goto working
       }
    :: atomic {
        runs(c) && own[c] > 0 && mishaps > 0 ->
        d_step { what = extend; be_late(c) };
        goto working
       }
    :: atomic { runs(c) -> d_step { printf("client %d is outside\n", c); leave(c) }; goto leaving }
    :: atomic { mishaps > 0 -> d_step { die(c) }; goto end_dead }
    fi;

    /* It releases the lock, or undoes an acquire, and repeats that until it has an answer. */
leaving:
    if
    /* Once, by a short request, if it has taken it so. */
    :: atomic {
        runs(c) && in(brief, c) && !in(doubtful, c) && is_next(c, drop) ->
        d_step {
            script_drop(c);
            carried_out();
            printf("client %d releases: drop\n      %e\n", c, reply);
            remove(brief, c)
        };
        if
        :: reply == held -> reply = 0; d_step { finish(c) }; goto end_idle
        :: reply == held && may_lose -> reply = 0; lose; add(doubtful, c); goto leaving
        :: reply == taken -> reply = 0; goto leaving
        fi
       }
    :: atomic {
        runs(c) && in(brief, c) && !in(doubtful, c) && mishaps > 0 ->
        what = drop;
        d_step { remove(brief, c); be_late(c) };
        goto leaving
       }
    :: atomic {
        runs(c) && is_next(c, (in(doubtful, c) -> withdraw : release)) ->
        if
        :: way = TO_CONFIRM
        :: way = BY_ANSWER
        :: way = BY_MESSAGE
        fi;
        d_step {
            if
            :: in(doubtful, c) -> what = withdraw
            :: else -> what = release
            fi;
            printf("client %d releases: %e\n", c, what);
            script_release(c);
            carried_out();
            what = 0
        };
        if
        :: d_step { way = 0; finish(c) }; goto end_idle
        :: may_lose ->
            lose;
            d_step { when(way == BY_ANSWER && holder != NOBODY, forget_told(holder)); way = 0 };
            goto leaving
        fi
       }
    :: atomic {
        runs(c) && mishaps > 0 ->
        d_step {
            if
            :: in(doubtful, c) -> what = withdraw
            :: else -> what = release
            fi;
            be_late(c)
        };
        goto leaving
       }
    :: atomic { mishaps > 0 -> d_step { die(c) }; goto end_dead }
    fi;

end_dead:
    false
}


/* ==== What else happens. ==== */

#define arrives(c, request)  (in(late[c], request) && is_next(c, request))

/* A late request of client c arrives; with another mishap it will arrive once more. */
proctype Network(byte c) {
end_network:
    do
    :: atomic {
        arrives(c, acquire) || arrives(c, last_acquire) || arrives(c, release) || arrives(c, withdraw) ||
        arrives(c, extend) || arrives(c, take) || arrives(c, drop) ->
        if
        :: arrives(c, acquire) -> what = acquire
        :: arrives(c, last_acquire) -> what = last_acquire
        :: arrives(c, release) -> what = release
        :: arrives(c, withdraw) -> what = withdraw
        :: arrives(c, extend) -> what = extend
        :: arrives(c, take) -> what = take
        :: arrives(c, drop) -> what = drop
        fi;
        if
        :: way = TO_CONFIRM
        :: what == release || what == withdraw -> way = BY_ANSWER
        :: what != extend && what != take && what != drop -> way = BY_MESSAGE
        fi;
        d_step {
            printf("a late %e of client %d arrives\n", what, c);
            if
            :: what == extend -> script_extend(c)
            :: what == take -> script_take(c)
            :: what == drop -> script_drop(c)
            :: what == release || what == withdraw ->
                script_release(c);
                when(way == BY_ANSWER && holder != NOBODY, forget_told(holder))
            :: else -> script_acquire(c)
            fi;
            carried_out();
            way = 0;
            /* Only the answer to a renewal may still be read. The own deadline counts from the
             * sending; and once it has passed, nothing revives the lease. */
#ifdef FAULT_LATE_RENEWAL_REVIVES
            when(what == extend && reply == held && in(inside, c),
                 own[c] = TTL - 1; check_inside(c));
#endif
            reply = 0
        };
        if
        :: remove(late[c], what)
        :: mishaps > 0 -> mishaps--
        fi;
        d_step { what = 0; forget(c) }
       }
    od
}

proctype World(byte c) {
end_world:
    do
    /* SIGSTOP and SIGCONT. */
    :: d_step {
        mishaps > 0 && in(busy, c) && runs(c) ->
        printf("client %d is stopped\n", c);
        mishaps--;
        stopped[c] = 1
       }
    :: d_step {
        stopped[c] > 0 && !in(dead, c) ->
        printf("client %d goes on\n", c);
        stopped[c] = 0
       }
#ifdef LOSS
    :: d_step {
        mishaps > 0 && c == 0 ->
        printf("the server loses its data\n");
        mishaps--;
        delete_lock();
        queue = 0;
        deaf = 0;
        gone = 0;
        ticketed = 0;
        each_client(place[i] = 0);
        unguarded = 1;
        quiet = 0
       }
#endif
    /* The connection of an inbox breaks, or is not there yet; a dead client's breaks, too. */
    :: d_step {
        mishaps > 0 && in(busy, c) && in(listening, c) ->
        printf("client %d no longer listens\n", c);
        mishaps--;
        remove(listening, c)
       }
    :: d_step {
        !in(dead, c) && !in(listening, c) ->
        printf("client %d listens again\n", c);
        add(listening, c)
       }
    :: d_step {
        in(dead, c) && in(listening, c) ->
        printf("the connection of client %d breaks\n", c);
        remove(listening, c)
       }
    /* An operator looks at the lock, and later clears the holder that was seen. */
    :: d_step {
        mishaps > 0 && holder == c && seen == NOBODY && NO_JOURNAL ->
        printf("an operator sees that client %d holds the lock\n", c);
        mishaps--;
        seen = c
       }
    :: d_step {
        seen == c ->
        printf("the operator clears the lock of client %d\n", c);
        script_clear(c);
        seen = NOBODY;
        forget(c)
       }
#ifdef WAKEUPS
    :: d_step { mishaps > 0 && in(hints, c) -> mishaps--; remove(hints, c) }
#endif
#ifdef JOURNAL
    /* The watchdog writes down a lease that is a second old. */
    :: d_step { is_next(c, write_down) -> when(holder == c, noticed = 1); carried_out() }
#endif
    od
}

inline count_down(timer) { when(timer > 0, timer--) }

proctype Clock() {
end_clock:
    do
    :: d_step {
        may_tick ->
        printf("tick\n");
        each_client(
            count_down(own[i]);
            when(stopped[i] > 0 && stopped[i] <= SIGN_OF_LIFE, stopped[i]++));
        when(unclaimed > 0 && unclaimed <= CLAIM_WINDOW, unclaimed++);
#ifdef LOSS
        count_down(quiet);
#endif
#ifndef FAULT_NO_CLAIM_WINDOW
        count_down(lease);
#else
        when(unclaimed == 0, count_down(lease));
#endif
        when(holder != NOBODY && lease == 0, printf("      the lease ends\n"); delete_lock());
        /* Invariant: a claim window and no more. This is the cost of a waiter that does not
         * come, for the next one. */
        invariant(unclaimed <= CLAIM_WINDOW)
       }
    od
}

#ifdef JOURNAL
/* SPIN reports how it comes to its end, as if that were a mistake. */
proctype Reader() {
    atomic { step == STEPS -> assert(false) }
}
#endif

init {
    atomic {
#ifdef JOURNAL
        read_journal();
        run Reader();
#endif
        each_client(add(listening, i); run Client(i); run Network(i); run World(i));
        run Clock()
    }
}

#ifdef LIVENESS
/* Invariant: everybody is served. Every attempt of a client that lives and runs has an end,
 * even if the client never gives up. Since all clients are alike, watching one is enough. */
ltl served { []<> !(in(busy, 0) && runs(0)) }
#endif
