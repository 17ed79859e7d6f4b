"""One Dask graph, computed within the bounds of a scheduler.

Theory of operation. A task of the graph is a task of the scheduler, and a dependency is a value that it reads. So the
engine knows the dependencies, streams go on from one task to the next without the loop, and a result is freed by its
reference count as soon as its last reader has ended, on that task's stream.

The tasks are submitted in the order of `dask.order`, by which few results are held at a time, and are admitted in that
order, as in any scope. They are submitted as late as possible while the streams stay busy (`AHEAD`), since their sizes
are known better by then, see `graph`. If there are no bytes for a task, the next one is submitted only when it is
admitted, so that none passes it: later tasks in the order would hold the bytes for longer. So no more bytes are held at
a time than that order needs, or the limit.

If the order needs more than the limit (a result larger than the limit, say), some task has to go first. When nothing is
in flight, and the first task in the order has no room, it is admitted all the same, without a charge, and its result is
charged. (The watch over stalls calls `_go_first`, as it calls others that can free bytes.) The log says so afterwards.

If tasks of a kind are known to take less time than a task of the scheduler costs, several are run as one task, in their
order. Each makes a number from numbers that such tasks made. So none of them waits for anything else.

Results are handed on as they are, as Dask's own threads do, and not as read-only views: they are no tensors, and a
graph's functions may write to their results.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from itertools import chain, islice
from time import perf_counter
from typing import Any, Final, TypeAlias

from dask.task_spec import Alias, DataNode, GraphNode

from .._core.failure import Failure
from .._core.model import PENDING, CallPlan, Lease, Task, Value, new_value
from .._core.model import Scope as CoreScope
from .._system import log
from ..devices.contract import Device
from ..devices.execution import Body
from ..errors import TaskCancelled
from ..flow.scope import Submitter
from ..runtime.runtime import Runtime
from ..runtime.waiting import ADMITTED, awaited, drained
from .graph import Kind, Sizes, nbytes
from .work import NUMBERS

AHEAD: Final = 32  # most tasks that wait for admission. A guess: half of those in flight by default
_BATCH: Final = 16  # tasks launched together
_TOGETHER: Final = 16  # quick tasks that one task runs. A guess, as the others

Part: TypeAlias = tuple[Any, GraphNode, Kind]  # a node of the graph, and its key


@dataclass(eq=False, repr=False)
class Run:
    """The tasks of one graph, from the first to the last.

    Args:
        runtime, device: where.
        nodes: those that the wanted keys need, in the order in which to submit them. The order is topological.
        wanted: whose results are kept.
        context: the tasks run in copies of it.
        watch: called on stream threads with a key before its task runs, and with the result after it; or None.
    """

    runtime: Runtime
    device: Device
    nodes: Mapping[Any, GraphNode]
    wanted: set[Any]
    sizes: Sizes
    context: Context
    watch: Callable[..., None] | None = None

    def __post_init__(self) -> None:
        self.failed: BaseException | None = None  # the exception of a task
        self.stopped: bool = False  # tasks that have not begun must not run any more
        self._lanes = self.runtime.lanes[self.device].compute
        # The result of each node, until all its readers are submitted; of wanted nodes until the end. `_held`: results
        # that were given. `_made`: the value of a task, and the key of the result in it.
        self._held: dict[Any, Any] = {}
        self._made: dict[Any, tuple[Value, Any]] = {}
        # How many nodes read each; a wanted node has one reader more.
        self._readers = Counter(chain(self.wanted, *(node.dependencies for node in self.nodes.values())))
        self._core: CoreScope | None = None
        self._waiting: asyncio.Task[Any] | None = None
        self._cancelled: Failure | None = None

    async def compute(self) -> dict[Any, Any]:
        """Run all, and return the wanted results by key; nothing if a task raised, see `failed`. If this is cancelled,
        it cancels tasks that have not begun and waits for the rest.

        Raises:
            TaskCancelled: if somebody cancelled its tasks.
        """
        runtime, before = self.runtime, self.runtime.ledger.peak_bytes
        submitter = Submitter(runtime)
        scope, around = submitter.scope(name="dask"), submitter._core()
        self._waiting = asyncio.current_task()
        runtime.reclaimers.add(self._go_first)
        try:
            async with scope:
                self._core = scope._core()
                await self._submit_all(self._core, around)
                await drained(runtime, self._core)
            if self.failed is not None:
                return {}
            if self._cancelled is not None:
                self._cancelled.rethrow()
            return {} if self.stopped else self._results()
        except asyncio.CancelledError:
            if self.failed is None or self._waiting is None or self._waiting.uncancel():
                raise
            return {}
        finally:
            self.stopped = True
            runtime.reclaimers.discard(self._go_first)
            self._core = self._waiting = None
            self._held.clear()
            self._made.clear()
            _tell(runtime, before, len(self.nodes))

    async def _submit_all(self, core: CoreScope, around: CoreScope) -> None:
        runtime, queue, account = self.runtime, core.queue, core.account
        ledger = runtime.ledger
        held = 0  # submitted since the last dispatch
        for parts in self._groups():
            if self.stopped:
                return
            if core.parent is not around:  # that was left, whether or not a task was there to be cancelled
                raise TaskCancelled(f"the graph was cancelled: scope {around.name!r}, in which it was called, was left")
            task = self._task(core, parts)
            limit = account.limit
            fits = limit is None or account.used + ledger.pending_bytes + task.cost <= limit
            runtime.submit(task, bounded=False, hold=True)
            held += 1
            if fits and held < _BATCH:
                continue
            held = 0
            runtime.dispatch()
            if not fits:
                await self._admitted(task)
            elif queue.live > AHEAD:
                await self._admitted(next(islice(queue, queue.live // 2, None)))
            else:
                await asyncio.sleep(0)

    async def _admitted(self, task: Task) -> None:
        """Wait until a task is launched. If somebody cancels it, no more are submitted."""
        if task.state == PENDING:
            await awaited(self.runtime, (task,), ADMITTED)
        if task.failure is not None:
            self.stopped, self._cancelled = True, task.failure

    def _groups(self) -> Iterator[Sequence[Part]]:
        """The nodes to run, in order: one by one, quick ones several at a time."""
        kind_of, quick = self.sizes.kind, list[Part]()
        for key, node in self.nodes.items():
            if isinstance(node, DataNode):
                self._held[key] = node.value
                continue
            if self.watch is None and isinstance(node, Alias):
                if quick:  # it may be one of them
                    yield quick
                    quick = []
                held: dict[Any, Any] = self._made if node.target in self._made else self._held
                held[key] = held[node.target]
                self._was_read(node)
                continue
            kind = kind_of(key, node)
            alone = not (kind.quick and all(a in self._held or kind_of(a).quick for a in node.dependencies))
            if quick and (alone or len(quick) == _TOGETHER):
                yield quick
                quick = []
            quick.append((key, node, kind))
            if alone:
                yield quick
                quick = []
        if quick:
            yield quick

    def _task(self, core: CoreScope, parts: Sequence[Part]) -> Task:
        """The task that runs some nodes, with all their inputs."""
        made, limit, cost = new_value(core.account, self.device, None), core.account.limit, 0
        keys, inputs, given = list[tuple[Any, Any]](), list[Value](), dict[Any, Any]()
        for key, node, kind in parts:
            cost += self.sizes.cost(kind, key, node)
            self._made[key] = made, key
            for other in node.dependencies:
                value, place = self._made.get(other, (None, None))
                if value is None:
                    given[other] = self._held[other]
                elif value is not made:
                    keys.append((other, place))
                    inputs.append(value)
            self._was_read(node)
        if limit is not None and cost > limit:  # a guess may be wrong: try it with the whole limit
            cost = limit
        body = Node(self, parts, keys, given)
        return Task(core, CallPlan(parts[0][2].name), made, body, tuple(inputs), None, None, self._lanes, cost)

    def _was_read(self, node: GraphNode) -> None:
        """Drop the inputs of which a node was the last reader."""
        for other in node.dependencies:
            self._readers[other] -= 1
            if not self._readers[other]:
                self._held.pop(other, None)
                self._made.pop(other, None)

    def _results(self) -> dict[Any, Any]:
        """The wanted results, by key, when all tasks have ended. Raises the error of a task."""
        found = {}
        for key in self.wanted:
            value, place = self._made.get(key, (None, None))
            if value is not None and value.failure is not None:
                value.failure.rethrow()
            found[key] = self._held[key] if value is None else value.array[place]
        return found

    def stop(self, error: BaseException) -> None:
        """A task raised: no more may run. On a stream's thread."""
        if not self.stopped:
            self.failed = error
            self.cancel()

    def cancel(self) -> None:
        """No more tasks may run. On any thread."""
        self.stopped = True
        assert self.runtime.loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.runtime.loop.call_soon_threadsafe(self._cancel_waiting)

    def _cancel_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    def _go_first(self) -> bool:
        """Nothing moves for want of bytes: admit the first task of this graph all the same."""
        core = self._core
        head = None if core is None else core.queue.peek()
        if core is None or head is None or not head.cost or not isinstance(head.call, Node):
            return False
        self.runtime.ledger.make_free(head)
        return True


