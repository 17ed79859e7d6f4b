"""A graph of tasks and what they read, as text for Graphviz, as SVG, and in notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from html import escape
from pathlib import Path
from typing import Any, Final

from .layers import layout

MOST: Final = 60  # boxes that one can still read
# Of each state the colours of a box and of its frame. Text is dark on all of them, on a light page and on a dark one.
COLOURS: Final = {
    "pending": ("#fff3cd", "#c69500"),
    "launched": ("#cfe2ff", "#2f6fd6"),
    "done": ("#d9f2e0", "#2f9e5b"),
    "failed": ("#f8d7da", "#c93545"),
    "cancelled": ("#e9ecef", "#7a828a"),
}
_OTHER: Final = ("#f1f3f5", "#adb5bd")
_WIDTH, _HEIGHT, _MARGIN, _LEGEND = 164, 46, 16, 34
_NAME, _DETAIL = 19, 27  # characters that a box has room for


@dataclass(frozen=True, slots=True)
class Node:
    """One task, or a result that is there.

    Attributes:
        name: the operation's, or the function's.
        shape, dtype: of the result, if it is an array.
        state: "pending", "launched", "done", "failed" or "cancelled".
        device: where it runs, or is.
        inputs: the places, in the same sequence, of what it reads.
        line: the one that submitted it.
    """

    name: str
    shape: tuple[int | None, ...] | None = None
    dtype: str = ""
    state: str = "pending"
    device: str = ""
    inputs: tuple[int, ...] = ()
    line: str = ""

    @property
    def kind(self) -> tuple[Any, ...]:
        """What it has in common with others that are drawn as one."""
        return self.name, self.shape, self.dtype, self.state, self.device


class TaskGraph:
    """What depends on what. Made by `s.graph()`, or of records of your own; a notebook shows the picture.

    >>> from asyncsched.observe import Node, TaskGraph
    >>> graph = TaskGraph([Node("put", (3,), "float64", "done"), Node("sum", (), "float64", inputs=(0,))])
    >>> graph
    TaskGraph(2 tasks: 1 done, 1 pending)
    >>> print(graph.dot())
    digraph tasks {
      node [shape=box, style="filled,rounded", fontname="sans-serif"]
      0 [label="put\\n(3,) float64", fillcolor="#d9f2e0", color="#2f9e5b"]
      1 [label="sum\\n() float64", fillcolor="#fff3cd", color="#c69500"]
      0 -> 1
    }

    Raises:
        ValueError: if the tasks go round in a circle, or read what is not among them.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = tuple(nodes)
        self._order = in_order([node.inputs for node in self.nodes])

    def dot(self) -> str:
        """The whole graph in Graphviz's language."""
        lines = ["digraph tasks {", '  node [shape=box, style="filled,rounded", fontname="sans-serif"]']
        for place, node in enumerate(self.nodes):
            fill, frame = COLOURS.get(node.state, _OTHER)
            label = "\\n".join(_quoted(text) for text in (node.name, _details(node)) if text)
            lines.append(f'  {place} [label="{label}", fillcolor="{fill}", color="{frame}"]')
        lines += [
            f"  {read} -> {place}" for place, node in enumerate(self.nodes) for read in dict.fromkeys(node.inputs)
        ]
        return "\n".join([*lines, "}"])

    def svg(self, most: int = MOST) -> str:
        """A picture, in layers, each task below or to the right of what it reads.

        Args:
            most: boxes to draw. If there are more tasks, runs of equal ones and equal parts are drawn as one, with
                their number; then what is last is left out, which the picture says.
        """
        boxes, left_out = collapse(self.nodes, self._order, most)
        found = layout([box.inputs for box in boxes], _WIDTH, _HEIGHT)
        width, height = max(430.0, found.width + 2 * _MARGIN), found.height + 2 * _MARGIN + _LEGEND
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
            f' height="{height:.0f}" font-family="system-ui, sans-serif" role="img">',
            f"<title>{escape(repr(self))}</title>",
            f'<g transform="translate({_MARGIN} {_MARGIN})">',
            *[_curve(found.edges[read, i], found.downwards) for i, box in enumerate(boxes) for read in box.inputs],
            *[_box(box, *found.places[i]) for i, box in enumerate(boxes)],
            "</g>",
            _legend(self.nodes, left_out, height - _LEGEND + 6),
            "</svg>",
        ]
        return "\n".join(parts)

    def save(self, path: str | Path) -> None:
        """Write the picture, or for a name that ends in .dot or .gv the text for Graphviz."""
        path = Path(path)
        text = self.dot() if path.suffix in (".dot", ".gv") else self.svg()
        path.write_text(text, encoding="utf-8", errors="backslashreplace")  # names may have half of a surrogate pair

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_html_(self) -> str:
        return f'<div style="overflow:auto;max-height:800px">{self.svg()}</div>'

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        states = Counter(node.state for node in self.nodes)
        told = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
        return f"TaskGraph({len(self.nodes):,} task{'' if len(self.nodes) == 1 else 's'}{': ' * bool(told)}{told})"


