"""One graph of Dask's, computed within the bounds of a scheduler.

Theory of operation. A task of the graph is a task of the scheduler, and a dependency a value that it reads: so the
engine knows what waits for what, streams go on from one task to the next without the loop, and a result is freed by
its reference count as soon as the last task that reads it has ended, on that task's stream.

The tasks are submitted in the order of `dask.order`, which is made so that few results are held at a time, and admitted
in that order, as in any scope. They are submitted as late as keeps the streams busy (`AHEAD`), for what they take is
known better by then, see `sizes`; and one for which there are no bytes is waited for before the next is submitted, so
that nothing passes it: what comes later in the order would take up for longer what it frees. So no more is held at a
time than that order needs, or the limit.

Where the order needs more than that (a result larger than the limit, say), somebody has to go first: when nothing is
in flight, and the first in the order has no room, it is admitted all the same, for nothing, and what it makes is
charged. (`_go_first`, which the watch over stalls asks as it asks others for what they can spare.) That is told once
it has happened.

Results are handed on as they are, as Dask's own threads do, and not as read-only views: they are no tensors, and a
graph's functions may write to what they made.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextvars import Context
from itertools import islice
from typing import Any, Final

from dask._task_spec import Alias, DataNode, GraphNode

from .._core.failure import Failure
from .._core.model import PENDING, CallPlan, Task, new_value
from .._core.model import Scope as CoreScope
from .._log import Log
from ..devices.contract import Device
from ..flow.scope import Submitter
from ..runtime.runtime import Runtime
from ..runtime.waiting import ADMITTED, awaited, checkpoint, drained
from .node import Node
from .results import Results
from .sizes import Sizes

log = Log("asyncsched")

AHEAD: Final = 32  # tasks that wait for admission, at most. A guess: half of what is in flight by default
_BATCH: Final = 16  # launched together


class Run:
    """The tasks of one graph, from the first to the last.

    Args:
        runtime, device: where.
        nodes: what the wanted keys need, in the order in which it is to be submitted, and topological.
        wanted: whose results are kept.
        context: what the tasks run in copies of.
        watch: called on stream threads with a key before its task runs, and with the result after it, if anybody wants
            to know.
    """

    def __init__(
        self,
        runtime: Runtime,
        device: Device,
        nodes: Mapping[Any, GraphNode],
        wanted: set[Any],
        sizes: Sizes,
        context: Context,
        watch: Callable[..., None] | None = None,
    ) -> None:
        self.runtime = runtime
        self.nodes = nodes
        self.sizes = sizes
        self.context = context
        self.watch = watch
        self.error: BaseException | None = None
        self.failed: tuple[GraphNode, dict[Any, Any]] | None = None  # the task that raised, and what it was given
        self.stopped = False  # what has not begun is not to run any more
        self._lanes = runtime.lanes[device].compute
        self._device = device
        self._results = Results(nodes, wanted)
        self._core: CoreScope | None = None
        self._waiting: asyncio.Task[Any] | None = None
        self._cancelled: Failure | None = None

    async def compute(self) -> dict[Any, Any]:
        """Run all, and return what is wanted, by key; nothing where a task raised, see `error`. Cancelled, it cancels
        what has not begun and waits for the rest.

        Raises:
            TaskCancelled: if somebody cancelled its tasks.
        """
        runtime, before = self.runtime, self.runtime.ledger.peak_bytes
        scope = Submitter(runtime).scope(name="dask")
        self._waiting = asyncio.current_task()
        runtime.reclaimers.add(self._go_first)
        try:
            async with scope:
                self._core = scope._core()
                await self._submit_all(self._core)
                await drained(runtime, self._core)
            if self.error is not None:
                return {}
            if self._cancelled is not None:
                self._cancelled.rethrow()
            return {} if self.stopped else self._results.wanted()
        except asyncio.CancelledError:
            if self.error is None or self._waiting is None or self._waiting.uncancel():
                raise
            return {}
        finally:
            self.stopped = True
            runtime.reclaimers.discard(self._go_first)
            self._core = self._waiting = None
            self._results.clear()
            _tell(runtime, before, len(self.nodes))

    async def _submit_all(self, core: CoreScope) -> None:
        runtime, queue, account = self.runtime, core.queue, core.account
        ledger = runtime.ledger
        held = 0  # submitted since the last dispatch
        for key, node in self.nodes.items():
            if self.stopped:
                return
            task = self._task(core, key, node)
            if task is None:
                continue
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
                await checkpoint()

    async def _admitted(self, task: Task) -> None:
        """Wait until a task is launched, or cancelled by somebody: then nothing more is submitted."""
        if task.state == PENDING:
            await awaited(self.runtime, (task,), ADMITTED)
        if task.failure is not None:
            self.stopped, self._cancelled = True, task.failure

    def _task(self, core: CoreScope, key: Any, node: GraphNode) -> Task | None:
        """The task for a node, with all it reads; None where there is nothing to run."""
        results = self._results
        if isinstance(node, DataNode):
            results.data[key] = node.value
            return None
        keys, inputs, given = results.read(node)
        if self.watch is None and isinstance(node, Alias):
            if inputs:
                results.made[key] = inputs[0]
            else:
                results.data[key] = given[node.target]
            return None
        kind = self.sizes.kind(key, node)
        cost, limit = self.sizes.cost(kind, key, node), core.account.limit
        if limit is not None and cost > limit:  # a guess may be wrong: it is tried with all there is
            cost = limit
        made = results.made[key] = new_value(core.account, self._device, None)
        body = Node(self, key, node, kind, keys, given)
        return Task(core, CallPlan(kind.name), made, body, tuple(inputs), None, None, self._lanes, cost)

    def stop(self, error: BaseException, node: GraphNode, given: dict[Any, Any]) -> None:
        """A task raised: nothing more is to run. On a stream's thread."""
        if not self.stopped:
            self.error, self.failed = error, (node, given)
            self.cancel()

    def cancel(self) -> None:
        """Nothing more is to run. On any thread."""
        self.stopped = True
        assert self.runtime.loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.runtime.loop.call_soon_threadsafe(self._cancel_waiting)

    def _cancel_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    def _go_first(self) -> bool:
        """Nothing moves for want of bytes: the first task of this graph is admitted all the same."""
        core = self._core
        head = None if core is None else core.queue.peek()
        if core is None or head is None or not head.cost or not isinstance(head.call, Node):
            return False
        self.runtime.ledger.reprice(head, 0)
        return True


def _tell(runtime: Runtime, before: int, tasks: int) -> None:
    """Log that tracked bytes passed the limit, higher than ever."""
    limit, peak = runtime.ledger.account.limit, runtime.ledger.peak_bytes
    if limit is not None and peak > max(limit, before):
        log.warning(
            f"a graph of {tasks:,} Dask tasks took up to {peak:,} bytes, and the limit is {limit:,}: its order needs"
            " more at a time, or tasks made more than was known of them. Smaller chunks need less; or allow more by"
            " asyncsched.cluster.using(max_bytes=...)"
        )
