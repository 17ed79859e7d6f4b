"""The critical path of a recorded run: what had to come one after the other, and so what its time is made of."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from .recording import TaskRecord


def critical_path(tasks: Sequence[TaskRecord], by_seq: dict[int, TaskRecord]) -> list[tuple[str, str, float]]:
    """What had to happen one after the other: from the end back, always to what the task began right after.

    That is an input, the one before it on its stream, or its launch. A launch that waited came right after an end of
    another task, which gave back its slot or its bytes; else what was before is the loop's, back to the end that
    it was told of last.
    """
    ran = sorted((t for t in tasks if t.ended is not None and t.began is not None), key=lambda task: task.done)
    if not ran:
        return []
    done_times = [task.done for task in ran]
    on_stream: dict[tuple[str, str], list[TaskRecord]] = defaultdict(list)
    for task in sorted(ran, key=_end):
        on_stream[task.device, task.stream].append(task)
    ends = {key: [_end(task) for task in those] for key, those in on_stream.items()}
    task, path = ran[-1], [("loop", "taken in", ran[-1].done - _end(ran[-1]))]
    while len(path) < 2 * len(ran):
        began, stream = task.began or 0.0, (task.device, task.stream)
        path.append(("loop" if task.on_loop else "run", task.name, _end(task) - began))
        candidates = [p for seq in task.inputs if (p := by_seq.get(seq)) is not None and 0 < _end(p) <= began]
        place = bisect_right(ends[stream], began) - 1
        if place >= 0 and on_stream[stream][place] is not task:
            candidates.append(on_stream[stream][place])
        latest = max(candidates, key=_end, default=None)
        launched = task.submitted if task.launched is None else task.launched
        if latest is not None and _end(latest) >= launched and latest.began != began:
            path.append(("loop", "handed over", began - _end(latest)))
            task = latest
            continue
        place = bisect_right(done_times, launched) - 1
        if place < 0 or _end(ran[place]) >= _end(task):
            path.append(("loop", "submitted", began - tasks[0].submitted))
            break
        path.append(("loop", "submitted", began - _end(ran[place])))
        task = ran[place]
    return path[::-1]


def _end(task: TaskRecord) -> float:
    return task.ended or 0.0
