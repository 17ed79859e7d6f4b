"""What a scheduler does at one moment, as numbers and text: nothing of it keeps a task or a tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from .._core.callsite import line_of
from .._core.model import DONE, STATE_NAMES, Scope, Task
from ..runtime.places import place_of
from ..runtime.runtime import Runtime
from ..runtime.statistics import Load, Statistics

_LOOKED_AT = 64  # of those who wait, and of open scopes: the loop stands still meanwhile


@dataclass(frozen=True)
class Operation:
    """All tasks of one name, and the operations of that name that ran on the loop's thread."""

    name: str
    count: int
    """How many ran."""
    seconds: float
    """What they took, added up."""


@dataclass(frozen=True)
class StreamState:
    """A stream."""

    name: str
    busy_seconds: float
    """How long it ran tasks, with the one that runs now, and without the parts of them that others ran."""
    tasks: int
    """Launched on it, and not ended."""
    running: str | None
    """The task that runs, or on CUDA was enqueued last; None if none does."""
    running_seconds: float
    """For how long."""
    line: str
    """The user's line that submitted it."""


@dataclass(frozen=True)
class Waiting:
    """Coroutines that wait at one line for a task."""

    count: int
    place: str
    """Where: "at file:line in name"."""
    name: str
    """Of the first of the unfinished tasks that they wait for; empty if none is any more."""
    state: str
    """Of that task: pending or launched."""
    line: str
    """The user's that submitted it."""
    more: int
    """For how many other tasks each of them waits."""


@dataclass(frozen=True)
class ScopeState:
    """A scope that is open."""

    name: str
    tasks: int
    """Its own that are not ended."""
    reserve: int
    """Bytes it has reserved; 0 if it uses those of its parent."""
    used: int
    """Bytes used of them."""


@dataclass(frozen=True)
class Snapshot:
    """What `Summary.read()` returns."""

    name: str
    """The scheduler's `repr`."""
    seconds: float
    """Since it was looked at first."""
    statistics: Statistics
    load: Load
    operations: tuple[Operation, ...]
    """By the time they took, the longest first."""
    streams: tuple[StreamState, ...]
    waiting: tuple[Waiting, ...]
    """By their number. Of very many the first ones."""
    waiting_count: int
    """Coroutines that wait."""
    scopes: tuple[ScopeState, ...]
    """Those right below the scheduler; the first ones, of many. Iterations of windows are not among them."""
    scope_count: int
    iterations: int
    """Of windows right below the scheduler: begun, and not finished."""
    failures: tuple[str, ...]
    """The last tasks whose bodies raised, the oldest first."""


def waiting(runtime: Runtime) -> tuple[Waiting, ...]:
    """Who waits for what."""
    found: Counter[tuple[str, str, str, str, int]] = Counter()
    for future, (waiter, awaited) in list(islice(runtime.parked.items(), _LOOKED_AT)):
        if not future.done():
            place = "in a callback" if waiter is None else place_of(waiter)
            found[place, *_awaited([task for task in awaited if task.state < DONE])] += 1
    return tuple(Waiting(count, *fields) for fields, count in found.most_common())


def _awaited(tasks: Sequence[Task]) -> tuple[str, str, str, int]:
    if not tasks:
        return "", "", "", 0
    return tasks[0].name, STATE_NAMES[tasks[0].state], line_of(tasks[0].site), len(tasks) - 1


def scopes(root: Scope) -> tuple[tuple[ScopeState, ...], int, int]:
    """The open scopes right below the root, how many there are, and how many iterations of windows."""
    iterations = [scope for scope in root.children if scope.queue is root.queue]
    others = [scope for scope in root.children if scope.queue is not root.queue]
    shown = tuple(
        ScopeState(scope.name, len(scope.tasks), scope.reserve, scope.account.used if scope.reserve else 0)
        for scope in others[:_LOOKED_AT]
    )
    return shown, len(others), sum(not scope.over() for scope in iterations)
