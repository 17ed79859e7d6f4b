"""Reading a trace: every task, with all that a replay needs.

The file is Chrome's JSON array of trace events, one a line, and may end after any of them. Times are in microseconds.
These events are read. All others, such as the phases and arrows of the first tasks, are only for viewers.

- `asyncsched.metadata` (metadata, as `asyncsched.released`), first: `format`; `wall_clock` (seconds since 1970) and
  `perf_counter` of the origin of times; the fields of `Limits`, `bytes_before` (retained when the trace began),
  `devices`, `machine`, `program`, `pid`.
- Of the category "task": a slice for each task that ran, or an instant, at its end, for one that never did. `args` are
  the other fields of `TaskRecord`; missing ones have its defaults. An operation that ran inline was submitted and
  launched when it began, and kept its whole cost.
- `asyncsched.released`, again and again: `times`, numbers of `tasks`, `bytes`.
- "scope" and "iteration" (of a window, which has no queue of its own): the beginning has `parent`, `priority` and the
  `tenant` if there is one, the end the `reserve` in bytes.
- "await", at the end of a wait: when it `began`, the number of the last `task`, and the `count`.
- Counters: "tasks", "bytes", "loop" (seconds for which its thread ran), and the bytes of scopes that have a reserve.
- `asyncsched.end`, last, if the trace was ended: `lost`, the number of tasks that were left out since the disk was
  slow.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import IO, Any, Final

from .._arguments import format_bytes, printable
from .._core.ledger import Limits
from .._system import at_once
from ..pictures.graph import Node, TaskGraph
from ..pictures.record import Bytes, Record, Seconds
from ..runtime.runtime import INLINE_STREAM

FORMAT: Final = 2
PHASES: Final = {
    "queue": "behind others in its queue",
    "slots": "waits for a slot (max_ops)",
    "bytes": "waits for bytes (max_bytes)",
    "inputs": "waits for inputs that are being made",
    "stream": "waits for its stream",
    "running": "runs",
    "told": "ended, not told yet",
}
_TIMES: Final = ("submitted", "head", "launched", "began", "ended", "done")  # in their order
# Bounds of a file, against one that was made to use up memory. Traces have lines of 30 KB, longer only for a task of
# many inputs, and are packed 8 times. All three are guesses.
_LONGEST: Final = 4 << 20
_AT_LEAST: Final = 4 << 20  # bytes that any file may have
_PACKED: Final = 50


@dataclass(slots=True, kw_only=True, repr=False)
class TaskRecord(Record):
    """A task, or an operation that ran inline. Times are in seconds since the trace began; None for events that never
    came.

    Attributes:
        seq: its number, in the order of submission.
        name: of the operation.
        site: the user's line.
        device, stream: where it ran; "" if nowhere. On the loop's thread the stream is "event loop", and inline there
            is no device.
        copies: whether that stream is for copies in.
        state: "done", "failed", "cancelled", or its state when the trace ended.
        claim: whether it is a scope's reserve, which takes bytes and no slot.
        scope: the number of its scope.
        expedited: whether it was queued before the rest of its scope.
        inputs: the numbers of the tasks whose results it reads, -1 for one that the trace does not know.
        cost: bytes charged at its launch.
        kept: those of these bytes that its result keeps until it is released.
        released: when that was; None if it was still held.
        head: when it became the first of its queue, or was submitted if that was later.
        waited_for: "slots" or "bytes", between `head` and `launched`.
        began, ended: its body, on the stream.
        done: when the scheduler took in its end.
    """

    seq: int
    name: str
    site: str
    scope: int
    cost: Bytes
    kept: Bytes
    submitted: Seconds
    head: Seconds
    done: Seconds
    inputs: tuple[int, ...] = ()
    launched: Seconds | None = None
    began: Seconds | None = None
    ended: Seconds | None = None
    released: Seconds | None = None
    state: str = "done"
    waited_for: str = "bytes"
    device: str = ""
    stream: str = ""
    copies: bool = False
    claim: bool = False
    expedited: bool = False

    @property
    def inline(self) -> bool:
        """Whether it ran on the loop's thread without becoming a task."""
        return self.on_loop and not self.device

    @property
    def on_loop(self) -> bool:
        """Whether it ran on the loop's thread: at once, or as a quick task when its turn came."""
        return self.stream == INLINE_STREAM


