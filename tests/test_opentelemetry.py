"""django_redislock.contrib.opentelemetry: a span per wait and per hold."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv.attributes import code_attributes, db_attributes, error_attributes
from opentelemetry.trace import SpanKind, StatusCode, Tracer
from redis import Redis

from django_redislock import Lease, LeaseLost, TimestampLock, redis_lock, signals
from django_redislock.contrib.opentelemetry import spans
from django_redislock.settings import naming
from django_redislock.signals import LockEvent
from django_redislock.testing import redis_unavailable
from tests.test_decorators import held_elsewhere
from tests.waiting import PATIENCE, eventually

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"


@pytest.fixture
def tracer() -> Tracer:
    """A tracer of the application, whose spans are not collected here."""
    return TracerProvider(shutdown_on_exit=False).get_tracer("the application")


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans of locks that have ended."""
    # Not the global provider, which can be set only once in a process.
    exporter = InMemorySpanExporter()
    processor = SimpleSpanProcessor(exporter)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    monkeypatch.setattr(spans, "_tracer", provider.get_tracer("django_redislock"))
    monkeypatch.setattr(naming, "patterns", ())
    signals.observe(spans.record)
    with override_settings(REDISLOCK={"LOCKS": {"job": {}, "job:*": {}}}):
        yield exporter
    signals.unobserve(spans.record)


