"""A graph of tasks and their inputs, as SVG and in notebooks."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import Any, Final
from unicodedata import east_asian_width

from .._system import write_text
from .layers import Curve, layout

MOST: Final = 60  # a picture with more boxes cannot be read
# For each state the colours of a box and of its frame. Text is dark on all of them, on light pages and on dark ones.
COLOURS: Final = {
    "pending": ("#fff3cd", "#c69500"),
    "launched": ("#cfe2ff", "#2f6fd6"),
    "done": ("#d9f2e0", "#2f9e5b"),
    "failed": ("#f8d7da", "#c93545"),
    "cancelled": ("#e9ecef", "#7a828a"),
}
_OTHER: Final = ("#f1f3f5", "#adb5bd")
_WIDTH, _HEIGHT, _MARGIN, _LEGEND = 172, 58, 16, 28
_NAME, _DETAIL = 20, 25  # narrow letters for which a box has room
# On a background of its own, light or dark as the reader's, with lines and text in contrast.
_STYLE: Final = "@media (prefers-color-scheme: dark) {.asc-graph {color: #adb5bd} .asc-page {fill: #16191d}}"
_TIMES: Final = "\N{MULTIPLICATION SIGN}"
_PAGE: Final = 'class="asc-page" fill="#fff"'


@dataclass(frozen=True, slots=True)
class Node:
    """One task, or a result.

    Attributes:
        name: of the operation or the function.
        shape, dtype: of the result, if it is an array.
        state: "pending", "launched", "done", "failed" or "cancelled".
        device: where it runs, or is.
        inputs: the places, in the same sequence, of the nodes that it reads.
        line: where it was submitted.
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
        """Equal for nodes that may be drawn as one."""
        return self.name, self.shape, self.dtype, self.state, self.device


