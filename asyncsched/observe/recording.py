"""What a trace recorded, read again: every task, with what a replay needs.

The file is Chrome's JSON array of trace events, one a line, and may end after any of them. Viewers pass over metadata
of unknown names, which is where the record is:

- `asyncsched.metadata`, once: `format`; `wall_clock` (seconds since 1970) and `perf_counter` of the origin of times;
  the fields of `Limits`, `bytes_before` (retained when the trace began), `devices`,
  `machine`, `program`, `pid`.
- `asyncsched.record`, again and again: `args.z` is base64 of zlib of a JSON object; what is empty is left out.
    - `strings`, `lanes`: new ones, numbered on from those before: strings from 0, lanes from 1. A lane is
      [device, stream, whether it is for copies in].
    - `tasks`: one list for each column of `chunks.COLUMNS`, in the order in which they ended; a number instead, where
      it is the same for all. Times are in ticks of
      0.1 microseconds: `submitted` since the row before, the others each since the column before it. `head` is when it
      became the first of its queue, `full` whether it waited for a slot then (else, if it waited, for bytes). `began`
      is -1 if no body ran. `lane` is 0 for what ran inline, -1 for none, -2 for a claim, which a scope's reserve
      is. `name` and `site` are strings. `seq` is since the row before; `inputs` says how many it has.
      The last list has for each of these how many before the reader its maker was; 0 if the trace does not know.
    - `released`: times, numbers of tasks, bytes; the first two each since the one before.
    - `scopes`: [number, parent's, name, opened, whether it has a queue of its own (else it is a window's iteration),
      priority]; `closed`: [number, block left, closed, its reserve in bytes]; `batches`: [scope, time, items].
    - `waits`: [began, ended, number of the last task, how many tasks].
    - `counters`: one list for each of `chunks.COUNTED`; `loop_cpu` is time that the loop's thread ran, in ticks, and
      `scopes` are pairs of a number and bytes.
- `asyncsched.end`, last, if the trace was ended: `lost`, how many tasks were left out since the disk was slow.

All else is the picture. It has a slice for each body and each operation that ran inline, but the phases, arrows, lines
and waits of the first tasks alone: see `Trace`.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from .._core.ledger import Limits
from .._core.model import STATE_NAMES
from ..pictures.graph import TaskGraph
from ..pictures.node import Node
from ..runtime.runtime import LoopStream
from .chunks import CLAIM, COUNTED, FORMAT, INLINE, NOWHERE, TICK, content, running, unpack_tasks


@dataclass(slots=True)
class TaskRecord:
    """A task, or an operation that ran inline. Times are in seconds since the trace began; None for what never came.

    Attributes:
        seq: its number, in the order of submission.
        name: of the operation.
        site: the user's line.
        device, stream: where it ran; "" if nowhere. What ran on the loop's thread has the stream "event loop",
            and if it ran inline no device.
        copies: whether that stream is for copies in.
        state: "done", "failed", "cancelled", or how far it was when the trace ended.
        claim: whether it is a scope's reserve, which takes bytes and no slot.
        scope: the number of its scope.
        expedited: whether it was queued before the rest of its scope.
        inputs: the numbers of the tasks whose results it reads, -1 for one that the trace does not know.
        cost: bytes charged at its launch.
        kept: of these, what its result keeps until it is released.
        released: when that was; None if it was still held.
        head: when it became the first of its queue, or was submitted if that was later.
        waited_for: "slots" or "bytes": what it waited for between `head` and `launched`.
        began, ended: its body, on the stream.
        done: when the scheduler took in its end.
    """

    seq: int
    name: str
    site: str
    device: str
    stream: str
    copies: bool
    state: str
    claim: bool
    scope: int
    expedited: bool
    inputs: tuple[int, ...]
    cost: int
    kept: int
    submitted: float
    head: float
    launched: float | None
    began: float | None
    ended: float | None
    done: float
    waited_for: str
    released: float | None = None

    @property
    def inline(self) -> bool:
        """Whether it ran on the loop's thread without becoming a task."""
        return self.on_loop and not self.device

    @property
    def on_loop(self) -> bool:
        """Whether it ran on the loop's thread: at once, or as a quick task when its turn came."""
        return self.stream == INLINE_STREAM


@dataclass(slots=True)
class ScopeRecord:
    """A scope or, if it shares its parent's queue, an iteration of a window. Number 0 is no scope."""

    number: int
    parent: int
    name: str
    opened: float
    own_queue: bool
    priority: int
    left: float | None = None
    closed: float | None = None
    reserve: int = 0


class _NewerTrace(ValueError):
    """Of a version to come."""


INLINE_STREAM = LoopStream.name
# What comes of reading text that is another than was written.
_DAMAGE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    zlib.error,
    gzip.BadGzipFile,
)
_LIMITS = [each.name for each in fields(Limits)]