def ended(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return list(exporter.get_finished_spans())


def names(exporter: InMemorySpanExporter) -> list[str]:
    return [span.name for span in ended(exporter)]


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


class TestSpans:
    def test_a_block(self, exported: InMemorySpanExporter, tracer: Tracer) -> None:
        """The wait and the hold are spans below the surrounding span."""
        with tracer.start_as_current_span("request") as request:
            with redis_lock("job"):
                assert names(exported) == ["redislock wait job"]
                threading.Event().wait(0.05)
        wait, hold = ended(exported)
        assert hold.name == "redislock hold job"
        assert {parent_of(span) for span in (wait, hold)} == {request.get_span_context().span_id}
        assert {span.context.trace_id for span in (wait, hold)} == {
            request.get_span_context().trace_id
        }
        assert 0 <= seconds(wait) < PATIENCE
        assert 0.05 <= seconds(hold) < PATIENCE
        assert {span.kind for span in (wait, hold)} == {SpanKind.INTERNAL}
        assert {span.status.status_code for span in (wait, hold)} == {StatusCode.UNSET}

    def test_times(self, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
        """A span ends with its event, and lasts as long as the event says."""
        monkeypatch.setattr("time.time_ns", lambda: 60_000_000_000)
        event = LockEvent(outcome="acquired", name="job", using="default", owner=None, label="")
        spans.record(replace(event, waited=2.5))
        spans.record(replace(event, outcome="released", held=10.0))
        wait, hold = ended(exported)
        assert (wait.start_time, wait.end_time) == (57_500_000_000, 60_000_000_000)
        assert (hold.start_time, hold.end_time) == (50_000_000_000, 60_000_000_000)

    async def test_an_async_block(self, exported: InMemorySpanExporter, tracer: Tracer) -> None:
        """Each task has its own parent."""

        async def task(number: int) -> int:
            with tracer.start_as_current_span("task") as span:
                async with redis_lock(f"job:{number}"):
                    await asyncio.sleep(0)
            return span.get_span_context().span_id

        parents = await asyncio.gather(*map(task, range(5)))
        assert (
            sorted(names(exported)) == ["redislock hold job:*"] * 5 + ["redislock wait job:*"] * 5
        )
        for span in ended(exported):
            number = int(str(span.attributes["redislock.name"]).removeprefix("job:"))
            assert parent_of(span) == parents[number]

    def test_a_conflict(self, exported: InMemorySpanExporter) -> None:
        """A wait in vain names the holder, and is no error."""
        with held_elsewhere() as lease:
            exported.clear()
            redis_lock("job").acquire(wait=0.05)
            (wait,) = ended(exported)
        assert wait.name == "redislock wait job"
        assert wait.attributes["redislock.outcome"] == "not acquired"
        assert wait.attributes["redislock.holder.owner"] == lease.owner
        assert wait.attributes["redislock.holder.label"] == lease.label
        assert wait.attributes["redislock.owner"] != lease.owner
        assert "redislock.fencing_token" not in wait.attributes
        assert seconds(wait) >= 0.05
        assert wait.status.status_code == StatusCode.UNSET

    def test_an_unlocked_block(self, exported: InMemorySpanExporter) -> None:
        """It has a wait, which is an error, and no hold."""
        with redis_unavailable(), redis_lock("job", unavailable="run"):
            pass
        [wait] = ended(exported)
        assert wait.attributes is not None
        assert wait.attributes["redislock.outcome"] == "unlocked"
        assert wait.attributes[error_attributes.ERROR_TYPE] == "LockUnavailable"
        assert wait.status.status_code == StatusCode.ERROR

    def test_a_lost_lock(
        self, redis: Redis, exported: InMemorySpanExporter, tracer: Tracer
    ) -> None:
        """The hold is an error below the span that acquired the lock, although the watchdog
        notices the loss."""
        with pytest.raises(LeaseLost), tracer.start_as_current_span("request") as request:
            with redis_lock("job", ttl=0.3):
                redis.delete("redislock:{job}")
                eventually(lambda: len(ended(exported)) == 2)
        _, hold = ended(exported)
        assert hold.status.status_code == StatusCode.ERROR
        why = "it expired before it was renewed, or its key was deleted"
        assert hold.status.description == why
        assert hold.attributes[error_attributes.ERROR_TYPE] == "LeaseLost"
        assert parent_of(hold) == request.get_span_context().span_id

    def test_a_cleared_lock(self, exported: InMemorySpanExporter) -> None:
        """The holder's loss is the only span of a clearing."""
        lease = redis_lock("job", ttl=0.3).acquire()
        redis_lock("job").clear(by="Ada", reason="stuck")
        eventually(lambda: lease.state == "lost" and len(ended(exported)) == 2)
        assert ended(exported)[1].status.description == "cleared by Ada (stuck)"

    @pytest.mark.parametrize("kind", [redis_lock, TimestampLock])
    def test_released_elsewhere(
        self, kind: Any, exported: InMemorySpanExporter, tracer: Tracer
    ) -> None:
        """The parent is the span in which the lock was acquired."""
        with tracer.start_as_current_span("request") as request:
            lease = kind("job").acquire()
        with tracer.start_as_current_span("another"):
            lease.release()
        assert parent_of(ended(exported)[1]) == request.get_span_context().span_id

    def test_restored(self, exported: InMemorySpanExporter, tracer: Tracer) -> None:
        """The parent is the span of the release; nothing is kept where the lease was exported."""
        lease = redis_lock("job").acquire()
        restored = Lease.restore(lease.export())
        del lease
        gc.collect()
        with tracer.start_as_current_span("worker") as worker:
            restored.release()
        assert parent_of(ended(exported)[1]) == worker.get_span_context().span_id
        assert not spans._parents._values
        assert not spans._parents._dropped


class TestAttributes:
    def test_all(self, exported: InMemorySpanExporter) -> None:
        """Attributes have the names of the conventions, and the page lists each."""
        with redis_lock("job:7") as lease:
            line = sys._getframe().f_lineno - 1
        _, hold = ended(exported)
        path = "tests/test_opentelemetry.py"
        assert dict(hold.attributes) == {
            db_attributes.DB_SYSTEM_NAME: "redis",
            code_attributes.CODE_FILE_PATH: path,
            code_attributes.CODE_LINE_NUMBER: line,
            code_attributes.CODE_FUNCTION_NAME: "TestAttributes.test_all",
            "redislock.name": "job:7",
            "redislock.pattern": "job:*",
            "redislock.using": "default",
            "redislock.outcome": "released",
            "redislock.owner": lease.owner,
            "redislock.fencing_token": lease.fencing_token,
        }

    def test_a_label_of_your_own(self, exported: InMemorySpanExporter) -> None:
        """A label that is no place in the code is an attribute of its own."""
        with redis_lock("job", label="here"):
            pass
        for span in ended(exported):
            assert span.attributes["redislock.label"] == "here"
            assert not [key for key in span.attributes if key.startswith("code.")]

    def test_the_token_is_secret(self, redis: Redis, exported: InMemorySpanExporter) -> None:
        """No span has the token, however the lease ends."""
        tokens = []
        with redis_lock("job") as lease:
            tokens.append(lease.token)
            with held_elsewhere("job:1") as other:
                tokens.append(other.token)
                redis_lock("job:1").acquire(wait=0)
        lost = redis_lock("job:2", ttl=0.3).acquire()
        tokens.append(lost.token)
        redis_lock("job:2").clear(reason="stuck")
        eventually(lambda: len(ended(exported)) == 7)
        for span in ended(exported):
            assert not [token for token in tokens if token in span.to_json()]

    @pytest.mark.parametrize("everywhere", [True, False])
    def test_names_are_kept_out(self, exported: InMemorySpanExporter, everywhere: bool) -> None:
        """`TRACE_NAMES` keeps them out of all spans, or out of those of some locks."""
        entry = {} if everywhere else {"TRACE_NAMES": False}
        theirs = {"TRACE_NAMES": not everywhere, "LOCKS": {"job:*": entry}}
        with override_settings(REDISLOCK=theirs), redis_lock("job:secret"), redis_lock("other"):
            with held_elsewhere("job:busy"):
                assert redis_lock("job:busy", wait=0).acquire() is None
        told = [str((span.name, dict(span.attributes))) for span in ended(exported)]
        assert any("not acquired" in one for one in told)
        assert not [one for one in told if "secret" in one or "busy" in one]
        assert sum("'redislock.name': 'other'" in one for one in told) == (0 if everywhere else 2)

    def test_a_name_is_in_no_span_name(self, exported: InMemorySpanExporter) -> None:
        """Without a pattern, the span's name has no lock."""
        with redis_lock("secret:3"):
            pass
        assert names(exported) == ["redislock wait", "redislock hold"]
        assert ended(exported)[0].attributes["redislock.name"] == "secret:3"

    def test_the_page_lists_them(self, redis: Redis, exported: InMemorySpanExporter) -> None:
        """The page lists all attributes of spans, and no other."""
        listed = set()
        for line in PAGE.read_text().splitlines():
            row = re.match(r"\| (`\w+\.[^|]*) \| (.*) \|", line)
            if row:
                own = " ".join(row.groups()) if "code." in row[1] else row[1]
                listed |= set(re.findall(r"`((?:db|code|error|redislock)\.[\w.]+)`", own))
        with held_elsewhere():
            redis_lock("job", label="here").acquire(wait=0)
        lost = redis_lock("job:2", ttl=0.3).acquire()
        redis.delete("redislock:{job:2}")
        eventually(lambda: lost._lifetime.lost)
        eventually(lambda: len(ended(exported)) == 5)
        seen = {key for span in ended(exported) for key in span.attributes}
        assert seen == listed


class TestSwitch:
    def test_without_a_provider(self) -> None:
        """Without a provider, spans are made and dropped."""
        signals.observe(spans.record)
        try:
            with redis_lock("job") as lease:
                lease.check()
        finally:
            signals.unobserve(spans.record)
        assert not signals.observers

    def test_one_that_raises(
        self,
        exported: InMemorySpanExporter,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """A broken tracer breaks no lock."""

        class Broken:
            def start_span(self, *args: Any, **kwargs: Any) -> Any:
                raise RuntimeError("no span")

        monkeypatch.setattr(spans, "_tracer", Broken())
        with redis_lock("job") as lease:
            lease.check()
        assert [record.name for record in caplog.records if record.exc_info] == [
            "django_redislock"
        ] * 2
