"""The use of time in a recorded run. Two questions are asked of a recording. *Phases*: the things for which each task
waited, one after the other, added up by operation, scope and tenant. *Idleness*: at each moment in which a stream was
idle, the reason. Of several reasons the first in `WHY` counts: the one that a larger limit or more work would have
cured. Idleness gives the verdict: a task that waits while every stream is busy loses nothing. Besides these, the
critical path, and the tracked bytes over time.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Any, Final

import numpy as np

from .recording import PHASES, Recording, TaskRecord, phases

# Why a stream was idle. Of several reasons the first in this order counts.
WHY: Final = ("handed over", "bytes", "slots", "inputs", "awaited", "window", "loop")
_NOTICED: Final = 50e-6  # seconds: immediate admission takes less
_REASONS: Final = {"running": "running", "inputs": "inputs", "stream": "handed over"}  # by the phase of a stream's task

_UNKNOWN: Final = ("(unknown)",), ("",)  # the scope and the tenant of tasks that were lost, since the disk was too slow

Times = list[tuple[float, float]]


@dataclass(slots=True)
class Group:
    """Tasks that have names in common: how many, and the seconds of each phase, added up."""

    names: tuple[str, ...]
    count: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))


@dataclass(slots=True)
class Analysis:
    """The analysis of a recording.

    Attributes:
        span: seconds from the first submission to the last end.
        tasks, inline: how many tasks ran, and operations inline.
        operations: by name and device, the longest running first. The device of tasks on the loop's thread is "event
            loop".
        scopes: by the name, with "N" for numbers, so that equal requests and iterations are one.
        tenants: by the name, "" for scopes without one.
        streams: (name, share of the span in which it was busy, tasks), also those for copies in.
        busy: share of the span in which the compute streams were busy, on average.
        idle: share of the span in which they were idle, by `WHY`.
        loop: share of the span in which the loop's thread ran; None if the trace is too short to tell.
        path: the critical path, from the first to the last: (kind, name, seconds), where the kind is "run" or "loop".
        peak: most tracked bytes, and the limit.
    """

    span: float
    tasks: int
    inline: int
    operations: list[Group]
    scopes: list[Group]
    tenants: list[Group]
    streams: list[tuple[str, float, int]]
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
    capacity = sum(device["streams"] for device in recording.metadata.get("devices", ())) or 1
    operations, scopes, tenants = _added_up(recording, by_seq)
    busy, idle = _idleness(recording, by_seq, capacity, first, last)
    peak = max((used for _, used in memory_curve(recording)), default=0)
    return Analysis(
        span, sum(not task.inline for task in tasks), sum(task.inline for task in tasks),
        operations, scopes, tenants, _streams(tasks, span), busy, idle, _loop_share(recording),
        critical_path(tasks, by_seq), peak, recording.metadata.get("max_bytes"),
    )  # fmt: skip


def _added_up(recording: Recording, by_seq: dict[int, TaskRecord]) -> Iterator[list[Group]]:
    """By operation, by scope and by tenant."""
    named = {
        number: ((re.sub(r"\d+", "N", scope.name),), (scope.tenant,)) for number, scope in recording.scopes.items()
    }
    kinds: tuple[dict[tuple[str, ...], Group], ...] = ({}, {}, {})
    for task in recording.tasks:
        if task.claim:
            continue
        operation, spent = (task.name, task.stream if task.on_loop else task.device), phases(task, by_seq)
        for kind, names in zip(kinds, (operation, *named.get(task.scope, _UNKNOWN)), strict=True):
            group = kind.get(names) or kind.setdefault(names, Group(names))
            group.count += 1
            for phase, since, until in spent:
                group.seconds[phase] += until - since
    return (sorted(kind.values(), key=lambda one: -one.seconds["running"]) for kind in kinds)


def _streams(tasks: Iterable[TaskRecord], span: float) -> list[tuple[str, float, int]]:
    busy, count = defaultdict[str, float](float), Counter[str]()
    for task in tasks:
        if task.began is not None and task.ended is not None and not task.on_loop:
            busy[task.stream] += task.ended - task.began
            count[task.stream] += 1
    return [(name, min(1.0, seconds / span), count[name]) for name, seconds in busy.items()]


def _loop_share(recording: Recording) -> float | None:
    samples = recording.counters.get("loop", [])
    if len(samples) < 3 or samples[-1][0] <= samples[0][0]:
        return None
    (first, before), (last, after) = samples[0], samples[-1]
    return min(1.0, (after["ran"] - before["ran"]) / (last - first))


# -- idleness ---------------------------------------------------------------------------------------------------------


def _ahead(recording: Recording) -> dict[int, float]:
    """For iterations of windows, when the next one began. Who waits for one after that has submitted ahead."""
    found, last = dict[int, float](), dict[int, int]()  # the latest iteration in each scope
    for number in sorted(recording.scopes):
        one = recording.scopes[number]
        if not one.own_queue:
            if one.parent in last:
                found[last[one.parent]] = one.opened
            last[one.parent] = number
    return found


def _idleness(
    recording: Recording, by_seq: dict[int, TaskRecord], capacity: int, first: float, last: float
) -> tuple[float, dict[str, float]]:
    tasks = [task for task in recording.tasks if not (task.inline or task.copies)]
    streams = dict.fromkeys((task.device, task.stream) for task in tasks if task.stream and not task.on_loop)
    times = defaultdict[tuple[object, str], Times](list)  # by stream and phase, or by None and a reason for all streams
    for task in tasks:
        stream = task.device, task.stream
        for phase, since, until in phases(task, by_seq):
            if phase in ("bytes", "slots") and until - since > _NOTICED:
                times[None, phase].append((since, until))
            elif phase in _REASONS and stream in streams:
                times[stream, _REASONS[phase]].append((since, until))
    ahead = _ahead(recording)
    for since, until, seq, _ in recording.waits:
        scope = by_seq[seq].scope if seq in by_seq else 0
        times[None, "window" if since > ahead.get(scope, inf) else "awaited"].append((since, until))
    grid = np.unique(np.array([first, last, *(t for spans in times.values() for span in spans for t in span)]))
    grid = grid[(grid >= first) & (grid <= last)]
    long, span = np.diff(grid), max(last - first, 1e-9) * max(capacity, len(streams))
    covered = {key: _how_many(spans, grid) > 0 for key, spans in times.items()}
    covered[None, "loop"] = np.ones(len(long), bool)
    never, busy, found = np.zeros(len(long), bool), 0.0, dict.fromkeys(WHY, 0.0)
    for place in (*streams, *range(capacity - len(streams))):  # also those that no task used
        told = covered.get((place, "running"), never)
        busy += float(long[told].sum() / span)
        for reason in WHY:
            now = ~told & covered.get((place, reason), covered.get((None, reason), never))
            found[reason] += float(long[now].sum() / span)
            told = told | now
    return busy, found


def _how_many(times: Times, grid: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """For each interval of the grid, how many of these spans of time cover it."""
    if not times:
        return np.zeros(len(grid) - 1, np.int64)
    starts, ends = (np.sort(np.array(column)) for column in zip(*times, strict=True))
    since = grid[:-1]
    return np.searchsorted(starts, since, "right") - np.searchsorted(ends, since, "right")


# -- one after the other ----------------------------------------------------------------------------------------------


def critical_path(tasks: Sequence[TaskRecord], by_seq: dict[int, TaskRecord]) -> list[tuple[str, str, float]]:
    """The critical path, from the end back: always to the thing right after which the task began.

    That is an input, the task before it on its stream, or its launch. A launch that waited came right after the end of
    another task, which gave back its slot or its bytes. Otherwise the time before belongs to the loop, back to the last
    end that it took in.
    """
    ran = sorted((t for t in tasks if t.ended is not None and t.began is not None), key=lambda task: task.done)
    if not ran:
        return []
    on_stream: dict[tuple[str, str], list[TaskRecord]] = defaultdict(list)
    for task in sorted(ran, key=_end):
        on_stream[task.device, task.stream].append(task)
    task, path = ran[-1], [("loop", "taken in", ran[-1].done - _end(ran[-1]))]
    while len(path) < 2 * len(ran):
        began, stream = task.began or 0.0, on_stream[task.device, task.stream]
        path.append(("loop" if task.on_loop else "run", task.name, _end(task) - began))
        candidates = [p for seq in task.inputs if (p := by_seq.get(seq)) is not None and 0 < _end(p) <= began]
        place = bisect_right(stream, began, key=_end) - 1
        if place >= 0 and stream[place] is not task:
            candidates.append(stream[place])
        latest = max(candidates, key=_end, default=None)
        launched = task.submitted if task.launched is None else task.launched
        if latest is not None and _end(latest) >= launched and latest.began != began:
            path.append(("loop", "handed over", began - _end(latest)))
            task = latest
            continue
        place = bisect_right(ran, launched, key=attrgetter("done")) - 1
        if place < 0 or _end(ran[place]) >= _end(task):
            path.append(("loop", "submitted", began - tasks[0].submitted))
            break
        path.append(("loop", "submitted", began - _end(ran[place])))
        task = ran[place]
    return path[::-1]


def _end(task: TaskRecord) -> float:
    return task.ended or 0.0


# -- bytes ------------------------------------------------------------------------------------------------------------


def memory_curve(recording: Recording) -> list[tuple[float, int]]:
    """Tracked bytes after each change: (seconds, bytes). A scope's reserve counts from its claim to its end."""
    reserved = {number: scope for number, scope in recording.scopes.items() if scope.reserve}
    parents = {number: scope.parent for number, scope in recording.scopes.items()}

    def account(number: int) -> int:
        """The scope whose reserve this scope's tasks use; 0 for the scheduler's limit."""
        while number and number not in reserved:
            number = parents.get(number, 0)
        return number

    owner = {  # a reserve is taken from the scope around
        task.seq: account(parents.get(task.scope, 0) if task.claim else task.scope) for task in recording.tasks
    }
    changes: list[tuple[float, int, int]] = []
    for task in recording.tasks:
        if task.launched is not None:
            changes.append((task.done if task.claim else task.launched, owner[task.seq], task.cost))
            changes.append((task.done, owner[task.seq], task.kept - task.cost))
    changes += [(when, owner.get(seq, 0), -nbytes) for when, seq, nbytes in recording.released]
    changes += [(scope.closed, -number, 0) for number, scope in reserved.items() if scope.closed is not None]
    changes.sort(key=lambda change: change[0])
    used: dict[int, int] = defaultdict(int)
    used[0], curve = recording.metadata.get("bytes_before", 0), []
    outer: dict[int, int] = {}  # for each reserve that was given back, the account that it went to
    for when, where, nbytes in changes:
        if where < 0:
            outer[-where] = account(parents[-where])
            where, nbytes = outer[-where], used[-where] - reserved[-where].reserve
        while where in outer:
            where = outer[where]
        used[where] += nbytes
        if where == 0 and nbytes:
            curve.append((when, used[0]))
    return curve
