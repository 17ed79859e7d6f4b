"""Making a large graph readable: what is equal is drawn once, with its number.

Theory of operation. Three steps, each only if there are still too many boxes, and each in time linear in the graph:

1. *Runs*: of a chain of equal tasks, each the only reader of the one before, one box.
2. *Equal parts*: tasks are alike if they are of one kind, and so are all that they lead back to, and all that lead to
   them. Those are one box. What is alike is equally deep, so no circle comes of it. (Two passes: down and up.)
3. *Stretches*: of a long chain of different tasks the first and the last, and a box that stands for those between.

The first two are repeated as long as they find something: a fan-out of chains is first one of boxes, and then one box.
What is too many even then is left out, from the end: what is first is what all the rest waits for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from .node import Node

_KEPT = 2  # boxes of a stretch, at each of its ends


@dataclass(frozen=True)
class Box:
    """One or several nodes that are drawn as one; what it reads, by place among the boxes."""

    node: Node
    count: int
    inputs: tuple[int, ...]


def in_order(inputs: Sequence[Sequence[int]]) -> list[int]:
    """The places, each after those it reads.

    Raises:
        ValueError: if there is no such order.
    """
    readers: list[list[int]] = [[] for _ in inputs]
    missing = []
    for place, reads in enumerate(inputs):
        missing.append(len(set(reads)))
        for read in set(reads):
            if not 0 <= read < len(inputs):
                raise ValueError(f"node {place} reads node {read}, and there are {len(inputs)}")
            readers[read].append(place)
    order = [place for place, count in enumerate(missing) if not count]
    for place in order:  # the list grows meanwhile
        for reader in readers[place]:
            missing[reader] -= 1
            if not missing[reader]:
                order.append(reader)
    if len(order) < len(inputs):
        raise ValueError("the tasks go round in a circle: nothing reads what it leads to")
    return order


def collapse(nodes: Sequence[Node], order: Sequence[int], most: int) -> tuple[list[Box], int]:
    """The boxes to draw, each after those it reads; and how many nodes are left out."""
    place = {node: i for i, node in enumerate(order)}
    boxes = [Box(nodes[i], 1, tuple(sorted({place[read] for read in nodes[i].inputs}))) for i in order]
    before = len(boxes) + 1
    while most < len(boxes) < before:
        before = len(boxes)
        for step in (_runs, _alike):
            if len(boxes) > most:
                boxes = _merged(boxes, step(boxes))
    if len(boxes) > most:
        boxes = _merged(boxes, _stretches(boxes), _between)
    return boxes[:most], sum(box.count for box in boxes[most:])


def _readers(boxes: Sequence[Box]) -> list[list[int]]:
    readers: list[list[int]] = [[] for _ in boxes]
    for place, box in enumerate(boxes):
        for read in box.inputs:
            readers[read].append(place)
    return readers


def _runs(boxes: Sequence[Box]) -> list[int]:
    """For each box the first box of the run that it belongs to: a chain of one kind."""
    readers, first = _readers(boxes), list(range(len(boxes)))
    for place, box in enumerate(boxes):
        if len(box.inputs) == 1:
            (read,) = box.inputs
            if len(readers[read]) == 1 and boxes[read].node.kind == box.node.kind:
                first[place] = first[read]
    return first


def _alike(boxes: Sequence[Box]) -> list[int]:
    """For each box the first one with equal kind, equal inputs and equal readers, all the way down and up."""
    readers, known = _readers(boxes), dict[Hashable, int]()
    down, up = [0] * len(boxes), [0] * len(boxes)
    for place, box in enumerate(boxes):
        down[place] = known.setdefault((box.node.kind, frozenset([down[read] for read in box.inputs])), len(known))
    for place in range(len(boxes) - 1, -1, -1):
        up[place] = known.setdefault((down[place], frozenset([up[reader] for reader in readers[place]]), 0), len(known))
    first: dict[int, int] = {}
    return [first.setdefault(colour, place) for place, colour in enumerate(up)]


def _stretches(boxes: Sequence[Box]) -> list[int]:
    """For each box in the middle of a long stretch, a chain of any kinds, the first of these; for others itself."""
    readers, first = _readers(boxes), list(range(len(boxes)))
    followed = [len(readers[i]) == 1 and len(boxes[readers[i][0]].inputs) == 1 for i in range(len(boxes))]
    for start in range(len(boxes)):
        if not followed[start] or (len(boxes[start].inputs) == 1 and followed[boxes[start].inputs[0]]):
            continue
        stretch = [start]
        while followed[stretch[-1]]:
            stretch.append(readers[stretch[-1]][0])
        for place in stretch[_KEPT:-_KEPT] if len(stretch) > 2 * _KEPT + 1 else ():
            first[place] = stretch[_KEPT]
    return first


def _between(box: Box, count: int) -> Node:
    """What is drawn for several different boxes, of which this is the first."""
    if count == box.count:
        return box.node
    return Node(f"{count:,} more", state="")


def _merged(
    boxes: Sequence[Box], first: Sequence[int], drawn: Callable[[Box, int], Node] = lambda box, _: box.node
) -> list[Box]:
    """The boxes that are the first of theirs, with all the others in them; still in order."""
    count: Counter[int] = Counter()
    inputs: dict[int, set[int]] = {}
    for place, box in enumerate(boxes):
        count[first[place]] += box.count
        inputs.setdefault(first[place], set()).update(first[read] for read in box.inputs)
    at = {place: i for i, place in enumerate(inputs)}
    found = [
        Box(drawn(boxes[p], count[p]), count[p], tuple([at[read] for read in reads if read != p]))
        for p, reads in inputs.items()
    ]
    order = in_order([box.inputs for box in found])
    now = {place: i for i, place in enumerate(order)}
    return [replace(found[i], inputs=tuple(sorted([now[read] for read in found[i].inputs]))) for i in order]
