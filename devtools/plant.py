"""Plant faults in a copy of the project, and say which tests find each of them.

    python -m devtools.plant                 all of them
    python -m devtools.plant fencing redlock those whose names contain one of these words
    python -m devtools.plant --list          the table of docs/proof.md, and no more
    python -m devtools.plant --write         puts the table there
    python -m devtools.plant --show 12       plants the twelfth, and shows what goes wrong

Each fault in `FAULTS` replaces a text that occurs once in `django_redislock/`, in whichever file.
A text that is gone, or occurs twice, is an error: the list is then out of date. The named tests
run in the copy, and at least one has to fail. The script prints a table of the faults and the
tests that failed first, and exits with 1 if a fault was not found.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from . import pages

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "proof.md"
PACKAGE = "django_redislock"
LINES = 40
"""As many lines of a failure are shown; the first ones and the last say the most."""
SECONDS = 600.0
"""Seconds after which the tests count as having found the fault: some faults make them hang."""


NOTES = "tests/test_notes.py"
TASKS = "tests/tasks/test_rules.py"
IN_TRANSACTION = "tests/test_in_transaction.py"
IN_TRANSACTION_VIEWS = "tests/views/test_in_transaction.py"


class Fault(NamedTuple):
    """One mistake: `old` becomes `new`, and the `tests` fail."""

    name: str
    old: str
    new: str
    tests: str
    """Arguments of pytest."""


class NotPlanted(Exception):
    """The text to replace is missing, or not unique."""


CONTRACT = "tests/contract/test_contract.py"
AFTER_LOSS = "tests/faults/test_after_loss.py"
ONE_ADDRESS = "tests/cluster/test_one_address.py"

PROOF = "tests/proof/test_proof.py"
UNLOCKED = "tests/faults/test_unlocked.py"

FAULTS = [
    # The scripts.
    Fault(
        "proof: a lock that is held is granted",
        "EXISTS', unpack(keys, 1, #keys - 1)) == 0 then",
        "EXISTS', keys[2], keys[3]) == 0 then",
        f"{PROOF} -k 'slice and mutex'",
    ),
    Fault(
        "proof: a semaphore has one place more",
        "others >= tonumber(limit) then return",
        "others > tonumber(limit) then return",
        f"{PROOF} -k 'slice and semaphore'",
    ),
    Fault(
        "mutex: somebody else's lock is granted",
        "if values[i] and token_of(values[i]) ~= token then\n      blocked",
        "if false then\n      blocked",
        f"{CONTRACT} -k 'excludes and mutex'",
    ),
    Fault(
        "queued: a handover that no message announced is not counted",
        "anchor.late(acquired_us, attempts.sent) >= LATE",
        "False",
        "tests/test_learned.py",
    ),
    Fault(
        "watchdog: a lock is not followed again after its renewal",
        "[lease for lease in leases if lease.tracked and not lease.closing]",
        "[]",
        "tests/faults/test_told_at_once.py -k 'after_renewals or is_kept'",
    ),
    Fault(
        "inbox: what a server says of its maintenance is passed over",
        "if is_notice(answer):",
        "if False:",
        "tests/faults/test_maintenance.py -k connection_that_listens",
    ),
    Fault(
        "tracking: own renewals are told, too",
        '"OPTIN", "NOLOOP"',
        '"OPTIN"',
        "tests/faults/test_told_at_once.py -k own_renewals",
    ),
    Fault(
        "queue: on a cluster, killed waiters count as listening",
        "redis.pcall('PUBSUB', channel and",
        "channel and {channel, 1} or redis.pcall('PUBSUB', channel and",
        "tests/cluster/test_messages.py -k 'killed'",
    ),
    Fault(
        "inbox: channels of a slot that has moved stay where they were",
        "if [*boxes] != [*self._boxes]:",
        "if not self._boxes:",
        "tests/cluster/test_messages.py -k slot_that_moves",
    ),
    Fault(
        "queued: a message counts as missed",
        'and port.wakeup == "poll"\n',
        "\n",
        "tests/test_learned.py",
    ),
    Fault(
        "mutex: a newcomer passes those who wait",
        "EXISTS', unpack(keys, 1, #keys - 1)) == 0 then",
        "EXISTS', keys[1], keys[3]) == 0 then",
        "tests/test_newcomer.py",
    ),
    Fault(
        "mutex: a newcomer that asks again passes those who wait",
        "~= token and redis.call('EXISTS', queue, gone) > 0 then",
        "~= token and redis.call('EXISTS', gone) > 0 then",
        f"tests/test_model.py {CONTRACT} -k 'barges_in or twin or story'",
    ),
    Fault(
        "mutex: a release at once looks at no token",
        "redis.pcall('GETRANGE', keys[i], '0', '32') ~= ours then",
        "redis.pcall('GETRANGE', keys[i], '32', '32') ~= '|' then",
        f"{CONTRACT} -k mutex",
    ),
    Fault(
        "mutex: a release at once hands the lock to nobody",
        "    redis.call('SETRANGE', lock, 32, '+')\n    enlist(now",
        "    enlist(now",
        "tests/test_young.py -k handed_over",
    ),
    Fault(
        "once: a lease that is held once more has no record yet",
        "if lease._claim.primitive is not recorded:",
        "if False:",
        "tests/test_only_once.py -k released_later",
    ),
    Fault(
        "multi: a waiter is moved to a lock whose release at once looks for nobody",
        "      list(look(other), redis.call('PTTL', other))\n",
        "",
        "tests/contract/test_multi.py -k young",
    ),
    Fault(
        "mutex: a fencing token at once that is smaller than the last one",
        "if last and (#last ~= #fence or last >= fence or last <= '1') then",
        "if false then",
        f"{CONTRACT} tests/contract/test_mutex.py tests/faults/test_clock.py -k 'clock or fenc'",
    ),
    Fault(
        "mutex: an acquire that was undone is granted at once when it arrives late",
        "EXISTS', unpack(keys, 1, #keys - 1)) == 0 then",
        "EXISTS', keys[1], keys[2]) == 0 then",
        "tests/faults/test_kinds.py -k 'arrives_late and short and mutex'",
    ),
    Fault(
        "mutex: an acquire that was undone is granted when it arrives late",
        "      if why then return {-1, why, i} end\n",
        "",
        "tests/faults/test_kinds.py -k 'arrives_late and length and mutex'",
    ),
    Fault(
        "mutex: renewal does not look whose the lock is",
        "  if value and string.sub(value, 1, 32) == token then return value end",
        "  if value then return value end",
        f"{CONTRACT} -k 'lost_lease and mutex'",
    ),
    Fault(
        "mutex: renewal does not tell the index",
        "if listed and left < lives and mark_of(value) ~= '|' then",
        "if false then",
        "tests/contract/test_mutex.py",
    ),
    Fault(
        "mutex: renewal does not restore the last fencing token",
        "      if lost then\n        local _, _, fence = parts_of(value",
        "      if false then\n        local _, _, fence = parts_of(value",
        f"{CONTRACT} -k restores_the_last",
    ),
    Fault(
        "queue: a stopped waiter keeps the others waiting",
        "local SIGN_OF_LIFE = 5000000",
        "local SIGN_OF_LIFE = 50000000000",
        "tests/contract/test_mutex.py -k sign_of_life",
    ),
    Fault(
        "queue: last come, first served",
        "last ~= token and math.max(time, at + 1) or time",
        "last ~= token and at - 1 or time",
        f"{CONTRACT} -k order_of_arrival",
    ),
    Fault(
        "permits: a semaphore and a read-write lock share a name",
        "if differs(kind, held) then\n  leave_queue(token)",
        "if false then\n  leave_queue(token)",
        "tests/contract/test_rwlock.py -k same_name",
    ),
    Fault(
        "permits: a late acquire shortens the lease",
        "integer(math.max(ends, millis + ttl)), token)\n  settle(mark_of",
        "integer(millis + ttl), token)\n  settle(mark_of",
        "tests/test_permits.py tests/faults/test_kinds.py",
    ),
    Fault(
        "permits: nobody removes the lock from the index",
        "      redis.call('HSET', holders, last, marked(record, '+'))",
        "",
        "tests/faults/test_shared.py -k test_a_holder",
    ),
    Fault(
        "release: one that is sent again says that the lock was lost",
        "if refusal and claim.release_lost and not refusal.revoked:",
        "if False:",
        "tests/faults/test_timestamp.py tests/faults/test_kinds.py -k release",
    ),
    Fault(
        "release: one that was refused halfway says that the lock was lost",
        "claim.released += (first.lock,)",
        "pass",
        "tests/faults/test_multi.py -k at_the_release",
    ),
    Fault(
        "timestamp: the lock of an old client is taken",
        "if holder and token_of(holder) ~= token then",
        "if holder and string.find(holder, '|', 1, true) and token_of(holder) ~= token then",
        "tests/contract/test_timestamp.py tests/contract/test_migration.py",
    ),
    Fault(
        "clear: the holder does not learn by whom and why",
        "redis.call('SET', gone, 'cleared|' .. why",
        "tostring('cleared|' .. why",
        f"{CONTRACT} -k 'clear and mutex'",
    ),
    Fault(
        "clear: a lock that changed hands is cleared as well",
        "not (parts_of(value) and token_of(value) == seen) then return 0 end",
        "not parts_of(value) then return 0 end",
        "tests/test_inspection.py tests/operations/test_clear.py tests/admin/test_clear.py",
    ),
    Fault(
        "ledger: a tick is claimed twice",
        "if tonumber(tick) <= claimed then",
        "if tonumber(tick) < claimed then",
        "tests/periodic/test_ledger.py",
    ),
    Fault(
        "ledger: a run begins however late it is",
        "if not again and deadline ~= '' and now > tonumber(deadline) then",
        "if false then",
        "tests/periodic/test_ledger.py",
    ),
    Fault(
        "ledger: a request is run twice",
        "if request ~= '' and not ours then take_request() end",
        "",
        "tests/periodic/test_requests.py -k TestTaking",
    ),
    # Lost data.
    Fault(
        "after loss: nobody pauses",
        "if not left and redis.call('EXISTS', lock, gone) == 0 then",
        "if false then",
        f"{AFTER_LOSS} -k 'wait_that_is_over or is_dead or new_server or guard_is_lost'",
    ),
    Fault(
        "after loss: nobody pauses for several names",
        "  if not left and redis.call('EXISTS', lock, gone) == 0 then",
        "  if false then",
        f"{AFTER_LOSS} -k several_names",
    ),
    Fault(
        "after loss: who gives up in the pause stays in the queue",
        "    if inbox == '' then leave_queue(token) end\n  end\n  return {4",
        "  end\n  return {4",
        f"{AFTER_LOSS} -k begun_before",
    ),
    Fault(
        "after loss: nobody writes the guard, and the pause has no end",
        "    redis.call('SET', guard, integer(now))\n",
        "",
        "tests/test_model.py -k 'lost_data'",
    ),
    Fault(
        "after loss: a guard in the future is believed",
        "if not since or since > now then",
        "if not since then",
        f"{AFTER_LOSS} -k set_back",
    ),
    Fault(
        "after loss: a lease is reinstated over another holder",
        "  elseif there or (why and",
        "  elseif (why and",
        f"{AFTER_LOSS} -k somebody_else_has_it",
    ),
    Fault(
        "after loss: a lease is reinstated that was withdrawn",
        "(why and why ~= withdrawn)",
        "false",
        f"{AFTER_LOSS} -k back_after_its_release",
    ),
    Fault(
        "after loss: a lease is reinstated that has ended",
        "now >= tonumber(ARGV[3 * i + 2])",
        "false",
        f"{AFTER_LOSS} -k lease_has_ended",
    ),
    Fault(
        "after loss: a lease is reinstated after the pause",
        "\n    or not pause(guard, tonumber(ttl)) then",
        " then",
        f"{AFTER_LOSS} -k after_the_pause",
    ),
    Fault(
        "after loss: the fencing token of a lease that was reinstated is forgotten",
        "  remember_fence(clock, newest)\nend\nreturn reply",
        "end\nreturn reply",
        f"{AFTER_LOSS} -k holder_keeps",
    ),
    Fault(
        "after loss: a lease that was reinstated is in no list",
        "  redis.call('ZADD', index, unpack(scores))\n  remember_fence",
        "  remember_fence",
        f"{AFTER_LOSS} -k was_cleared",
    ),
    Fault(
        "after loss: a renewal that finds nothing is a loss",
        "isinstance(refusal, Refusal) and refusal.forgotten and lease.claim.guarded:",
        "False:",
        f"{AFTER_LOSS} -k holder_keeps",
    ),
    Fault(
        "after loss: what is reinstated after its release stays",
        "            lease.claim.doubtful = True\n            if not lease.closing:",
        "            if not lease.closing:",
        f"{AFTER_LOSS} -k back_after_its_release",
    ),
    Fault(
        "after loss: a renewal reinstates what is being released",
        "            if not lease.closing:\n                forgotten.append",
        "            if True:\n                forgotten.append",
        f"{AFTER_LOSS} -k nothing_after_the_release",
    ),
    Fault(
        "after loss: a release that finds nothing is a loss",
        "if lost is None and refusal is not None and refusal.forgotten and claim.guarded:",
        "if False:",
        f"{AFTER_LOSS} -k before_it_was_renewed",
    ),
    Fault(
        "after loss: a release that takes its time is a loss",
        "        if refusal is not None and not refusal.revoked:\n            return None",
        "        if False:\n            return None",
        f"{AFTER_LOSS} -k takes_its_time",
    ),
    Fault(
        "after loss: an exported lease is not reinstated",
        "            guarded=kinds.guarded(policy, clustered),\n",
        "",
        f"{AFTER_LOSS} -k continued_elsewhere",
    ),
    Fault(
        "after loss: a name of several does not say that it waits",
        'if not plan.guarded and any(policy.after_loss == "wait" for policy in own):',
        "if False:",
        f"{AFTER_LOSS} -k name_that_is_guarded",
    ),
    # A server that is sharded behind one address.
    Fault(
        "sharded: that a script was refused is forgotten",
        "                    self._server.refuses_several_slots()\n",
        "",
        f"{ONE_ADDRESS} -k 'multi and one'",
    ),
    Fault(
        "sharded: several names that were refused are not asked for by slot",
        "if _groups(port, claim.names) != groups:\n                    # It was ",
        "if False:\n                    # It was ",
        f"{ONE_ADDRESS} -k multi",
    ),
    Fault(
        "sharded: a list believes in an index before it has asked",
        "        if self._by_slot():\n            names",
        "        if self._server.clustered:\n            names",
        f"{ONE_ADDRESS} -k inspection",
    ),
    Fault(
        "sharded: a list looks at one shard",
        "self._server.clustered and not connections.routed(self._server.shared_pool()):",
        "False:",
        f"{ONE_ADDRESS} -k 'inspection and proxy'",
    ),
    Fault(
        "sharded: a shard that is silent is asked first again",
        "                        self._behind.add(together)\n",
        "                        pass\n",
        f"{ONE_ADDRESS} -k is_down",
    ),
    Fault(
        "sharded: a shard that answers errors costs the leases of others",
        "self.server.clustered and isinstance(error.__cause__, ResponseError)",
        "False",
        f"{ONE_ADDRESS} -k is_down",
    ),
    # The lease.
    Fault(
        "lease: a renewal counts from its answer",
        "times = {its_ttl: Times.since(sent, its_ttl)",
        "times = {its_ttl: Times.since(heard, its_ttl)",
        "tests/test_leases.py tests/test_model.py tests/test_renewal.py -k 'not planted'",
    ),
    Fault(
        "lease: no margin for the server's clock",
        "return sent + ttl - (ttl * DRIFT + 0.002)",
        "return sent + ttl + 0.1",
        "tests/test_leases.py tests/test_renewal.py tests/test_model.py -k 'not planted'",
    ),
    Fault(
        "lease: renewal goes on after max_hold",
        "return min(ttl or self.claim.ttl, max(self.hold_until - time, 0.001))",
        "return ttl or self.claim.ttl",
        f"{CONTRACT} -k max_hold",
    ),
    Fault(
        "lease: check() accepts a released lease",
        'raise LeaseLost(self.name, "it was released, or given to another process")',
        "return",
        "tests/test_leases.py tests/test_fencing.py tests/test_exceptions.py",
    ),
    Fault(
        "watchdog: it renews after the lease has ended",
        "return cls(deadline(sent, ttl), sent + ttl / 3, ttl)",
        "return cls(deadline(sent, ttl), sent + ttl * 1.5, ttl)",
        "tests/test_renewal.py tests/contract/test_migration.py -k 'renew'",
    ),
    Fault(
        "watchdog: a cohort is kept twice when one of it is looked at",
        "            if times.at != NEVER:",
        "            if times.at == min(times.due, its[0].write_at):",
        "tests/test_renewal.py -k Cohorts",
    ),
    Fault(
        "watchdog: all locks are followed, however many and however short",
        "room = MOST_TRACKED - sum(",
        "new, room = leases, 10**9 - sum(",
        "tests/faults/test_told_at_once.py -k 'short_leases or too_many'",
    ),
    Fault(
        "watchdog: a dropped lease is renewed for as long as the process lives",
        "self.lease = weakref.ref(lease)",
        "self.lease = lambda: lease",
        "tests/test_renewal.py tests/test_leases.py",
    ),
    Fault(
        "lease: a renewal without an answer is a loss",
        "            lease.unknown()\n        raise",
        "            lease.lose(LeaseLost(lease.claim.keys.name, 'no answer'))\n        raise",
        "tests/faults/test_lost_renewal.py -k one_lost",
    ),
    Fault(
        "watchdog: whoever is told of a change does nothing",
        "            if lease.tracked and lease.renew:\n                # The holder may",
        "            if False:\n                # The holder may",
        "tests/faults/test_told_at_once.py"
        " -k 'cleared or lock_that_is_gone or several_names or connection_is_lost'",
    ),
    Fault(
        "queue: a script looks at as many waiters as there are",
        "local budget = MOST",
        "local budget = 1000000000",
        "tests/test_bounds.py",
    ),
    Fault(
        "queued: the first error ends a wait",
        "if not error.passing or (self.over and not once_more):",
        "if not once_more:",
        "tests/faults/test_restart.py -k test_an_outage",
    ),
    Fault(
        "inbox: the thread that looks after it takes a waiter's place, again and again",
        "idle[-1].put(None)",
        "self._idle.popitem()[1].put(None)",
        "tests/faults/test_idle_inbox.py -k one_waits",
    ),
    Fault(
        "waiters: only those that listen stand in line",
        "            await self.sleep(seconds)\n            await self._take_turn(until)\n",
        "            await self.sleep(seconds)\n",
        "tests/faults/test_line.py -k who_comes",
    ),
    Fault(
        "waiters: all of a process ask while Redis is away",
        "attempts.left, away=True)",
        "attempts.left)",
        "tests/faults/test_line.py -k one_asks_for_all",
    ),
    Fault(
        "waiters: woken in the line, one asks twice",
        "        self._news.woken = False\n\n\nclass AsyncPort",
        "\n\nclass AsyncPort",
        "tests/faults/test_line.py -k in_the_line",
    ),
    Fault(
        "waiters: after a release without an answer all ask at once",
        "            self.wake(token, notified=False)\n\n    def read(",
        "            self.wake(token, notified=True)\n\n    def read(",
        "tests/faults/test_line.py -k without_an_answer",
    ),
    Fault(
        "tasks: one that begins before it is confirmed keeps its claim",
        "waiting and (waiting == perhaps or string.sub(waiting, 1, 1) == TICKET)",
        "waiting and string.sub(waiting, 1, 1) == TICKET",
        f"{TASKS} -k promoted_one_begins",
    ),
    Fault(
        "run: the program goes on without its lock",
        "elif self._lease._lifetime.lost is not None:",
        "elif False:",
        "tests/test_run.py -k ends_the_program",
    ),
    Fault(
        "lease: it lasts until somebody says that it is lost",
        "if self.error is None and not over and now() >= self.deadline:",
        "if False:",
        "tests/faults/test_lost_renewal.py tests/faults/test_pauses.py"
        " -k 'all_lost or silence or test_the_holder'",
    ),
    Fault(
        "watchdog: nobody is told at the deadline",
        "                        lease.expire()\n                    except",
        "                        pass\n                    except",
        "tests/faults/test_on_lost.py -k at_the_deadline",
    ),
    Fault(
        "waiting: a waiter sleeps until it is woken",
        "    return no_longer(seconds, remaining, after, left)\n",
        "    return left\n",
        "tests/faults/test_kills.py tests/faults/test_lost_wakeup.py"
        " -k 'test_the_holder or messages_lost'",
    ),
    Fault(
        "background: no lock without a thread",
        "    except (RuntimeError, MemoryError) as error:\n        if by_a_handler(error):",
        "    except MemoryError as error:\n        if by_a_handler(error):",
        "tests/faults/test_no_threads.py",
    ),
    Fault(
        "replicas: nobody waits for them",
        "if isinstance(answer, list) and answer[:1] == [1]:",
        "if False:",
        "tests/faults/test_failover.py -k 'confirmed_lease or no_replica_confirms'",
    ),
    Fault(
        "lock order: a contradiction is passed over",
        "        if back is None:\n            return\n        before =",
        "        return\n        before =",
        "tests/test_lock_order.py -k 'two_orders or longer_cycle'",
    ),
    Fault(
        "signals: a receiver that raises breaks the lock",
        "signal.send_robust(sender=type(event), event=event)\n"
        "    except (Exception, asyncio.CancelledError) as error:",
        "signal.send(sender=type(event), event=event)\n"
        "    except asyncio.CancelledError as error:",
        "tests/test_signals.py -k one_that_raises",
    ),
    Fault(
        "views: a streaming response is sent without the lock",
        "            hold_until_sent(lease, response)\n        return response",
        "            pass\n        return response",
        "tests/views/test_release.py -k 'until_it_is_closed or dropped'",
    ),
    # The transport.
    Fault(
        "transport: any answer is believed",
        "return isinstance(answer, list) and answer[:1] == [first]",
        "return isinstance(answer, list)",
        "tests/test_shapes.py tests/test_unread.py tests/test_lines.py",
    ),
    Fault(
        "transport: any answer at once is believed",
        'return answer.startswith(first) and answer[len(first) : len(first) + 1] in (b"", b"|")',
        "return True",
        "tests/test_shapes.py tests/test_unread.py tests/test_lines.py",
    ),
    Fault(
        "transport: a forked child goes on as its parent",
        "    if os.getpid() != pid:\n        with _forgetting:",
        "    if False:\n        with _forgetting:",
        "tests/faults/test_fork.py tests/servers/test_process_models.py",
    ),
    # Above the lease.
    Fault(
        "redlock: one server is enough",
        "if len(granting) >= self.servers.quorum and in_time:",
        "if granting and in_time:",
        "tests/faults/test_redlock.py",
    ),
    Fault(
        "redlock: a lease that is over when it is granted",
        "in_time = port.now() < deadline(attempts.sent, claim.ttl)",
        "in_time = True",
        "tests/faults/test_redlock.py",
    ),
    Fault(
        "settings: the settings beat the arguments",
        "    return found._replace(**explicit)",
        "    return found._replace(**{**explicit, **now.locks.find(name)})",
        "tests/test_conf.py",
    ),
    Fault(
        "transactions: the lock is released before the commit",
        "    connection.on_commit(end)\n",
        "    end()\n",
        "tests/test_transactions.py",
    ),
    Fault(
        "fencing: a late writer is let in",
        'willing = rows.filter(**{f"{FIELD}__lte": self.token})',
        "willing = rows",
        "tests/test_fencing.py",
    ),
    Fault(
        "fencing: save() writes the old token back",
        "return super().pre_save(model_instance, add) if add else models.F(self.attname)",
        "return super().pre_save(model_instance, add)",
        "tests/test_fencing.py",
    ),
    Fault(
        "once: the work is recorded before it is done",
        "yield True\n            run(completion.complete(SyncPort(lease._server), DONE))",
        "run(completion.complete(SyncPort(lease._server), DONE))\n            yield True",
        "tests/contract/test_once.py",
    ),
    Fault(
        "single_flight: a caller gets a result that is older than its call",
        "self._since = 0 if found is None else found.fencing_token + 1",
        "self._since = 0",
        "tests/contract/test_single_flight.py tests/test_flights.py",
    ),
    Fault(
        "single_flight: a call waits for itself",
        "if other.by is self._own.by or self._left() == 0:",
        "if other is self._own:",
        "tests/contract/test_single_flight.py tests/test_flights.py",
    ),
    Fault(
        "single_flight: the renewal of an old result that failed replaces it",
        "if result.failed:\n            self.result = None",
        "if False:\n            self.result = None",
        "tests/contract/test_single_flight.py",
    ),
    Fault(
        "single_flight: an old result is renewed that is new by now",
        "self._since = old.fencing_token + 1",
        "pass",
        "tests/test_flights.py",
    ),
    Fault(
        "single_flight: all callers renew an old result, although one does",
        " and redis.call('EXISTS', KEYS[1]) == 0 then\n    return {3, record, 1}",
        " then\n    return {3, record, 1}",
        "tests/contract/test_single_flight.py",
    ),
    Fault(
        "single_flight: an old result is never renewed",
        "self._due = done.due",
        "self._due = False",
        "tests/contract/test_single_flight.py",
    ),
    Fault(
        "leader: it leads after its own deadline",
        "self._rests or lease is None) and lease.remaining() > 0",
        "self._rests or lease is None)",
        "tests/faults/test_leader.py -k stopped",
    ),
    Fault(
        "leader: the child of one that leads believes that it leads",
        "            leader._part = None\n            _asked.discard(leader)",
        "            pass",
        "tests/faults/test_leader.py -k fork",
    ),
    Fault(
        "leader: the worker of a master that loads the application never leads",
        "os.register_at_fork(after_in_child=lambda: _each(Leader.start))",
        "pass",
        "tests/faults/test_leader.py -k fork",
    ),
    Fault(
        "leader: it ends its work after the lock was released",
        "                if gained:\n                    await",
        "                lease.release()\n                if gained:\n                    await",
        "tests/test_leader.py",
    ),
    Fault(
        "leader: one whose on_gain has failed leads",
        "self._rests |= not gained",
        "pass",
        "tests/test_leader.py",
    ),
    Fault(
        "leader: it keeps its lock at the end of the interpreter",
        "atexit.register(_each, Leader.stop)",
        "",
        "tests/faults/test_leader.py -k interpreter",
    ),
    Fault(
        "record: one that comes late is written again",
        "not value and not redis.call('GET', gone)) then",
        "not value) then",
        "tests/test_newcomer.py",
    ),
    Fault(
        "record: it is forgotten when the lease ends before Redis answers",
        "            held = not claim.owed\n",
        "            pass\n",
        "tests/faults/test_once.py -k after_the_lease",
    ),
    Fault(
        "record: a waiter that a record answers keeps its place",
        "  release_names(false)\n  if stale",
        "  if stale",
        "tests/faults/test_once.py -k while_it_waits",
    ),
    Fault(
        "scripts: the parts of the time are texts everywhere",
        "local micros = time[2] .. ''",
        "local micros = time[2]",
        "tests/testing_kit/test_contract.py -k dragonfly",
    ),
    Fault(
        "scripts: a list on Dragonfly may not look at the keys that it finds",
        "if name in _FINDS_KEYS:",
        "if not name:",
        "tests/testing_kit/test_contract.py -k dragonfly",
    ),
    Fault(
        "cluster: nodes with several databases are not refused",
        "if len(databases := sorted({database_of(url) for url in urls})) > 1:",
        "if len(databases := sorted({database_of(url) for url in urls})) > 9:",
        "tests/test_location.py -k cluster",
    ),
    Fault(
        "connections: a client that fails over to another database is not refused",
        'if any(".multidb." in base.__module__ for base in type(client).__mro__):',
        "if False:",
        "tests/test_client.py -k several_databases",
    ),
    Fault(
        "connections: sentinels are asked for a cache that does not ask them",
        "if not kind[1]:",
        "if False:",
        "tests/test_entries.py -k excludes",
    ),
    Fault(
        "connections: TLS is that of a server of the primary's name",
        'if address.scheme == "rediss":  # else the pool would take its class from the URL',
        "if False:",
        "tests/test_entries.py -k sentinels",
    ),
    Fault(
        "command: where no Lua runs, requests are withdrawn, and no error says it",
        "off = isinstance(error, ResponseError) and scripts.switched_off(text)",
        "off = None",
        "tests/faults/test_offerings.py -k no_scripts",
    ),
    Fault(
        "connections: no hint if a server has no such database",
        "if refused and any(said in text for said in _NO_DATABASE):",
        "if False:",
        "tests/faults/test_offerings.py tests/cluster/test_databases.py",
    ),
    Fault(
        "views: a key is answered whatever the request was",
        "if known.fingerprint != self._fingerprint:",
        "if False:",
        "tests/views/test_idempotent_view.py",
    ),
    Fault(
        "views: refusals are kept and answered again",
        "_REFUSALS = frozenset((401, 403, 407, 408, 425, 429))",
        "_REFUSALS = frozenset((0,))",
        "tests/views/test_idempotent_view.py",
    ),
    Fault(
        "admin: a lock that changed hands since it was shown is cleared",
        "    return _digest(one) in known and (",
        "    return (",
        "tests/admin/test_clear.py",
    ),
    Fault(
        "periodic: a tick runs before it is due",
        "        return self._due_at <= now\n",
        "        return True\n",
        "tests/periodic/test_runner.py tests/periodic/test_schedule.py",
    ),
    Fault(
        "ledger: a lock that was stolen in vain is kept",
        'if stolen and answer.what != "run":',
        "if False:",
        "tests/periodic/test_ledger.py -k Replacing",
    ),
    Fault(
        "ledger: a run replaces whoever holds the lock",
        "overlap == 'replace' and run and not orphan then",
        "overlap == 'replace' then",
        "tests/periodic/test_ledger.py -k Replacing",
    ),
    Fault(
        "steal: the next waiter has the lock",
        "if ARGV[5] then\n",
        "if false then\n",
        "tests/test_steal.py",
    ),
    Fault(
        "steal: the holder is not told why",
        "  redis.call('SET', gone, 'cleared|' .. why, 'PX', outlives(ttl or 0))\n  write_end",
        "  write_end",
        "tests/test_steal.py",
    ),
    Fault(
        "notes: a message hands over a lock that has one",
        "fits or redis.call('EXISTS', noted) == 0",
        "true",
        NOTES,
    ),
    Fault(
        "notes: a free lock does not look for one",
        'keys += f"{first.beside or first.lock}:note", first.index.clock',
        "keys.append(first.index.clock)",
        NOTES,
    ),
    Fault(
        "notes: a late write overwrites a later one",
        "tonumber(before) < tonumber(turn) then",
        "true then",
        NOTES,
    ),
    Fault(
        "notes: whoever lost the lock writes one",
        "return {0, value, redis.call('GET', gone)} end\nlocal by",
        "end\nlocal by",
        NOTES,
    ),
    Fault(
        "notes: an ordinary end leaves it",
        "if ARGV[4] == '1' and token_of(look(lock)) == token then redis.call('DEL', noted) end",
        "",
        NOTES,
    ),
    Fault(
        "notes: whoever is told of a loss removes its note",
        "is not None and (lost is None or in_background):",
        "is not None:",
        f"{NOTES} -k told_of_its_loss",
    ),
    Fault(
        "notes: an heir is counted with each request",
        "  if not by or by == token then return by and text end\n",
        "  if not by then return end\n",
        NOTES,
    ),
    Fault(
        "notes: one is written before the commit",
        "        if blocks_of_the_project(connection):\n            connection.on_commit(",
        "        if False:\n            connection.on_commit(",
        NOTES,
    ),
    Fault(
        "notes: whoever lost the permit of a task writes one",
        "held, value = type(ends) == 'string' and tonumber(ends) > now / 1000, false",
        "held, value = type(ends) == 'string', false",
        "tests/tasks/test_rules.py -k lost_its_permit",
    ),
    Fault(
        "notes: the end of a task leaves it",
        "if ARGV[5] == '1' then redis.call('DEL', noted) end",
        "if ARGV[5] == '2' then redis.call('DEL', noted) end",
        "tests/tasks/test_rules.py -k TestNotes",
    ),
    Fault(
        "notes: a job that fails ends its work",
        "            lease._lifetime.notes.failed = True\n",
        "            pass\n",
        "tests/periodic/test_ledger.py -k note",
    ),
    Fault(
        "queue: a killed waiter is taken for one that lives",
        "  return not answer.err and answer[2] or nil",
        "  return nil",
        "tests/faults/test_kills.py -k 'first_waiter or before_it_confirms'",
    ),
    Fault(
        "queue: a message does not say for how long the lock is handed over",
        "elseif knows and there and string.find(inbox, 'm%x+$')",
        "elseif false",
        "tests/faults/test_handed_over.py -k no_request",
    ),
    Fault(
        "mutex: a release that was packed before a doubt leaves no tombstone",
        "its is None or withdraw or",
        "its is None or",
        "tests/faults/test_handed_over.py -k doubt_after",
    ),
    Fault(
        "mutex: a deaf waiter packs a release that takes all deaf waiters for its own",
        'inbox not in ("", DEAF)',
        "bool(inbox)",
        "tests/faults/test_handed_over.py -k packs_no_release",
    ),
    Fault(
        "multi: a waiter takes the names that are free",
        "    if token_of(values[i]) == token then\n      redis.call('DEL', lock)\n"
        "      if hand_over(grant) then busy[lock] = i else unlist() end\n",
        "    if not values[i] then\n      grant(token, ttl, ttl, says, '|')\n"
        "    elseif token_of(values[i]) == token then\n",
        "tests/contract/test_multi.py -k 'no_name or always_wait or overlapping'",
    ),
    Fault(
        "multi: a name that was lost is no loss",
        "  return not held and {0, value, why, i}",
        "  return nil",
        "tests/contract/test_multi.py -k lost_name",
    ),
    Fault(
        "inbox: nobody notices that its connection is lost",
        "self._caretaker.wait(seconds, self._socket, LOST)",
        "self._caretaker.wait(seconds, None, LOST)",
        "tests/faults/test_idle_inbox.py -k lost",
    ),
    Fault(
        "block: the garbage collector sends a release",
        "isinstance(error, GeneratorExit) and collecting()",
        "False",
        "tests/faults/test_collector.py",
    ),
    Fault(
        "once: what is done and not recorded yet is forgotten",
        "        self.lease._claim.owed = True\n",
        "        pass\n",
        "tests/faults/test_once.py -k 'the_record or at_the_end'",
    ),
    Fault(
        "tasks: a start leaves the claim",
        "    redis.call('DEL', claim)\n  end\n  redis.call('HSET', runs",
        "  end\n  redis.call('HSET', runs",
        TASKS,
    ),
    Fault(
        "tasks: the retry of a start that failed leaves the claim",
        "waiting and string.match(waiting, '^[^:]*') == string.match(id, '^[^:]*')",
        "waiting == id",
        TASKS,
    ),
    Fault(
        "tasks: a start counts although its answer took too long",
        "            except LeaseLost:\n                raise too_late(claim) from None\n",
        "            finally:\n                pass\n",
        f"{TASKS} -k takes_too_long",
    ),
    Fault(
        "tasks: a start that is asked for again ends before its holder knows",
        "  redis.call('ZADD', lock, 'GT', integer(millis + ttl), token)\n",
        "",
        f"{TASKS} -k asked_for_again",
    ),
    Fault(
        "tasks: a confirmation does not compare",
        "local claimed = redis.call('HGET', claim, 'id') == id and 1 or 0",
        "local claimed = 1",
        TASKS,
    ),
    Fault(
        "tasks: a call that could not be queued keeps its claim",
        "            with suppress(LockUnavailable):  # then it ends by itself\n"
        '                self.named.confirm(claimed, "", SHORT)\n'
        "            raise",
        "            raise",
        TASKS,
    ),
    Fault(
        "tasks: a call counts on a message that was never sent",
        "while conflict is not None and not (conflict.sent or retry):",
        "while False:",
        f"{TASKS} -k 'waits_for_that or killed'",
    ),
    Fault(
        "tasks: a call replaces one that is being queued",
        "math.abs(now - at) >= ARGV[12] * 1000 then",
        "true then",
        f"{TASKS} -k 'waits_for_that or two_calls'",
    ),
    Fault(
        "tasks: a call in a transaction counts on a task that begins before the commit",
        "            handle = self._instead(conflict)\n",
        "            return self._instead(conflict)\n",
        TASKS,
    ),
    Fault(
        "tasks: a call counts on a transaction that may be rolled back",
        'conflict = self._ask("", 0.0)',
        "conflict = self._ask(ticket, SHORT)",
        TASKS,
    ),
    Fault(
        "tasks: Redis is away at a commit, and the task is lost",
        "            with suppress(LockUnavailable):  # it is too late for that\n    "
        "            conflict = self.claim(ticket, SHORT, text)",
        "            conflict = self.claim(ticket, SHORT, text)",
        TASKS,
    ),
    Fault(
        "tasks: a newcomer passes those that are parked",
        "local first = own or perhaps or redis.call('LLEN', parked) == 0",
        "local first = true",
        TASKS,
    ),
    Fault(
        "tasks: promoted messages take no permit",
        "do number = number + weight_of(id) end\n",
        "do end\n",
        TASKS,
    ),
    Fault(
        "tasks: a promoted message that was not sent is lost",
        "    redis.call('ZREM', sent, id)\n    again(id)\n",
        "    redis.call('ZREM', sent, id)\n",
        TASKS,
    ),
    Fault(
        "tasks: a promotion is not confirmed",
        "            named.confirm(id, new_id, self.queued_for)\n",
        "            pass\n",
        TASKS,
    ),
    Fault(
        "tasks: a duplicate runs",
        "if select(3, all_runs())[id] then\n",
        "if false then\n",
        TASKS,
    ),
    Fault(
        "tasks: a message that comes again just after a kill is dropped",
        "  if message ~= '' then keep() end\n  return answer(limit, {3, 0})\n",
        "  return answer(limit, {3, 0})\n",
        f"{TASKS} -k duplicate",
    ),
    Fault(
        "tasks: what was replaced runs",
        "if redis.call('DEL', withdrawn) == 1 then",
        "if false then",
        TASKS,
    ),
    Fault(
        "tasks: what is sent again has no text",
        "if not redis.call('ZSCORE', sent, id) then redis.call('HDEL'",
        "if true then redis.call('HDEL'",
        f"{TASKS} -k sent_again",
    ),
    Fault(
        "tasks: what has ended is recovered",
        "if not redis.call('ZSCORE', sent, id) then redis.call('HDEL'",
        "if false then redis.call('HDEL'",
        TASKS,
    ),
    Fault(
        "tasks: the first call's arguments run",
        "                        args, kwargs = self.queue.load(self.task, its.latest)\n",
        "                        self.queue.load(self.task, its.latest)\n",
        TASKS,
    ),
    Fault(
        "tasks: it settles at once",
        "if own_claim and due and tonumber(due) > now then",
        "if false then",
        TASKS,
    ),
    Fault(
        "tasks: it settles without end",
        "  if at_most ~= '0' then time",
        "  if false then time",
        TASKS,
    ),
    Fault(
        "tasks: weights count as one",
        "    local weight, _, message = kept(id)",
        "    local weight, message = 1, select(3, kept(id))",
        TASKS,
    ),
    Fault(
        "tasks: what is promoted weighs one",
        "  return tonumber((kept(id))) or 1",
        "  return 1",
        TASKS,
    ),
    Fault(
        "tasks: a retry has the name of its worker",
        "            names = names or self._names(its, args, kwargs)\n",
        "            names = self._named(args, kwargs)\n",
        TASKS,
    ),
    Fault(
        "tasks: a retry of Dramatiq leaves its name",
        'if gate is not None and delay is not None and message.options.get("retries"):',
        "if False:",
        "tests/tasks/test_unique.py -k retry_of_dramatiq",
    ),
    Fault(
        "tasks: a message of an older process can't be seen",
        "at or own and queued or ''",
        "at or own and queued",
        "tests/tasks/test_operators.py -k without_a_time",
    ),
    Fault(
        "tasks: what is promoted is kept for good",
        "if not redis.call('ZSCORE', sent, id) then return claimed end",
        "if redis.call('ZREM', sent, id) == 0 then return claimed end",
        TASKS,
    ),
    Fault(
        "tasks: a damaged name hides all others",
        "  if readable then found[#found + 1] = its end",
        "  found[#found + 1] = its",
        "tests/admin/test_tasks.py",
    ),
    Fault(
        "tasks: killed tasks that are sent again are not seen",
        "again = again - 1 + redis.call('HEXISTS', messages, its[2])",
        "again = again - 1",
        "tests/test_doctor.py -k 'W114'",
    ),
    Fault(
        "tasks: what is parked behind others counts as stuck",
        "bool(self.waits) and not self.counts[Stage.RUNNING] + self.counts[Stage.PROMOTED]",
        "bool(self.waits)",
        "tests/test_doctor.py -k 'W114'",
    ),
    Fault(
        "testing: any call counts as coalesced",
        'if event.what == "coalesced"]',
        "if event.what]",
        "tests/testing_kit/test_tasks.py",
    ),
    Fault(
        "tasks: the worker's own name counts",
        "        return self.of(noted) or self._named(args, kwargs)\n",
        "        return self._named(args, kwargs)\n",
        TASKS,
    ),
    Fault(
        "tasks: a promoted message keeps its old id at its other name",
        "        for named in names:\n            named.confirm(id",
        "        for named in names[:1]:\n            named.confirm(id",
        TASKS,
    ),
    Fault(
        "tasks: a retry of RQ leaves its name",
        "if job.retries_left and",
        "if False and",
        "tests/tasks/test_unique.py -k retry_of_rq",
    ),
    Fault(
        "tasks: RQ without a worker keeps a name for no retry",
        ' and job.worker_name != "sync"',
        "",
        "tests/tasks/test_unique.py -k retry_of_rq",
    ),
    # Redis is away.
    Fault(
        "unavailable: run runs although the password is wrong",
        "its.away = its.passing and _is_away(error, handled)",
        "its.away = True",
        "tests/faults/test_refusals.py -k 'refusal and (WRONGPASS or NOPERM)'",
    ),
    Fault(
        "unavailable: run runs although Redis says no for now",
        "return no and not any(",
        "return True or not any(",
        "tests/faults/test_refusals.py -k 'refusal and (NOREPLICAS or LOADING)'",
    ),
    Fault(
        "unavailable: run runs in the pause after lost data",
        "or not error.away or reason:",
        "or reason:",
        f"{AFTER_LOSS} -k over_first",
    ),
    Fault(
        "unavailable: run runs although another one was seen to hold the lock",
        "error.away &= not self._claim.heard",
        "pass",
        f"{UNLOCKED} -k seen_busy",
    ),
    Fault(
        "unavailable: run runs although the pool is full",
        "redis.TimeoutError(FULL if empty() else LATE)",
        "redis.TimeoutError(LATE)",
        f"{UNLOCKED} -k lets_callers_wait",
    ),
    Fault(
        "unavailable: run runs although this host has no more files",
        ' or getattr(one, "errno", 0) in _OF_OURS',
        "",
        "tests/faults/test_connection_options.py -k may_pass",
    ),
    Fault(
        "unavailable: once runs without Redis",
        'self._of_kind("mutex", unavailable="raise")',
        'self._of_kind("mutex")',
        f"{UNLOCKED} -k recorded",
    ),
    Fault(
        "unlocked: its lease gives a fencing token",
        'self._refuse("has no fencing token")',
        "return self._grant.acquired_us",
        f"{UNLOCKED} -k 'fenced_write or good_for'",
    ),
    Fault(
        "unlocked: its lease counts as held",
        "self._ended = RELEASED\n        self._complete()",
        "self._complete()",
        f"{UNLOCKED} -k 'good_for or comes_back'",
    ),
    # Once in the transaction of the work.
    Fault(
        "in transaction: the record is completed after the COMMIT",
        "            self._write(done=True, value=value)\n",
        "            transaction.on_commit(\n"
        "                lambda: self._write(done=True, value=value), using=self.using\n"
        "            )\n",
        "tests/faults/test_commit.py -k 'after_the_commit and sqlite'",
    ),
    Fault(
        "in transaction: each attempt is the first",
        "if found.token == self._token:",
        "if True:",
        IN_TRANSACTION,
    ),
    Fault(
        "in transaction: names are compared as by a collation",
        "hashlib.sha256(self._name.encode())",
        "hashlib.sha256(self._name.strip().lower().encode())",
        IN_TRANSACTION,
    ),
    Fault(
        "in transaction: a refused INSERT is not repeated",
        "TRIES = 3",
        "TRIES = 1",
        IN_TRANSACTION_VIEWS,
    ),
    Fault(
        "in transaction: that of somebody else is taken",
        'if len(blocks) == 1 and connection.settings_dict["ATOMIC_REQUESTS"]:',
        "if blocks:",
        IN_TRANSACTION,
    ),
    Fault(
        "in transaction: one that is not seen yet is not rolled back",
        "                if isinstance(error, RecordBusy) and self._surrounded:\n",
        "                if False:\n",
        IN_TRANSACTION,
    ),
    Fault(
        "in transaction: nothing is done without Redis",
        "    held: AbstractContextManager[Any] = nullcontext()\n    try:\n",
        "    held: AbstractContextManager[Any] = nullcontext()\n    acquire(lock).release()\n"
        "    try:\n",
        IN_TRANSACTION,
    ),
    Fault(
        "in transaction: a lost lease is an error",
        "        if not ended:\n            raise\n",
        "        raise\n",
        IN_TRANSACTION,
    ),
    Fault(
        "in transaction: an attempt is taken over at once",
        "abandoned = not found.token or",
        "abandoned = True or",
        IN_TRANSACTION,
    ),
    Fault(
        "in transaction: an attempt that has come to its end is taken over",
        "its = self._rows.filter(token=found.token, done=False)",
        "its = self._rows.filter(token=found.token)",
        IN_TRANSACTION,
    ),
    Fault(
        "in transaction: the end of a step is not committed",
        "        self._note(name, [point.result])\n        self._leave()\n        self._enter()\n",
        "        self._note(name, [point.result])\n",
        IN_TRANSACTION,
    ),
    Fault(
        "in transaction: what a view has written stays without its response",
        "attempt.record(self._packed(response) if kept else None)",
        "attempt.record(self._packed(response))",
        IN_TRANSACTION_VIEWS,
    ),
    Fault(
        "idempotent views: excluded fields are kept",
        "for key, its in value.items() if key not in fields}",
        "for key, its in value.items()}",
        IN_TRANSACTION_VIEWS,
    ),
    Fault(
        "records: all rows are deleted by one statement",
        "rows.filter(pk__in=pks).delete()",
        "rows.all().delete()",
        "tests/operations/test_records.py",
    ),
]


def sources(tree: Path) -> dict[Path, str]:
    """Return the files of the package in a tree, and their texts."""
    return {
        path: path.read_text(encoding="utf-8")
        for path in sorted((tree / PACKAGE).rglob("*"))
        if path.suffix in (".py", ".lua")
    }


def find(fault: Fault, texts: dict[Path, str]) -> Path:
    """Find the file with the text that the fault replaces. Raises `NotPlanted`."""
    found = [path for path, text in texts.items() for _ in range(text.count(fault.old))]
    if len(found) != 1:
        where = ", ".join(map(str, found)) or "nowhere"
        raise NotPlanted(f"{fault.name}: its text must occur once, and occurs {where}")
    return found[0]


def plant(fault: Fault, tree: Path) -> None:
    """Replace the text in a copy of the project. Raises `NotPlanted`."""
    texts = sources(tree)
    path = find(fault, texts)
    path.write_text(texts[path].replace(fault.old, fault.new), encoding="utf-8")


@contextmanager
def copy() -> Iterator[Path]:
    """Make a copy of the project, without generated files."""
    made = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "_build", "dist")
    with tempfile.TemporaryDirectory(prefix="redislock-planted-") as directory:
        tree = Path(directory) / "tree"
        shutil.copytree(ROOT, tree, ignore=made)
        yield tree


def failure(fault: Fault, tree: Path, *arguments: str) -> tuple[str, str]:
    """Run the tests of the fault, or those of `arguments`. Return the first one that failed, and
    how; both are empty if none did."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["--tb=short", "--show-capture=no"]
    quoted = re.findall(r"'([^']*)'|(\S+)", fault.tests)
    command += arguments or [words or word for words, word in quoted]
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=env,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "the tests hang", f"They did not end within {SECONDS:.0f} s."
    if done.returncode not in (0, 1):
        raise NotPlanted(f"{fault.name}: pytest could not run:\n{done.stdout[-2000:]}")
    names = re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    said = re.search(r"^=+ (?:FAILURES|ERRORS) =+\n(.*?)^=", done.stdout, re.MULTILINE | re.DOTALL)
    return next(iter(names), ""), said[1] if said else ""


