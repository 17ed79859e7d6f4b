"""The information in a Dask graph: the order of its tasks, and the bytes that each will make.

Theory of operation. A graph names functions and not sizes, but bounds need sizes before a task runs. There are three
sources. (1) *Declared*: the layers of Dask's arrays have their chunks and dtype, so a block's bytes are known. If Dask
has fused several tasks into one, the blocks in between are workspace; in a chain at most two of them exist at a time.
The block that a step of a reduction makes of its inputs is workspace, too. (2) *Measured*: `dask.sizeof` of each
result. From the first result of a layer on, a measured size overrides a declared one: reductions declare for their
first step the size of its inputs, and objects declare nothing. (3) *Guessed*: until a task of a name was measured, each
is charged the bytes of its inputs, or a share of the limit, so that few of them run at once; and no less than a task of
that name made in an earlier graph.

One private name of Dask is used: `convert_legacy_graph` of `dask._task_spec` (seen in 2026.1 and in 2026.8), which
makes nodes of a graph's tuples. If it is gone, `_converted` does that by public names, and such a task takes longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any, Final, TypeAlias

import numpy as np
from dask import core
from dask.highlevelgraph import HighLevelGraph
from dask.order import order
from dask.sizeof import sizeof
from dask.task_spec import DataNode, GraphNode, List, Task, TaskRef

from ..devices.memory import held_bytes, owner_of
from .work import NUMBERS

Told: TypeAlias = tuple[tuple[tuple[int, ...], ...], int]  # chunks, and the bytes of an element

_SMALL: Final = 128  # a result of at most so many bytes is not counted
_FEW: Final = 16  # the most parts of a result that are looked at one by one
_REMEMBERED: Final = 1024  # names
_QUICK: Final = 30e-6  # seconds: less than the cost of a task of the scheduler
_LATEST: Final = 0.1  # the weight of the last task of a kind in the estimate for the next

# By a task's name without its token, the most bytes that such a task made. Streams write it; each write is one step.
_known: dict[str, int] = {}


def in_order(graph: Mapping[Any, Any], wanted: set[Any]) -> dict[Any, GraphNode]:
    """The nodes that the wanted keys need, in the order of `dask.order`: each after its inputs.

    Raises:
        KeyError: for a wanted key that is missing.
        ValueError: for a key that a task reads and that is missing.
    """
    nodes = _nodes(graph, set(graph))
    for key in wanted:
        if key not in nodes:
            raise KeyError(key)
    needed, todo = set(wanted), list(wanted)
    while todo:
        key = todo.pop()
        for other in nodes[key].dependencies:
            if other not in needed:
                if other not in nodes:
                    raise ValueError(f"Missing dependency {other!r} for {key!r}")
                needed.add(other)
                todo.append(other)
    return {key: nodes[key] for key in sorted(needed, key=order(nodes).__getitem__)}


def _nodes(graph: Mapping[Any, Any], keys: set[Any]) -> dict[Any, GraphNode]:
    """A graph's tasks as Dask's nodes. Most are nodes already; others are tuples of functions and arguments."""
    try:
        from dask._task_spec import convert_legacy_graph
    except ImportError:
        return dict(_converted(graph, keys))
    found: dict[Any, GraphNode] = convert_legacy_graph(graph, all_keys=keys)
    return found


def _converted(graph: Mapping[Any, Any], keys: set[Any]) -> Iterator[tuple[Any, GraphNode]]:
    """As `_nodes`, by public names alone: `dask.core.get` computes tasks that are no nodes."""
    for key, made in graph.items():
        reads = core.keys_in_tasks(keys, [made], as_list=True)
        node = Task(key, _computed, key, DataNode(None, made), reads, *map(TaskRef, reads))
        yield key, made if isinstance(made, GraphNode) else node


def _computed(key: Any, made: Any, reads: list[Any], *values: Any) -> Any:
    return core.get({key: made}, [key], cache=dict(zip(reads, values, strict=True)))[0]


@dataclass(slots=True, eq=False)
class Kind:
    """The known sizes and times of tasks of one layer, or of one name."""

    name: str
    layer: Told | None
    workspace: tuple[int, ...]  # of the two largest blocks within a task
    joins: bool  # it makes one block of its inputs, and reduces that
    made: int = -1  # the most that one task has made so far
    numbers: bool = True  # all bytes that they made so far
    seconds: float = inf  # that a task takes, lately
    largest: int = field(init=False)  # the bytes of its largest block, if the layer tells

    def __post_init__(self) -> None:
        self.largest = _most(self.layer)

    @property
    def quick(self) -> bool:
        """Whether such a task is known to make a number, in less time than the cost of a task of the scheduler."""
        return self.seconds < _QUICK and self.numbers and not self.made and not self.workspace[0]

    def measured(self, nbytes: int, seconds: float, number: bool) -> None:
        """A task made so many bytes, in this time. On a stream's thread."""
        seconds = min(seconds, 10 * _QUICK)  # a task that was kept waiting says little of the others
        self.seconds = seconds if self.seconds == inf else self.seconds * (1 - _LATEST) + seconds * _LATEST
        self.numbers = self.numbers and number
        if nbytes > self.made:
            self.made = nbytes
            if self.layer is None:
                if len(_known) >= _REMEMBERED:
                    _known.clear()
                _known[self.name] = max(nbytes, _known.get(self.name, 0))

    def output(self, key: Any) -> int | None:
        """The bytes that the task with this key will make, if known."""
        made, told = self.made, self.largest
        if self.layer is None:
            return made if made >= 0 else None
        chunks, itemsize = self.layer
        if type(key) is tuple and len(key) == len(chunks) + 1:
            told = itemsize * prod(sizes[i] for sizes, i in zip(chunks, key[1:], strict=True))
        return told if made < 0 else min(made, told) if made <= self.largest else made


