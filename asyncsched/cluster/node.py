"""One task of a Dask graph, as the body of a task of ours."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol

from dask._task_spec import GraphNode

from .._core.failure import Failure
from .._core.model import Task
from ..devices.execution import Body
from .sizes import Kind, nbytes


class Running(Protocol):
    """What a node needs of the run of its graph."""

    stopped: bool
    context: Context
    watch: Callable[..., None] | None

    def stop(self, error: BaseException, node: GraphNode, given: dict[Any, Any]) -> None: ...


class Node(Body):
    """What runs a node of the graph on a stream's thread."""

    __slots__ = ("_given", "_key", "_keys", "_kind", "_node", "_run")

    def __init__(
        self, run: Running, key: Any, node: GraphNode, kind: Kind, keys: list[Any], given: dict[Any, Any]
    ) -> None:
        self._run = run
        self._key = key
        self._node = node
        self._kind = kind
        self._keys = keys  # of the inputs, in their order
        self._given = given  # what else it reads

    def run(self, task: Task) -> None:
        run, given = self._run, self._given
        if run.stopped:
            return
        for key, value in zip(self._keys, task.inputs, strict=True):
            given[key] = value.array
        try:
            if run.watch is not None:
                run.watch(self._key)
            made = run.context.copy().run(self._node, given)
        except BaseException as error:
            trace = error.__traceback__
            error.__traceback__ = None if trace is None else trace.tb_next  # this frame holds what is charged
            del trace
            run.stop(error, self._node, given)
            failure = Failure(error, task.name, None)
            failure.seen = True  # it is raised where the graph is computed
            task.failure = failure
            return
        charge, source = nbytes(made, given)
        self._kind.measured(charge)
        result = task.value
        assert result is not None
        if source is not None and source in self._keys:
            result.base = task.inputs[self._keys.index(source)].owner
        result.array = made
        result.charge = charge
        task.refund = task.cost - charge
        if run.watch is not None:
            run.watch(self._key, made)
