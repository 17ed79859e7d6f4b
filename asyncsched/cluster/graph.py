"""What a Dask graph says of the order of its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask._task_spec import DataNode, GraphNode, convert_legacy_graph
from dask.order import order


def in_order(graph: Mapping[Any, Any], wanted: set[Any], cache: Mapping[Any, Any]) -> dict[Any, GraphNode]:
    """What is needed for the wanted keys, in the order of `dask.order`: each after what it reads.

    Raises:
        KeyError: for a wanted key that is not there.
        ValueError: for one that a task reads and that is not there.
    """
    nodes = convert_legacy_graph(graph, all_keys={*graph, *cache})
    nodes |= {key: DataNode(key, made) for key, made in cache.items()}
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