class Sizes:
    """The sizes of one graph's tasks.

    Args:
        source: the argument of `get`.
        share: the charge of a task of unknown size.
    """

    def __init__(self, source: object, share: int) -> None:
        self._share = share
        self._told = dict(_told(source))
        self._kinds: dict[str, Kind] = {}

    def kind(self, key: Any, node: GraphNode | None = None) -> Kind:
        """The kind of a task."""
        name = _name(key)
        found = self._kinds.get(name)
        if found is None:
            inner, made = _within(node)
            told = self._told.get(_layer(key if made is None else made))
            sizes = sorted((_most(self._told.get(_layer(other))) for other in inner), reverse=True)
            found = self._kinds[name] = Kind(_prefix(name), told, (*sizes, 0, 0)[:2], told is not None and _joins(node))
        return found

    def cost(self, kind: Kind, key: Any, node: GraphNode) -> int:
        """The charge of a task: the bytes that it will make, and those that it needs meanwhile."""
        output = kind.output(key)
        if output is None:
            known = [self.kind(other).output(other) for other in node.dependencies]
            guess = sum(self._share if n is None else n for n in known) if known else self._share
            output = max(guess, _known.get(kind.name, 0))
        largest, second = kind.workspace
        if kind.joins:
            output += sum(self.kind(other).output(other) or 0 for other in node.dependencies)
        return largest + max(output, second) if largest else output


def nbytes(made: object, values: Mapping[Any, Any]) -> tuple[int, Any]:
    """The bytes of a task's result that were not there before, and the key among `values` of which it is a view."""
    if isinstance(made, NUMBERS):
        return 0, None
    for key, value in values.items():
        if value is made:
            return 0, key
    if isinstance(made, np.ndarray):
        if made.base is not None:
            owner = owner_of(made)
            for key, value in values.items():
                if isinstance(value, np.ndarray) and owner_of(value) is owner:
                    return 0, key
        return _worth_it(held_bytes(made)), None
    if isinstance(made, dict | list | tuple) and len(made) <= _FEW:
        return sum(nbytes(part, values)[0] for part in (made.values() if isinstance(made, dict) else made)), None
    try:
        return _worth_it(int(sizeof(made))), None
    except Exception:  # a user's object may not know its size
        return 0, None


def _worth_it(size: int) -> int:
    return size if size > _SMALL else 0


def _most(told: Told | None) -> int:
    """The bytes of the largest block."""
    return 0 if told is None else told[1] * prod(max(sizes, default=0) for sizes in told[0])


def _told(source: object) -> dict[str, Told]:
    """The chunks and the bytes of an element, of each layer that has them: of a graph, or an expression."""
    expressions = source.walk() if hasattr(source, "walk") else ()
    found = {}
    for graph in (source, *[getattr(expression, "hlg", None) for expression in expressions]):
        for name, layer in graph.layers.items() if isinstance(graph, HighLevelGraph) else ():
            told = getattr(layer, "collection_annotations", None) or {}
            chunks, dtype = told.get("chunks"), told.get("dtype")
            if chunks is None or not isinstance(dtype, np.dtype) or dtype.hasobject:
                continue
            if all(isinstance(n, int | np.integer) for sizes in chunks for n in sizes):  # else not known yet
                found[name] = (chunks, dtype.itemsize)
    return found


def _within(node: GraphNode | None) -> tuple[list[Any], Any]:
    """The keys of intermediate blocks in a fused task, and the key of its result."""
    if not isinstance(node, Task) or not node.has_subgraph():
        return [], None
    inner, made = node.args[:2]
    keys = [key for key in inner if key != made]
    deeper, last = _within(inner.get(made))
    return [*keys, *deeper], made if last is None else last


def _joins(node: GraphNode | None) -> bool:
    """Whether a node reads a list of blocks, as later steps of reductions do."""
    return isinstance(node, Task) and any(
        isinstance(arg, List) or (isinstance(arg, Task) and arg.kwargs.get("typ") is list) for arg in node.args
    )


def _layer(key: Any) -> str:
    """The layer of a key. Dask numbers fused tasks behind `_.`"""
    name = key[0] if type(key) is tuple and key else key
    return name.partition("_.")[0] if isinstance(name, str) else ""


def _name(key: Any) -> str:
    if type(key) is tuple and key:
        key = key[0]
    elif isinstance(key, str):
        return _prefix(key)  # a single key, as `delayed` makes them
    return key if isinstance(key, str) else type(key).__name__


def _prefix(name: str) -> str:
    """A task's name without the token behind it."""
    return name.rpartition("-")[0] or name.rstrip("0123456789")
