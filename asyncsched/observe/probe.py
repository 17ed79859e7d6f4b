"""The present state of a scheduler, for instruments: what the events alone do not tell."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from .._core.instrument import Instrument
from .._core.ledger import Limits
from .._core.model import Lane, Scope, Task
from ..runtime.context import innermost
from ..runtime.runtime import Runtime
from ..runtime.statistics import Load, Statistics, load_of, statistics_of


class Probe:
    """Reads a scheduler as it is at this moment. Make one in `Instrument.attached`; on the loop's thread.

    Unlike `s.statistics()` and `s.load()` it may be read in every callback that runs on that thread, in the middle of a
    change: it takes in nothing that has ended meanwhile, and reading it changes nothing. Each attribute takes well
    under a microsecond.

    >>> class Backlog(asc.observe.Instrument):
    ...     def attached(self, scheduler):
    ...         self.probe = asc.observe.Probe(scheduler)
    ...     def task_launched(self, task):
    ...         print(task.name, self.probe.pending, self.probe.in_flight, [lane.load for lane in self.probe.lanes])
    >>> async def main():
    ...     async with asc.Scheduler("cpu", streams=1, instruments=[Backlog()]) as s:
    ...         await s.call(max, 1, 2)
    >>> asc.run(main)
    max 0 1 [1, 0]
    """

    def __init__(self, scheduler: Any) -> None:
        self._runtime: Runtime = scheduler._runtime

    @property
    def limits(self) -> Limits:
        """`max_ops`, `max_bytes` and `max_pending`; None is no bound. `max_bytes="auto"` is known from `opened` on."""
        return self._runtime.ledger.limits

    @property
    def pending(self) -> int:
        """Tasks in the backlog, and claims of bytes."""
        return self._runtime.ledger.pending

    @property
    def in_flight(self) -> int:
        """Tasks that have a slot."""
        return self._runtime.ledger.in_flight

    @property
    def full(self) -> bool:
        """Whether no slot is free."""
        return self._runtime.ledger.full

    @property
    def used_bytes(self) -> int:
        """All bytes charged: in flight, retained and reserved."""
        return self._runtime.ledger.account.used

    @property
    def reserved_bytes(self) -> int:
        """Bytes that open scopes have reserved."""
        return self._runtime.ledger.reserved

    @property
    def root(self) -> Scope:
        """The scheduler's own scope. All others are below it."""
        return self._runtime.engine.root

    @property
    def current(self) -> Scope:
        """The innermost scope of this scheduler whose block the code is in; `root` if it is in none.

        To ask for another context, as those of `batch_formed`: `context.run(lambda: probe.current)`.
        """
        here = innermost()
        while here is not None and here.runtime is not self._runtime:
            here = here.outer
        return self.root if here is None else here.core

    @property
    def lanes(self) -> list[Lane]:
        """The streams, as tasks have them in `task.lane`, from `opened` on: for compute first, then for copies."""
        devices = self._runtime.lanes.values()
        compute = [lane for its in devices for lane in dict.fromkeys((*its.compute, *its.serial))]
        return compute + [lane for its in devices for lane in its.copy]

    @property
    def waits(self) -> int:
        """How many coroutines wait for tasks."""
        return len(self._runtime.parked)

    def waiting(self) -> Iterator[tuple[asyncio.Task[Any] | None, Sequence[Task]]]:
        """Those that wait: the asyncio task, or None in a callback, and the tasks for which it waits."""
        return (found for future, found in self._runtime.parked.items() if not future.done())


class OfOne(Instrument):
    """An instrument of one scheduler, once, which it probes. It does not hold the scheduler, which closes when nothing
    refers to it."""

    _again: str = "this {} has a scheduler already: make another"
    _probe: Any = None  # a `Probe`, once it has a scheduler

    def attached(self, scheduler: Any) -> None:
        if self._probe is not None:
            raise RuntimeError(self._again.format(type(self).__name__))
        self._probe = Probe(scheduler)

    def _leave(self) -> None:
        self._probe._runtime.instruments.remove(self)

    def _told(self) -> tuple[str, Statistics, Load]:
        """The scheduler's `repr`, `statistics()` and `load()`."""
        runtime = self._probe._runtime
        return repr(runtime), statistics_of(runtime), load_of(runtime)
