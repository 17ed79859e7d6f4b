"""The records that `Scheduler.statistics()` and `Scheduler.load()` return."""

from __future__ import annotations

from dataclasses import dataclass

from .._core.audit import in_flight_bytes, unused_reserve
from .._core.engine import Engine
from .._core.model import CANCELLED, DONE, FAILED
from ..pictures.record import Bytes, BytesPerSecond, Record, Seconds
from .runtime import Runtime


@dataclass(frozen=True, repr=False)
class Statistics(Record):
    """A snapshot of a scheduler. Bytes are tracked bytes, times are seconds, counts begin when it opens.

    It prints with units; the fields are exact numbers.
    """

    tasks_submitted: int
    """Accepted tasks, including those that ran at once on the loop's thread."""
    tasks_completed: int
    """Tasks that ended with a result."""
    tasks_failed: int
    """Tasks that ended with an exception of their own or of a task they read."""
    tasks_cancelled: int
    """Tasks that were cancelled, or that read a cancelled task."""
    tasks_pending: int
    """Tasks in the backlog: submitted and not yet admitted."""
    tasks_in_flight: int
    """Tasks admitted and not ended."""
    peak_tasks_in_flight: int
    """The most tasks that were ever in flight."""
    bytes_in_flight: Bytes
    """Output and workspace of tasks in flight, and results that only those read. These bytes drain by themselves."""
    bytes_retained: Bytes
    """Finished results that your code, or a pending task, still holds. These bytes do not drain by themselves."""
    bytes_reserved: Bytes
    """Bytes that open scopes have reserved, used or not."""
    reserves_waiting: int
    """Scopes (and graphs) that wait for bytes, to reserve or to grow."""
    bytes_waiting: Bytes
    """The bytes that these scopes ask for."""
    peak_bytes: Bytes
    """The most bytes that were ever tracked: in flight, retained and reserved, added up."""
    max_ops: int | None
    """The limit on tasks in flight; None for no bound."""
    max_bytes: Bytes | None
    """The limit on tracked bytes; None for no bound."""
    admission_wait_seconds: Seconds
    """The time that callers of `put`, `submit`, `call` and `scope(reserve=)` have waited for admission, added up."""
    scopes_preempted: int
    """Scopes that were told to give their reserve back, so that others could grow."""


@dataclass(frozen=True, repr=False)
class Load(Record):
    """How busy a scheduler is. Rates cover the last second or so with unfinished work; idle time does not count."""

    tasks_pending: int
    """Tasks in the backlog."""
    tasks_in_flight: int
    """Tasks admitted and not ended."""
    bytes_tracked: Bytes
    """All bytes charged: in flight, retained and reserved."""
    bytes_pending: Bytes
    """Bytes that the backlog asks for, including reserves that scopes wait for."""
    max_bytes: Bytes | None
    """The limit on tracked bytes; None for no bound."""
    drain_rate_tasks: float
    """Tasks that end per second; 0 until one has ended.

    Does not count operations that ran at once on the loop's thread, nor tasks dropped from the backlog.
    """
    drain_rate_bytes: BytesPerSecond
    """The costs of these tasks, in bytes per second."""
    estimated_wait: Seconds | None
    """Seconds until a task submitted now would be admitted, after everything pending.

    0 if nothing is pending and there is room; None if no task has ended yet. For scopes that wait to reserve, the
    estimate uses how fast earlier ones were let in; before the first was, how long it has waited. Ignores shares and
    priorities.
    """


def _drained(runtime: Runtime) -> Engine:
    """The engine, for a thread that may wait, with everything taken in."""
    runtime.check_waiting()
    runtime.engine.drain()
    return runtime.engine


def tracked_bytes_of(runtime: Runtime) -> int:
    """The value of `Scheduler.tracked_bytes`."""
    engine = _drained(runtime)
    return max(0, engine.ledger.account.used - unused_reserve(engine.root))


def statistics_of(runtime: Runtime) -> Statistics:
    """The record that `Scheduler.statistics()` returns."""
    engine = _drained(runtime)
    ledger, in_flight = engine.ledger, in_flight_bytes(engine.root)
    return Statistics(
        tasks_submitted=ledger.submitted + ledger.ran_at_once,
        tasks_completed=ledger.ended[DONE] + ledger.ran_at_once,
        tasks_failed=ledger.ended[FAILED],
        tasks_cancelled=ledger.ended[CANCELLED],
        tasks_pending=ledger.pending - ledger.claims,
        tasks_in_flight=ledger.in_flight,
        peak_tasks_in_flight=ledger.peak_in_flight,
        bytes_in_flight=in_flight,
        bytes_retained=max(0, ledger.account.used - unused_reserve(engine.root) - in_flight),
        bytes_reserved=ledger.reserved,
        reserves_waiting=ledger.claims,
        bytes_waiting=ledger.claim_bytes,
        peak_bytes=ledger.peak_bytes,
        max_ops=ledger.limits.max_ops,
        max_bytes=ledger.account.limit,
        admission_wait_seconds=runtime.waited,
        scopes_preempted=ledger.preempted,
    )


def load_of(runtime: Runtime) -> Load:
    """The record that `Scheduler.load()` returns."""
    ledger, account = _drained(runtime).ledger, runtime.ledger.account
    runtime.meter.sample(ledger.unfinished > 0)
    tasks, nbytes = runtime.meter.rates()
    room = ledger.idle and (account.limit is None or account.used < account.limit)
    # The number of ends that make room
    wait = 0.0 if room else (ledger.pending - ledger.claims + 1) / tasks if tasks else None
    if wait and nbytes:
        wait = max(wait, (ledger.pending_bytes - ledger.claim_bytes) / nbytes)
    if ledger.claims:
        wait = max(wait or 0.0, runtime.room.estimated_wait_for_all())
    return Load(
        tasks_pending=ledger.pending - ledger.claims,
        tasks_in_flight=ledger.in_flight,
        bytes_tracked=account.used,
        bytes_pending=ledger.pending_bytes,
        max_bytes=account.limit,
        drain_rate_tasks=tasks,
        drain_rate_bytes=nbytes,
        estimated_wait=wait,
    )
