"""What a scheduler tells of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Statistics:
    """A snapshot of a scheduler. Bytes are tracked bytes; times are seconds; counts are since it opened."""

    tasks_submitted: int
    """Tasks accepted, those that ran at once on the loop's thread included."""
    tasks_completed: int
    """Tasks that ended with a result."""
    tasks_failed: int
    """Tasks that ended with an exception, their own or that of a task they read."""
    tasks_cancelled: int
    """Tasks that were cancelled, or read a cancelled one."""
    tasks_pending: int
    """Tasks in the backlog: submitted, and not admitted yet."""
    tasks_in_flight: int
    """Tasks admitted, and not ended."""
    peak_tasks_in_flight: int
    """The most tasks that ever were in flight."""
    bytes_in_flight: int
    """Output and workspace of tasks in flight, and results that only those still read. They drain by themselves."""
    bytes_retained: int
    """Finished results that your code, or a pending task, still holds. They do not drain by themselves."""
    bytes_reserved: int
    """Bytes that open scopes have reserved, used or not."""
    peak_bytes: int
    """The highest that all tracked bytes together ever were."""
    max_ops: int | None
    """The limit on tasks in flight; None for no bound."""
    max_bytes: int | None
    """The limit on tracked bytes; None for no bound."""
    admission_wait_seconds: float
    """How long callers of `put`, `submit`, `call` and `scope(reserve=)` have waited to be admitted, added up."""
