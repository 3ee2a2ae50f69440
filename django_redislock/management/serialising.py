"""Locks and settings as JSON has them. docs/operations.md tells what each key means; a test
compares.

No token is among them: it would prove to hold the lock.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..inspection import HolderInfo, LockInfo, Past, PastHolder, WaiterInfo
from ..inspection.words import setting_value
from ..periodic.report import JobInfo
from ..primitives.ledger import RunInfo
from ..settings.conf import Setting

Json = dict[str, Any]


def lock(info: LockInfo) -> Json:
    return {
        "name": info.name,
        "using": info.using,
        "kind": str(info.kind),
        **lease(info),
        "holders": [lease(one) for one in info.holders],
        "holding": info.holding,
        "limit": info.limit,
        "waiters": info.waiters,
    }


def lease(info: LockInfo | HolderInfo) -> Json:
    """Of one holder; of a lock, that of the one who is told for all."""
    holder = info.holder
    return {
        "state": str(info.state),
        "why": info.why or None,
        "owner": holder.owner,
        "label": holder.label,
        "fencing_token": holder.fencing_token,
        "acquired_at": instant(holder.acquired_at),
        "held": holder.held,
        "remaining": holder.remaining,
        "ttl": info.ttl,
    }


def waiter(info: WaiterInfo) -> Json:
    return {
        "position": info.position,
        "kind": str(info.kind),
        "owner": info.owner,
        "label": info.label,
        "waited": info.waited,
        "silent": info.silent,
    }


def past(known: Past) -> Json:
    return {
        "fencing_token": known.fencing_token,
        "lasted": known.lasted,
        "holders": [past_holder(holder) for holder in known.holders],
        "unreadable": known.unreadable,
    }


def past_holder(info: PastHolder) -> Json:
    return {
        "owner": info.owner,
        "label": info.label,
        "fencing_token": info.fencing_token,
        "acquired_at": instant(info.acquired_at),
        "lasted": info.lasted,
        "ending": str(info.ending),
        "why": info.why or None,
    }


def job(info: JobInfo) -> Json:
    paused = info.paused
    return {
        "name": info.name,
        "using": info.using,
        "where": info.where,
        "plan": info.plan,
        "state": str(info.state),
        "next": instant(info.next),
        "done": instant(info.done),
        "paused": None
        if paused is None
        else {"at": instant(paused.at), "by": paused.by, "why": paused.why},
        "runs": [run(one) for one in info.runs],
    }


def run(info: RunInfo) -> Json:
    return {
        "id": info.id,
        "outcome": str(info.outcome),
        "planned": instant(info.planned),
        "started": instant(info.started),
        "ended": instant(info.ended),
        "duration": info.duration,
        "delay": info.delay,
        "attempt": info.attempt,
        "fencing_token": info.fencing_token,
        "owner": info.owner,
        "why": info.why or None,
    }


def settings(found: dict[str, Setting]) -> Json:
    return {
        term.upper(): {
            "value": setting_value(setting.value),
            "source": setting.source,
            "entry": setting.entry,
        }
        for term, setting in found.items()
    }


def instant(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