def _details(node: Node) -> str:
    shape = "" if node.shape is None else str(node.shape)
    return " ".join(text for text in (shape, node.dtype, node.device) if text)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _box(box: Box, x: float, y: float) -> str:
    node = box.node
    fill, frame = COLOURS.get(node.state, _OTHER)
    times = "" if box.count == 1 else f" \N{MULTIPLICATION SIGN}{box.count:,}"
    name = _cut(node.name, _NAME - len(times)) + times
    tip = "\n".join(text for text in (node.name + times, _details(node), node.state, node.line) if text)
    left, top = x - _WIDTH / 2, y - _HEIGHT / 2
    details = _cut(_details(node), _DETAIL)
    shift = 3 if details else -4
    lines = f'<text x="{x:.1f}" y="{y - shift:.1f}" font-size="13" font-weight="600">{escape(name)}</text>'
    if details:
        lines += f'<text x="{x:.1f}" y="{y + 14:.1f}" font-size="11">{escape(details)}</text>'
    return (
        f'<g text-anchor="middle" fill="#1b1f24"><title>{escape(tip)}</title><rect x="{left:.1f}" y="{top:.1f}"'
        f' width="{_WIDTH}" height="{_HEIGHT}" rx="7" fill="{fill}" stroke="{frame}" stroke-width="1.5"/>'
        f"{lines}</g>"
    )


def _curve(points: list[tuple[float, float]], downwards: bool) -> str:
    """An arrow from a box to one that reads it."""
    (x, y), *rest = points
    path = [f"M{x:.1f} {y:.1f}"]
    for to_x, to_y in rest:
        half_x, half_y = (x + to_x) / 2, (y + to_y) / 2
        bends = (x, half_y, to_x, half_y) if downwards else (half_x, y, half_x, to_y)
        path.append("C" + " ".join(f"{number:.1f}" for number in (*bends, to_x, to_y)))
        x, y = to_x, to_y
    head = f"M{x - 4:.1f} {y - 7:.1f}l4 7l4 -7z" if downwards else f"M{x - 7:.1f} {y - 4:.1f}l7 4l-7 4z"
    return (
        f'<path d="{" ".join(path)}" fill="none" stroke="#8a929a" stroke-width="1.3"/><path d="{head}" fill="#8a929a"/>'
    )


def _legend(nodes: Iterable[Node], left_out: int, y: float) -> str:
    """Which colour is which state, and how many tasks are in it; what is not drawn."""
    states, parts, x = Counter(node.state for node in nodes), [], float(_MARGIN)
    for state, (fill, frame) in COLOURS.items():
        if states[state]:
            text = f"{states[state]:,} {state}"
            parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" rx="3" fill="{fill}" stroke="{frame}"/>')
            parts.append(f'<text x="{x + 17}" y="{y + 10}">{text}</text>')
            x += 32 + 6.5 * len(text)
    if left_out:
        parts.append(f'<text x="{x}" y="{y + 10}">{left_out:,} more are left out</text>')
    return f'<g font-size="12" fill="#8a929a">{"".join(parts)}</g>'


# -- collapsing -------------------------------------------------------------------------------------------------------
# A large graph is made readable: what is equal is drawn once, with its number. In two steps, each only if there are
# still too many boxes, and each in time linear in the graph:
#
# 1. *Runs*: of a chain of equal tasks, each the only reader of the one before, one box.
# 2. *Equal parts*: tasks are alike if they are of one kind, and so are all that they lead back to, and all that lead to
#    them. Those are one box. What is alike is equally deep, so no circle comes of it. (Two passes: down and up.)
#
# They are repeated as long as they find something: a fan-out of chains is first one of boxes, and then one box. What is
# too many even then is left out, from the end: what is first is what all the rest waits for.


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
    for place, reads in enumerate(inputs):
        for read in reads:
            if not 0 <= read < len(inputs):
                raise ValueError(f"node {place} reads node {read}, and there are {len(inputs)}")
    try:
        return list(TopologicalSorter(dict(enumerate(inputs))).static_order())
    except CycleError as error:
        raise ValueError("the tasks go round in a circle: nothing reads what it leads to") from error


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


def _merged(boxes: Sequence[Box], first: Sequence[int]) -> list[Box]:
    """The boxes that are the first of theirs, with all the others in them; still in order."""
    count: Counter[int] = Counter()
    inputs: dict[int, set[int]] = {}
    for place, box in enumerate(boxes):
        count[first[place]] += box.count
        inputs.setdefault(first[place], set()).update(first[read] for read in box.inputs)
    at = {place: i for i, place in enumerate(inputs)}
    found = [
        Box(boxes[p].node, count[p], tuple([at[read] for read in reads if read != p])) for p, reads in inputs.items()
    ]
    order = in_order([box.inputs for box in found])
    now = {place: i for i, place in enumerate(order)}
    return [replace(found[i], inputs=tuple(sorted([now[read] for read in found[i].inputs]))) for i in order]