@dataclass(slots=True, repr=False)
class ScopeRecord(Record):
    """A scope or, if it shares its parent's queue, an iteration of a window. 0 is no scope; a tenant is text."""

    number: int
    parent: int
    name: str
    opened: Seconds
    own_queue: bool
    priority: int
    tenant: str = ""
    closed: Seconds | None = None
    reserve: Bytes = 0


@dataclass(slots=True, repr=False)
class Recording(Record):
    """A trace that was read.

    Attributes:
        metadata: see above.
        tasks: in the order of their numbers.
        released: (time, number of the task or -1, bytes), in order.
        waits: (began, ended, number of the last task, how many), in the order of their ends.
        counters: by their names, of each (time, its values).
        complete: whether the trace was ended; else the process was killed, or it goes on.
        lost: tasks that were left out.
    """

    metadata: dict[str, Any] = field(default_factory=dict)
    tasks: list[TaskRecord] = field(default_factory=list)
    scopes: dict[int, ScopeRecord] = field(default_factory=dict)
    released: list[tuple[float, int, int]] = field(default_factory=list)
    waits: list[tuple[float, float, int, int]] = field(default_factory=list)
    counters: dict[str, list[tuple[float, dict[str, float]]]] = field(default_factory=dict)
    complete: bool = False
    lost: int = 0

    @property
    def limits(self) -> Limits:
        """The limits of the scheduler."""
        return Limits(**{each.name: self.metadata[each.name] for each in fields(Limits) if each.name in self.metadata})

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Recording:
        """Read the file of a `Trace`, also one that was cut off.

        Raises:
            OSError: if it cannot be read.
            ValueError: if it is no trace of this package, is damaged, or of another version.
        """
        found, name = cls(), os.fspath(path)
        try:
            for event in _events(name):
                _take(found, event)
                if (written := found.metadata["format"]) != FORMAT:
                    break
        except Exception as error:  # any may come of text that is not as it was written
            if isinstance(error, OSError | MemoryError) and not isinstance(error, gzip.BadGzipFile):
                raise
            told = printable(f"{type(error).__name__}: {error}")
            raise ValueError(f"{name} is damaged: {told}; record it again") from error
        if not found.metadata:
            raise ValueError(f"{name} is no trace written by asyncsched.observe.Trace")
        if written > FORMAT:
            raise ValueError(f"{name} was written by a newer asyncsched: upgrade, to read it")
        if written < FORMAT:
            raise ValueError(f"{name} was written by an older asyncsched: record it again, or read it with that one")
        found.tasks.sort(key=lambda task: task.seq)
        by_seq = {task.seq: task for task in found.tasks}
        for when, seq, nbytes in found.released:
            if (task := by_seq.get(seq)) is not None and nbytes:
                task.released = when
        return found

    def graph(self) -> TaskGraph:
        """The graph of dependencies, to be drawn, with the charge of each task. Claims of bytes are left out."""
        tasks = [task for task in self.tasks if not task.claim]
        places = {task.seq: place for place, task in enumerate(tasks)}
        return TaskGraph(
            Node(
                task.name,
                dtype=format_bytes(task.cost),
                state=task.state,
                device=task.device,
                inputs=tuple([places[seq] for seq in task.inputs if seq in places]),
                line=task.site,
            )
            for task in tasks
        )


# What is text in a task, and what a whole number
_TEXTS: Final = [each.name for each in fields(TaskRecord) if each.type == "str"]
_WHOLE: Final = [each.name for each in fields(TaskRecord) if each.type in ("int", "Bytes")]


def task_of(event: Mapping[str, Any]) -> TaskRecord:
    """The task of an event of the category "task"."""
    args, began = event["args"], event["ts"]
    found: dict[str, Any] = args | {"name": event["name"], "inputs": tuple(args.get("inputs", ()))}
    if event["ph"] == "X":
        ended = began + event["dur"]
        inline = {"kept": args["cost"], "submitted": began, "head": began, "launched": began, "done": ended}
        found = inline | found | {"began": began, "ended": ended}
    last = 0.0
    for name in _TIMES:
        if found.get(name) is not None:
            last = found[name] = max(found[name] / 1e6, last)  # a card's clock may be a little off
    _require(str, *[found[each] for each in _TEXTS if each in found])
    _require(int, *[found[each] for each in _WHOLE], *found["inputs"])
    task = TaskRecord(**found)
    _ = PHASES[task.waited_for]
    return task


