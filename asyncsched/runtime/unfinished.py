"""What is unfinished, as records to be drawn: the tasks, and the finished results that they read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from .._core.callsite import line_of
from .._core.model import DONE, STATE_NAMES, Task, Value
from ..pictures.graph import Node, TaskGraph
from .runtime import Runtime


def unfinished(runtime: Runtime, values: Sequence[Value] | None) -> TaskGraph:
    """The graph of all that is unfinished; of `values` and what they depend on, if they are given."""
    tasks = runtime.engine.root.unfinished() if values is None else _behind(values)
    tasks.sort(key=lambda task: task.seq)
    # Before the nodes are made, since a stream's thread clears the inputs of a launched task at any time.
    reads = [(task, [_made(value) for value in task.inputs]) for task in tasks]
    places: dict[Task | Value, int] = {}
    for thing in [made for task, inputs in reads for made in (*inputs, task)] + [_made(v) for v in values or ()]:
        places.setdefault(thing, len(places))
    inputs_of: dict[Task | Value, tuple[int, ...]] = {
        task: tuple([places[made] for made in inputs]) for task, inputs in reads
    }
    line = cache(line_of)
    found = []
    for thing in places:
        if isinstance(thing, Task):
            value, state, name = thing.value, STATE_NAMES[thing.state], thing.name
            state = "cancelled" if thing.cancelled else state
        else:
            value, name, state = thing, _name(thing), _state(thing)
        meta, device = getattr(value, "meta", None), getattr(value, "device", None)
        shape, dtype = (None, "") if meta is None else (meta.shape, str(meta.dtype))
        where = "" if value is None or value.site is None else line(value.site)
        found.append(Node(name, shape, dtype, state, device.name if device else "", inputs_of.get(thing, ()), where))
    return TaskGraph(found)


def _made(value: Value) -> Task | Value:
    """What to draw for a value: its task while that is unfinished, else the value."""
    task = value.task
    return value if task is None or task.state >= DONE else task


def _behind(values: Iterable[Value]) -> list[Task]:
    """The unfinished tasks that make values, and all unfinished ones that those depend on."""
    todo = [made for value in values if isinstance(made := _made(value), Task)]
    found = dict.fromkeys(todo)
    while todo:
        for value in todo.pop().inputs:
            made = _made(value)
            if isinstance(made, Task) and made not in found:
                found[made] = None
                todo.append(made)
    return list(found)


def _name(value: Value) -> str:
    if value.task is not None:
        return value.task.name
    return "result" if value.base is None else "view"


def _state(value: Value) -> str:
    failure = value.failure
    return "done" if failure is None else "cancelled" if failure.cancelled else "failed"