def found_by(fault: Fault) -> str:
    """Plant a fault, and return the test that found it; empty if there is none."""
    with copy() as tree:
        plant(fault, tree)
        return failure(fault, tree)[0]


def table() -> str:
    """Return all faults as a table in Markdown."""
    rows = [["N", "what goes wrong", "the tests that show it"]]
    rows += [[str(n), fault.name, f"`{fault.tests}`"] for n, fault in enumerate(FAULTS, 1)]
    return pages.table(rows)


def show(fault: Fault) -> bool:
    """Plant a fault, print the run that goes wrong, and return whether one did."""
    out = sys.stdout
    with copy() as tree:
        texts = sources(tree)
        path = find(fault, texts)
        before = texts[path]
        plant(fault, tree)
        name = str(path.relative_to(tree))
        after = path.read_text(encoding="utf-8")
        both = before.splitlines(), after.splitlines()
        diff = "\n".join(difflib.unified_diff(*both, name, name, lineterm=""))
        out.write(f"{fault.name}\n\nTaken out, in a copy of the project:\n\n{diff}\n\n")
        out.flush()
        test, said = failure(fault, tree)
        if not test:
            out.write(f"Nothing went wrong: pytest {fault.tests}\n")
            return False
        lines = said.splitlines()
        if len(lines) > LINES:
            lines[LINES // 2 : -LINES // 2] = [f"[{len(lines) - LINES} lines]"]
        out.write("\n".join([f"What went wrong: {test}", _behaviour(test, tree), "", *lines, ""]))
        path.write_text(before, encoding="utf-8")
        if said and failure(fault, tree, test)[0]:
            out.write("The same test fails with nothing taken out, so this shows nothing.\n")
            return False
        out.write("It went wrong as expected. With nothing taken out, the same test passes.\n")
        return True


def _behaviour(test: str, tree: Path) -> str:
    """Return the docstring of a test: what it is about."""
    file, *names = test.partition("[")[0].split("::")
    for node in ast.walk(ast.parse((tree / file).read_text(encoding="utf-8"))) if names else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == names[-1]:
            return ast.get_docstring(node) or ""
    return ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m devtools.plant")
    parser.add_argument("words", nargs="*", help="plant faults whose names contain one of these")
    parser.add_argument("--list", action="store_true", help="print the table only")
    parser.add_argument("--write", action="store_true", help="put the table into docs/proof.md")
    parser.add_argument("--show", type=int, metavar="N", help="plant one, and show its run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    out = sys.stdout
    if options.show is not None:
        if not 1 <= options.show <= len(FAULTS):
            parser.error(f"--show {options.show}: the faults have the numbers 1 to {len(FAULTS)}")
        return int(not show(FAULTS[options.show - 1]))
    if options.list:
        out.write(f"{table()}\n")
        return 0
    if options.write:
        page = pages.replace(PAGE.read_text(encoding="utf-8"), "faults", table())
        PAGE.write_text(page, encoding="utf-8")
        return 0
    words = options.words or [""]
    chosen = [fault for fault in FAULTS if any(word in fault.name for word in words)]
    missed = 0
    out.write("| fault | found by |\n| --- | --- |\n")
    with ThreadPoolExecutor(options.jobs) as pool:
        for fault, test in zip(chosen, pool.map(found_by, chosen), strict=True):
            missed += not test
            out.write(f"| {fault.name} | {f'`{test}`' if test else '**nothing**'} |\n")
            out.flush()
    out.write(f"\n{len(chosen)} faults, {missed} not found\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
