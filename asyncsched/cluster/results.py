"""What the tasks of a Dask graph make, for as long as somebody is to read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import Any

from dask._task_spec import GraphNode

from .._core.model import Value


class Results:
    """What each node of a graph gives, until all that read it are submitted, and what is wanted to the end.

    Attributes:
        made: by tasks.
        data: what was there.
    """

    def __init__(self, nodes: Mapping[Any, GraphNode], wanted: set[Any]) -> None:
        self.made: dict[Any, Value] = {}
        self.data: dict[Any, Any] = {}
        self._wanted = wanted
        # How many nodes read each; one that is asked for has one reader more.
        self._readers = Counter(chain(wanted, *(node.dependencies for node in nodes.values())))

    def read(self, node: GraphNode) -> tuple[list[Any], list[Value], dict[Any, Any]]:
        """What a node reads that is about to be submitted: keys and values of tasks, and data by key."""
        keys, inputs, given = [], [], {}
        for other in node.dependencies:
            value = self.made.get(other)
            if value is None:
                given[other] = self.data[other]
            else:
                keys.append(other)
                inputs.append(value)
            self._readers[other] -= 1
            if not self._readers[other]:
                self.made.pop(other, None)
                self.data.pop(other, None)
        return keys, inputs, given

    def wanted(self) -> dict[Any, Any]:
        """What is wanted, by key, when all has ended. Raises what a task of it failed with."""
        found = {}
        for key in self._wanted:
            value = self.made.get(key)
            if value is None:
                found[key] = self.data[key]
            else:
                if value.failure is not None:
                    value.failure.rethrow()
                found[key] = value.array
        return found

    def clear(self) -> None:
        self.made.clear()
        self.data.clear()
