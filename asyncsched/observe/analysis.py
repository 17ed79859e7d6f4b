"""Where the time of a recorded run went.

Two questions are asked of a recording. *Phases*: what each task waited for, one thing after the other, added up by
operation. *Idleness*: at each moment in which a stream was idle, why; of several reasons the first in `WHY` counts,
which is the one that more of something would have cured. The second gives the verdict: a task that waits while every
stream is busy loses nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from .critical_path import critical_path
from .memory_curve import memory_curve
from .recording import PHASES, Recording, TaskRecord, phases

# Why a stream was idle. Of several reasons the first in this order counts.
WHY: Final = ("handed over", "bytes", "slots", "inputs", "awaited", "loop")
_NOTICED: Final = 50e-6  # seconds: to be admitted at once takes less

Times = list[tuple[float, float]]


@dataclass(slots=True)
class Operation:
    """Tasks of one name on one device: how many, and the seconds of each phase, added up."""

    name: str
    device: str
    count: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))


@dataclass(slots=True)
class Analysis:
    """What a recording says.

    Attributes:
        span: seconds from the first submission to the last end.
        tasks, inline: how many tasks ran, and operations inline.
        operations: the longest running first; what ran on the loop's thread is on the device "event loop".
        streams: (device, stream, share of the span that it was busy, tasks), for copies in too.
        busy: share of the span that the compute streams were busy, on average.
        idle: share of the span that they were idle, by `WHY`.
        loop: share of the span that the loop's thread ran; None where the trace is too short to tell.
        path: the critical path, from the first to the last: (kind, name, seconds), where the kind is "run" or "loop".
        peak: most tracked bytes, and the limit.
    """

    span: float
    tasks: int
    inline: int
    operations: list[Operation]
    streams: list[tuple[str, str, float, int]]
    busy: float
    idle: dict[str, float]
    loop: float | None
    path: list[tuple[str, str, float]]
    peak: int
    limit: int | None


def analyse(recording: Recording) -> Analysis:
    """Find out where the time went."""
    tasks = recording.tasks
    first = min((task.submitted for task in tasks), default=0.0)
    last = max((task.done for task in tasks), default=0.0)
    span = max(last - first, 1e-9)
    by_seq = {task.seq: task for task in tasks}
    operations, streams = _added_up(tasks, by_seq), _streams(tasks, span)
    capacity = sum(device["streams"] for device in recording.metadata.get("devices", ())) or 1
    busy, idle = _idleness(recording, by_seq, capacity, first, last)
    curve = memory_curve(recording)
    return Analysis(
        span, sum(not task.inline for task in tasks), sum(task.inline for task in tasks), operations, streams, busy,
        idle, _loop_share(recording), critical_path(tasks, by_seq), max((used for _, used in curve), default=0),
        recording.metadata.get("max_bytes"),
    )  # fmt: skip


def _added_up(tasks: Iterable[TaskRecord], by_seq: dict[int, TaskRecord]) -> list[Operation]:
    found: dict[tuple[str, str], Operation] = {}
    for task in tasks:
        if task.claim:
            continue
        device = task.stream if task.on_loop else task.device
        operation = found.setdefault((task.name, device), Operation(task.name, device))
        operation.count += 1
        for phase, since, until in phases(task, by_seq):
            operation.seconds[phase] += until - since
    return sorted(found.values(), key=lambda one: -one.seconds["running"])


def _streams(tasks: Iterable[TaskRecord], span: float) -> list[tuple[str, str, float, int]]:
    busy: dict[tuple[str, str], float] = defaultdict(float)
    count: dict[tuple[str, str], int] = defaultdict(int)
    for task in tasks:
        if task.began is not None and task.ended is not None and not task.on_loop:
            busy[task.device, task.stream] += task.ended - task.began
            count[task.device, task.stream] += 1
    return [(*key, min(1.0, busy[key] / span), count[key]) for key in sorted(busy)]


def _loop_share(recording: Recording) -> float | None:
    samples = recording.counters.get("loop", [])
    if len(samples) < 3 or samples[-1][0] <= samples[0][0]:
        return None
    (first, before), (last, after) = samples[0], samples[-1]
    return min(1.0, (after["ran"] - before["ran"]) / (last - first))


# -- idleness -----------------------------------------------------------------------------------------------------


def _idleness(
    recording: Recording, by_seq: dict[int, TaskRecord], capacity: int, first: float, last: float
) -> tuple[float, dict[str, float]]:
    own: dict[tuple[str, str], dict[str, Times]] = {}  # by stream
    shared: dict[str, Times] = {"bytes": [], "slots": []}
    for task in recording.tasks:
        if task.inline or task.copies:
            continue
        mine: dict[str, Times] = {}
        if not task.on_loop:
            mine = own.setdefault((task.device, task.stream), {"running": [], "inputs": [], "stream": []})
        for phase, since, until in phases(task, by_seq):
            if phase in shared and until - since > _NOTICED:
                shared[phase].append((since, until))
            elif phase in mine:
                mine[phase].append((since, until))
    own.pop(("", ""), None)  # what was never launched, and claims
    shared["awaited"] = [(since, until) for since, until, *_ in recording.waits]
    moments = [t for times in (*shared.values(), *(t for mine in own.values() for t in mine.values())) for t in times]
    grid = np.unique(np.array([first, last, *(t for pair in moments for t in pair)]))
    grid = grid[(grid >= first) & (grid <= last)]
    long, span = np.diff(grid), max(last - first, 1e-9) * max(capacity, len(own))
    waited = {reason: _how_many(times, grid) > 0 for reason, times in shared.items()}
    busy, found = 0.0, dict.fromkeys(WHY, 0.0)
    never: dict[str, Times] = {"running": [], "inputs": [], "stream": []}
    for mine in (*own.values(), *[never] * (capacity - len(own))):
        told = _how_many(mine["running"], grid) > 0
        busy += float(long[told].sum() / span)
        here = {"handed over": _how_many(mine["stream"], grid) > 0, "inputs": _how_many(mine["inputs"], grid) > 0}
        for reason in WHY:
            now = ~told & (waited | here).get(reason, True)
            found[reason] += float(long[now].sum() / span)
            told |= now
    return busy, found


def _how_many(times: Times, grid: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """For each interval of the grid, how many of these spans of time cover it."""
    if not times:
        return np.zeros(len(grid) - 1, np.int64)
    starts, ends = (np.sort(np.array(column)) for column in zip(*times, strict=True))
    since = grid[:-1]
    return np.searchsorted(starts, since, "right") - np.searchsorted(ends, since, "right")