def _require(kind: Any, *values: Any) -> None:
    """Raise unless all values are of this type, as a trace has them."""
    for value in values:
        if not isinstance(value, kind):
            raise TypeError(f"{kind} expected, not {type(value)}")


def phases(task: TaskRecord, by_seq: Mapping[int, TaskRecord]) -> list[tuple[str, float, float]]:
    """The phases of a task from its submission to its end: (one of `PHASES`, from, to), without gaps."""
    if task.inline:
        return [("running", task.submitted, task.done)]
    if task.launched is None:
        return [("queue", task.submitted, task.done)]
    found = [("queue", task.submitted, task.head), (task.waited_for, task.head, task.launched)]
    if task.began is None or task.ended is None:
        return [*found, ("told", task.launched, task.done)]
    ends = [by_seq[seq].ended or 0.0 for seq in task.inputs if seq in by_seq]  # of others it is not known
    ready = min(max([task.launched, *ends]), task.began)
    found += [("inputs", task.launched, ready), ("stream", ready, task.began), ("running", task.began, task.ended)]
    return [*found, ("told", task.ended, task.done)]


def _take(found: Recording, event: Mapping[str, Any]) -> None:
    """Put an event into a recording."""
    name, args, when = event["name"], event.get("args", {}), event.get("ts", 0.0) / 1e6
    _require(str, name)
    match event["ph"], event.get("cat", name):
        case "M", "asyncsched.metadata":
            found.metadata = args
            _require(int, args["format"], args.get("bytes_before", 0))
            _require(int | None, args["max_ops"], *[args.get(each.name) for each in fields(Limits)])
            _ = [(device["name"], device["streams"]) for device in args["devices"]]
        case "M", "asyncsched.released":
            times = [us / 1e6 for us in args["times"]]
            _require(int, *args["tasks"], *args["bytes"])
            found.released += zip(times, args["tasks"], args["bytes"], strict=True)
        case "M", "asyncsched.end":
            _require(int, args["lost"])
            found.complete, found.lost = True, args["lost"]
        case "X" | "i", "task":
            found.tasks.append(task_of(event))
        case "b", "scope" | "iteration" as kind:
            number, more = event["id"], (kind == "scope", args["priority"], args.get("tenant", ""))
            _require(int, number, args["parent"])
            _require(int | float, args["priority"])
            _require(str, more[-1])
            if args["parent"] >= number:  # a scope is numbered after its parent, so following parents comes to an end
                raise ValueError(f"scope {number} is in scope {args['parent']}, which was opened after it")
            found.scopes[number] = ScopeRecord(number, args["parent"], name, when, *more)
        case "e", "scope" | "iteration":
            if (scope := found.scopes.get(event["id"])) is not None:  # else the event that opened it was lost
                _require(int, args["reserve"])
                scope.closed, scope.reserve = when, args["reserve"]
        case "e", "await":
            _require(int, args["task"], args["count"])
            found.waits.append((args["began"] / 1e6, when, args["task"], args["count"]))
        case "C", _:
            _require(int | float, *args.values(), *([args["ran"]] if name == "loop" else []))
            found.counters.setdefault(name, []).append((when, args))


def _events(name: str) -> Iterator[dict[str, Any]]:
    """The whole events of a file, which may be cut anywhere; none if it is no trace of ours."""
    lines = _lines(name)
    try:
        next(lines, "")
        first = next(lines, "")
        for line in chain((first,), lines) if '"asyncsched.metadata"' in first else ():
            if line.endswith("\n") and line != "]\n":
                yield json.loads(line.removesuffix(",\n"))
    except EOFError:  # compressed, and cut
        return


def _lines(name: str) -> Iterator[str]:
    """The lines of a file. Neither a line nor the file grows beyond what a trace may have when it is unpacked."""
    with open(name, "rb", opener=at_once) as raw:
        packed = name.endswith(".gz")
        file: IO[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
        read = 0
        while line := file.readline(_LONGEST + 1):
            read += len(line)
            if len(line) > _LONGEST or (packed and read > _AT_LEAST + _PACKED * raw.tell()):
                raise ValueError("it has a longer line, or is packed tighter, than any trace")
            yield line.decode("ascii", "replace")