class TaskGraph:
    """A graph of dependencies. Made by `s.graph()`, or of records of your own; a notebook shows the picture.

    >>> from asyncsched.observe import Node, TaskGraph
    >>> graph = TaskGraph([Node("put", (3,), "float64", "done"), Node("sum", (), "float64", inputs=(0,))])
    >>> graph
    TaskGraph(2 tasks: 1 done, 1 pending)

    Raises:
        ValueError: if the tasks go round in a circle, or read a node that is not there.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: tuple[Node, ...] = tuple(nodes)
        self._order = in_order([node.inputs for node in self.nodes])

    def svg(self, most: int = MOST) -> str:
        """A picture in columns, with each task to the right of its inputs. A graph that is too wide for a page goes on
        below.

        An arrow stands for all reads between two boxes, with their number if it is more than one.

        Args:
            most: boxes to draw. If there are more tasks, runs of equal tasks and equal parts are drawn as one, with
                their number. If there are still too many, the last are left out, and the picture says so.
        """
        boxes, left_out = collapse(self.nodes, self._order, most)
        devices = {node.device for node in self.nodes if node.device}
        found = layout([tuple(box.inputs) for box in boxes], _WIDTH, _HEIGHT)
        legend, end = _legend(self.nodes, left_out, found.height + _LEGEND - 12)
        width, height = max(end, found.width) + 2 * _MARGIN, found.height + _LEGEND + 2 * _MARGIN
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
            f' height="{height:.0f}" font-family="ui-monospace, Menlo, Consolas, monospace" role="img"'
            ' class="asc-graph" color="#57606a">',
            f"<title>{_xml(repr(self))}</title><style>{_STYLE}</style>",
            f'<rect {_PAGE} width="100%" height="100%" rx="8"/><g transform="translate({_MARGIN} {_MARGIN})">',
            '<g fill="none" stroke="currentColor" stroke-width="1.3">',
            *[_line(curve) for curve in (*found.shared, *found.edges.values())],
            "</g>",
            *[_box(box, *found.places[i], len(devices)) for i, box in enumerate(boxes)],
            '<g fill="currentColor" font-size="11">',
            *[_arrow(found.edges[read, i], times) for i, box in enumerate(boxes) for read, times in box.inputs.items()],
            f"</g>{legend}</g></svg>",
        ]
        return "\n".join(parts)

    def save(self, path: str | Path) -> None:
        """Write the picture, as SVG. ValueError for a name that says it is something else, as "graph.png"."""
        path = Path(path)
        if path.suffix not in ("", ".svg"):
            raise ValueError(f"the picture is SVG: save it as {path.with_suffix('.svg').name!r}, not {path.name!r}")
        write_text(path, self.svg())

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


def _joined(between: str, *texts: str) -> str:
    return between.join([text for text in texts if text])


def _details(node: Node) -> str:
    return _joined(" ", "" if node.shape is None else str(node.shape), node.dtype)


def _cut(text: str, most: int) -> str:
    """The text that fits. East Asian letters take two places, others one."""
    ends = [*accumulate(2 if east_asian_width(letter) in "WF" else 1 for letter in text)]
    return text if ends[-1:] <= [most] else text[: bisect_left(ends, most)] + "\N{HORIZONTAL ELLIPSIS}"


def _xml(text: str) -> str:
    """Escaped; XML has no control characters."""
    return escape(re.sub("[\x00-\x08\x0b-\x1f\ufffe\uffff]", "\N{REPLACEMENT CHARACTER}", text))


def _box(box: Box, x: float, y: float, devices: int) -> str:
    node, count = box.node, "" if box.count == 1 else f" {_TIMES}{box.count:,}"
    fill, frame = COLOURS.get(node.state, _OTHER)
    tip = _joined("\n", node.name + count, _joined(" ", _details(node), node.device), node.state, node.line)
    where = _joined(" ", re.sub(r".*[/\\]| in \S+$|^[^:]*$", "", node.line), node.device if devices > 1 else "")
    texts = [('font-size="13" font-weight="600"', _cut(node.name, _NAME - len(count)) + count)]
    small = _cut(_details(node), _DETAIL), _cut(where[::-1], _DETAIL)[::-1]  # the end of a place counts
    texts += [('font-size="11"', text) for text in small if text]
    top = y + 12.5 - 8 * len(texts)
    lines = [
        f'<text x="{x:.1f}" y="{top + 16 * i:.1f}" {font}>{_xml(text)}</text>' for i, (font, text) in enumerate(texts)
    ]
    return (
        f'<g text-anchor="middle" fill="#1b1f24"><title>{_xml(tip)}</title><rect x="{x - _WIDTH / 2:.1f}"'
        f' y="{y - _HEIGHT / 2:.1f}" width="{_WIDTH}" height="{_HEIGHT}" rx="7" fill="{fill}" stroke="{frame}"'
        f' stroke-width="1.5"/>{"".join(lines)}</g>'
    )


def _line(curve: Curve) -> str:
    (_, x, y), *rest = curve
    path = [f"M{x:.1f} {y:.1f}"]
    for bend, to_x, to_y in rest:
        path.append(f"H{to_x:.1f}" if to_y == y else f"C{bend:.1f} {y:.1f} {bend:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}")
        y = to_y
    return f'<path d="{"".join(path)}"/>'


def _arrow(curve: Curve, times: int) -> str:
    """The head of an arrow, and how many reads it stands for."""
    (_, before, above), (bend, x, y) = curve[-2:]
    head = f'<path d="M{x - 7:.1f} {y - 4:.1f}l7 4l-7 4z"/>'
    if times == 1:
        return head
    text, middle, between = f"{_TIMES}{times:,}", (before + 6 * bend + x) / 8, (above + y) / 2
    wide = 7 * len(text)
    return (
        f'{head}<rect {_PAGE} x="{middle - wide / 2:.1f}" y="{between - 13:.1f}" width="{wide}" height="11"/>'
        f'<text text-anchor="middle" x="{middle:.1f}" y="{between - 4:.1f}">{text}</text>'
    )


def _legend(nodes: Iterable[Node], left_out: int, y: float) -> tuple[str, float]:
    """The legend: the colour of each state with the number of its tasks, and how many tasks are not drawn. And where
    the legend ends."""
    states, parts, x = Counter(node.state for node in nodes), [], 0.0
    items = [(f"{states[state]:,} {state}", *colours) for state, colours in COLOURS.items() if states[state]]
    for text, fill, frame in items + [(f"{left_out:,} more are left out", "none", "none")] * bool(left_out):
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" rx="3" fill="{fill}" stroke="{frame}"/>')
        parts.append(f'<text x="{x + 17}" y="{y + 10}">{text}</text>')
        x += 32 + 7.5 * len(text)
    return f'<g font-size="12" fill="currentColor">{"".join(parts)}</g>', x


# -- collapsing -------------------------------------------------------------------------------------------------------
# A large graph is made readable: equal parts are drawn once, with their number. It takes two steps. Each is done only
# if there are still too many boxes, in time linear in the graph:
#
# 1. *Runs*: of a chain of equal tasks, each the only reader of the one before, one box.
# 2. *Equal parts*: tasks are alike if they are of one kind, and their inputs are alike, and their readers. Those are
#    one box. Tasks that are alike are equally deep, so no circle comes of it. (Two passes: down and up.)
#
# They are repeated as long as they find something: a fan-out of chains becomes a fan-out of boxes, and then one box. If
# there are still too many, the last ones are left out, since all others wait for the first ones.


@dataclass(frozen=True)
class Box:
    """One or several nodes that are drawn as one, with their inputs, by place among the boxes, and the number of
    reads."""

    node: Node
    count: int
    inputs: Mapping[int, int]


def in_order(inputs: Sequence[Sequence[int]]) -> list[int]:
    """The places, each after its inputs.

    Raises:
        ValueError: if there is no such order.
    """
    for place, reads in enumerate(inputs):
        for read in reads:
            if not 0 <= read < len(inputs):
                raise ValueError(f"node {place} reads node {read}, and there are {len(inputs)}")
    if all(read < place for place, reads in enumerate(inputs) for read in reads):
        return list(range(len(inputs)))
    try:
        return list(TopologicalSorter(dict(enumerate(inputs))).static_order())
    except CycleError as error:
        raise ValueError("the tasks go round in a circle: no task may read its own result") from error


def collapse(nodes: Sequence[Node], order: Sequence[int], most: int) -> tuple[list[Box], int]:
    """The boxes to draw, each after its inputs; and how many nodes are left out."""
    place = {node: i for i, node in enumerate(order)}
    boxes = [Box(nodes[i], 1, Counter(sorted([place[read] for read in nodes[i].inputs]))) for i in order]
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
    """For each box the first box of its run: a chain of one kind."""
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
    """The first box of each, with all others in it; still in order."""
    count, inputs, lines = Counter[int](), dict[int, Counter[int]](), dict[int, set[str]]()
    for place, box in enumerate(boxes):
        one = first[place]
        count[one] += box.count
        lines.setdefault(one, set()).add(box.node.line)
        reads = inputs.setdefault(one, Counter())
        for read, times in box.inputs.items():
            reads[first[read]] += times
    at = {place: i for i, place in enumerate(inputs)}
    found = []
    for one, reads in inputs.items():
        node = boxes[one].node if len(lines[one]) == 1 else replace(boxes[one].node, line="")
        found.append(Box(node, count[one], {at[read]: times for read, times in reads.items() if read != one}))
    order = in_order([tuple(box.inputs) for box in found])
    now = {place: i for i, place in enumerate(order)}
    return [
        replace(found[i], inputs=dict(sorted((now[read], times) for read, times in found[i].inputs.items())))
        for i in order
    ]