@dataclass(slots=True)
class Recording:
    """A trace that was read.

    Attributes:
        metadata: see above.
        tasks: in the order of their numbers.
        released: (time, number of the task or -1, bytes), in order.
        waits: (began, ended, number of the last task, how many), in the order of their ends.
        counters: columns: `time` and `loop_cpu` in seconds, numbers of tasks, bytes.
        batches: (scope, time, items).
        complete: whether the trace was ended; else the process was killed, or it goes on.
        lost: tasks that were left out.
    """

    metadata: dict[str, Any] = field(default_factory=dict)
    tasks: list[TaskRecord] = field(default_factory=list)
    scopes: dict[int, ScopeRecord] = field(default_factory=dict)
    released: list[tuple[float, int, int]] = field(default_factory=list)
    waits: list[tuple[float, float, int, int]] = field(default_factory=list)
    batches: list[tuple[int, float, int]] = field(default_factory=list)
    counters: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in COUNTED})
    complete: bool = False
    lost: int = 0

    @property
    def limits(self) -> Limits:
        """Those of the scheduler."""
        return Limits(**{name: self.metadata[name] for name in _LIMITS if name in self.metadata})

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Recording:
        """Read the file of a `Trace`, also one that was cut off.

        Raises:
            OSError: if it cannot be read.
            ValueError: if it is no trace of this package, is damaged, or of a version to come.
        """
        found, name = cls(), os.fspath(path)
        reader = _Reader(found)
        try:
            for event in _events(name):
                reader.take(event)
                if found.metadata.get("format", 0) > FORMAT:
                    raise _NewerTrace("this trace was written by a newer asyncsched: upgrade, to read it")
        except _NewerTrace:
            raise
        except _DAMAGE as error:
            raise ValueError(f"{name} is damaged: {type(error).__name__}: {error}; record it again") from error
        if not found.metadata:
            raise ValueError(f"{name} is no trace written by asyncsched.observe.Trace")
        found.tasks.sort(key=lambda task: task.seq)
        by_seq = {task.seq: task for task in found.tasks}
        for when, seq, nbytes in found.released:
            if (task := by_seq.get(seq)) is not None and nbytes:
                task.released = when
        return found

    def graph(self) -> TaskGraph:
        """What depended on what, to be drawn, with what each charged; claims of bytes are left out."""
        tasks = [task for task in self.tasks if not task.claim]
        places = {task.seq: place for place, task in enumerate(tasks)}
        return TaskGraph(
            Node(
                task.name,
                dtype=f"{task.cost:,} B",
                state=task.state,
                device=task.device,
                inputs=tuple(dict.fromkeys([places[seq] for seq in task.inputs if seq in places])),
                line=task.site,
            )
            for task in tasks
        )


class _Reader:
    """Puts what the lines say into a recording."""

    def __init__(self, found: Recording) -> None:
        self._found = found
        self._strings: list[str] = []
        self._lanes: dict[int, tuple[str, str, bool]] = {INLINE: ("", INLINE_STREAM, False)}

    def take(self, event: dict[str, Any]) -> None:
        found = self._found
        match event["name"].removeprefix("asyncsched."):
            case "metadata":
                found.metadata = told = event["args"]
                _ = told["format"], told["max_ops"], [(device["name"], device["streams"]) for device in told["devices"]]
            case "end":
                found.complete, found.lost = True, event["args"]["lost"]
            case "record":
                self._record(content(event))

    def _record(self, record: dict[str, Any]) -> None:
        found = self._found
        self._strings += record.get("strings", ())
        for device, stream, copies in record.get("lanes", ()):
            self._lanes[len(self._lanes)] = device, stream, copies
        for number, parent, name, opened, own, priority in record.get("scopes", ()):
            found.scopes[number] = ScopeRecord(number, parent, name, opened * TICK, bool(own), priority)
        for number, left, closed, reserve in record.get("closed", ()):
            if (scope := found.scopes.get(number)) is not None:  # else what opened it was lost
                scope.left, scope.closed, scope.reserve = left * TICK, closed * TICK, reserve
        found.batches += [(scope, when * TICK, items) for scope, when, items in record.get("batches", ())]
        found.waits += [(b * TICK, e * TICK, seq, count) for b, e, seq, count in record.get("waits", ())]
        if "tasks" in record:
            found.tasks += [self._task(row) for row in unpack_tasks(record["tasks"])]
        if "released" in record:
            times, seqs, nbytes = record["released"]
            found.released += zip([t * TICK for t in running(times)], running(seqs), nbytes, strict=True)
        for name, column in record.get("counters", {}).items():
            scaled = name in ("time", "loop_cpu")
            found.counters[name] += [item * TICK for item in column] if scaled else column

    def _task(self, row: tuple[Any, ...]) -> TaskRecord:
        (seq, name, lane, submitted, head, launched, began, ended, done,
         state, cost, kept, scope, site, expedited, full, inputs) = row  # fmt: skip
        device, stream, copies = self._lanes.get(lane, ("", "", False))
        return TaskRecord(
            seq, self._strings[name], self._strings[site], device, stream, copies, STATE_NAMES[state], lane == CLAIM,
            scope, bool(expedited), inputs, cost, kept, submitted * TICK, head * TICK,
            launched * TICK if lane != NOWHERE else None,
            None if began is None else began * TICK, None if ended is None else ended * TICK, done * TICK,
            "slots" if full else "bytes",
        )  # fmt: skip


def _events(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The events of ours that are whole, of a file that may be cut anywhere."""
    name = os.fspath(path)
    with gzip.open(name, "rb") if name.endswith(".gz") else open(name, "rb") as file:
        try:
            for line in file:
                if b'"name":"asyncsched.' in line and line.endswith(b"\n"):
                    yield json.loads(line.rstrip().rstrip(b","))
        except EOFError:  # compressed, and cut
            return