class Node(Body):
    """Runs nodes of the graph, one after the other, on a stream's thread."""

    __slots__ = ("_given", "_keys", "_parts", "_run")

    def __init__(self, run: Run, parts: Sequence[Part], keys: Sequence[tuple[Any, Any]], given: dict[Any, Any]) -> None:
        self._run = run
        self._parts = parts
        self._keys = keys  # for each of the task's inputs: the node that is read, and the key of its result there
        self._given = given  # other results that are read, by node

    def run(self, task: Task) -> None:
        run, given, found, charged, result = self._run, self._given, dict[Any, Any](), 0, task.value
        assert result is not None
        for (key, place), value in zip(self._keys, task.inputs, strict=True):
            given[key] = value.array[place]
        for key, node, kind in self._parts:
            if run.stopped:
                return
            read = {other: given[other] for other in node.dependencies}
            try:
                if run.watch is not None:
                    run.watch(key)
                began = perf_counter()
                made = run.context.copy().run(node, read)
                seconds = perf_counter() - began
            except BaseException as error:
                trace = error.__traceback__
                # Without this frame, which holds charged results
                BaseException.with_traceback(error, None if trace is None else trace.tb_next)
                del trace
                run.stop(error)
                failure = Failure(error, task.name, None)
                failure.seen = True  # it is raised in the thread that computes the graph
                task.failure = failure
                return
            charge, source = nbytes(made, read)
            kind.measured(charge, seconds, source is None and isinstance(made, NUMBERS))
            for (other, _), value in zip(self._keys, task.inputs, strict=True) if source is not None else ():
                if other == source:
                    result.base = Lease(value.owner)
            charged += charge
            given[key] = found[key] = made
            if run.watch is not None:
                run.watch(key, made)
        result.array, result.charge = found, charged  # not `nbytes`: its readers are not charged for it
        task.refund = task.cost - charged


def _tell(runtime: Runtime, before: int, tasks: int) -> None:
    """Log it if tracked bytes passed the limit, and were higher than ever before."""
    limit, peak = runtime.ledger.account.limit, runtime.ledger.peak_bytes
    if limit is not None and peak > max(limit, before):
        log.warning(
            f"a graph of {tasks:,} Dask tasks took up to {peak:,} bytes, and the limit is {limit:,}: its order needs"
            " more at a time, or tasks made more than was known of them. Smaller chunks need less; or allow more by"
            " asyncsched.cluster.using(max_bytes=...)"
        )
