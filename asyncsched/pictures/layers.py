"""The places of the boxes of a graph: in columns, each box to the right of its inputs, folded into rows like a text.

Theory of operation, after Sugiyama, Tagawa and Toda (1981). The layer of a box is the first one with room to the right
of all its inputs. So many independent boxes make several short layers and not a tall one (the bound of Coffman and
Graham, 1972). A box without inputs then moves as near to its first reader as there is room. An edge that goes beyond
the next layer gets a *bend* in each layer on its way. A bend takes part as a narrow box, so no edge runs through a box.
All readers of a box share its bends. Then come sweeps, to the right and to the left. In each, every layer moves its
boxes towards the mean place of their neighbours along edges, as far as the other boxes let them. In the first half of
the sweeps it sorts them by that place, too.

A picture should be wider than tall, since a page scrolls downwards. So layers are folded into as many rows as leave it
wider than tall. An edge to the next row leaves at the right, runs back between the rows, and enters at the left. The
topmost edge is outside, so edges that keep their order do not cross.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

Point = tuple[float, float]
Curve = list[tuple[float, float, float]]
"""A point, then for each piece (x of both of its control points, x and y of its end). In the point the x stands twice.
"""

_SWEEPS: Final = 12
_WORK: Final = 100_000  # spots to move, in all sweeps together: a very large graph gets fewer sweeps
_BEND: Final = 10.0  # the place in a layer of an edge that passes through it
_BESIDE: Final = 16.0  # between boxes of a layer
_BETWEEN: Final = 36.0  # between layers
_ROW: Final = 6  # layers in a row that are as wide as a page
_WIDER: Final = 1.2  # a picture is at least so many times as wide as tall
_LANE, _TURN = 4.0, 12.0  # between edges to the next row; how far beyond a row the innermost edge turns


@dataclass(frozen=True)
class Layout:
    """The places of boxes and edges, and the size of the picture.

    Attributes:
        places: the middles of the boxes.
        edges: (from, to) and the curve, from the box, or from the last bend that its readers share.
        shared: the curves through these bends, one for each box that has some.
    """

    places: list[Point]
    edges: dict[tuple[int, int], Curve]
    shared: list[Curve]
    width: float
    height: float


@dataclass(eq=False, slots=True)
class _Spot:
    """A place in a layer: of a box, or of a bend."""

    layer: int
    breadth: float
    before: list[_Spot]
    after: list[_Spot]
    at: float = 0.0  # across its layer
    lane: int = 0  # how many spots of its layer, up to this one, have an edge to the next row


def layout(inputs: Sequence[Sequence[int]], width: float, height: float) -> Layout:
    """Place boxes of one size. Each reads boxes that come before it."""
    spots = [_Spot(layer, height + _BESIDE, [], []) for layer in _layers(inputs)]
    layers: list[list[_Spot]] = [[] for _ in range(1 + max([spot.layer for spot in spots], default=-1))]
    for spot in spots:
        layers[spot.layer].append(spot)
    chains, ends = [[spot] for spot in spots], {}  # each box with its bends; where each edge begins and ends
    for reader, reads in enumerate(inputs):
        for read in reads:
            chain = chains[read]
            while chain[-1].layer < spots[reader].layer - 1:
                bend = _Spot(chain[-1].layer + 1, _BEND, [], [])
                layers[bend.layer].insert(len(layers[bend.layer]) // 2, bend)
                _join(chain[-1], bend)
                chain.append(bend)
            ends[read, reader] = chain[spots[reader].layer - 1 - spots[read].layer], spots[reader]
            _join(*ends[read, reader])
    _arrange(layers)
    rows = _folded(layers, width)
    edges = {edge: rows.curve(both) for edge, both in ends.items()}
    shared = [rows.curve(chain) for chain in chains if len(chain) > 1]
    return Layout([rows.point(spot) for spot in spots], edges, shared, *rows.size)


def _layers(inputs: Sequence[Sequence[int]]) -> list[int]:
    """The layer of each box."""
    most = max(_ROW, int(1.4 * len(inputs) ** 0.5))
    taken, layers, first = Counter[int](), list[int](), dict[int, int]()
    for reads in inputs:
        layer = 1 + max([layers[read] for read in reads], default=-1)
        while taken[layer] >= most:
            layer += 1
        taken[layer] += 1
        layers.append(layer)
        for read in reads:
            first[read] = min(first.get(read, layer), layer)
    for place in range(len(inputs) - 1, -1, -1):
        if not inputs[place] and place in first:
            free = (layer for layer in range(first[place] - 1, layers[place], -1) if taken[layer] < most)
            taken[layers[place]] -= 1
            layers[place] = next(free, layers[place])
            taken[layers[place]] += 1
    numbers = {layer: number for number, layer in enumerate(sorted(set(layers)))}
    return [numbers[layer] for layer in layers]


def _join(before: _Spot, after: _Spot) -> None:
    before.after.append(after)
    after.before.append(before)


def _arrange(layers: list[list[_Spot]]) -> None:
    """Give every spot its place across its layer: in the first sweeps the order may change, later not."""
    for layer in layers:
        _pack(layer, [0.0] * len(layer))
    sweeps = max(2, min(_SWEEPS, _WORK // (1 + sum(map(len, layers)))))
    for sweep in range(2 * sweeps):
        down, sorts = sweep % 2 == 0, sweep < sweeps
        for layer in layers if down else layers[::-1]:
            if sorts:
                layer.sort(key=lambda spot: _mean(spot.before if down else spot.after, spot))
            first = sweep < 2 * sweeps - 2  # in the last two sweeps both sides count
            _pack(layer, [_mean((first and spot.before) or spot.before + spot.after, spot) for spot in layer])


def _mean(joined: Sequence[_Spot], spot: _Spot) -> float:
    """The mean place of the spots to which a spot is joined; its own if there are none."""
    return sum([other.at for other in joined]) / len(joined) if joined else spot.at


def _pack(layer: list[_Spot], wanted: list[float]) -> None:
    """Put the spots of a layer, in order, as near to their wanted places as their breadths allow.

    Groups that touch move as one, to the mean of their wanted places (this is isotonic regression).
    """
    groups: list[tuple[float, int]] = []  # how far each group moves, and how many are in it
    offsets, edge = [], 0.0
    for spot in layer:
        offsets.append(edge + spot.breadth / 2)
        edge += spot.breadth
    for offset, where in zip(offsets, wanted, strict=True):
        shift, count = where - offset, 1
        while groups and groups[-1][0] > shift:
            before, others = groups.pop()
            shift, count = (before * others + shift * count) / (others + count), others + count
        groups.append((shift, count))
    shifts = [shift for shift, count in groups for _ in range(count)]
    for spot, offset, shift in zip(layer, offsets, shifts, strict=True):
        spot.at = offset + shift


@dataclass(frozen=True)
class _Rows:
    """Layers in rows.

    Attributes:
        each: layers in a row.
        box: the width of a box.
        lanes: for each layer, how many of its spots are read in a later row.
        tops: for each row the offset of the places across its layers.
        ends: for each row where it ends.
        beside: the room for turns at the left and at the right.
    """

    each: int
    box: float
    lanes: Sequence[int]
    tops: Sequence[float]
    ends: Sequence[float]
    beside: float

    @classmethod
    def of(cls, layers: Sequence[Sequence[_Spot]], box: float, rows: int) -> _Rows:
        each, lanes = max(1, -(-len(layers) // rows)), [layer[-1].lane for layer in layers]
        tops, ends = list[float](), list[float]()
        for begin in range(0, len(layers), each):
            row = [spot for layer in layers[begin : begin + each] for spot in (layer[0], layer[-1])]
            above = ends[-1] + _TURN + _LANE * lanes[begin - 1] if ends else 0.0
            tops.append(above - min([spot.at - spot.breadth / 2 for spot in row]))
            ends.append(tops[-1] + max([spot.at + spot.breadth / 2 for spot in row]))
        turns = [_TURN + _LANE * lanes[last] for last in range(each - 1, len(layers) - 1, each)]
        return cls(each, box, lanes, tops, ends, max(turns, default=0.0))

    @property
    def size(self) -> tuple[float, float]:
        return self.each * (self.box + _BETWEEN) - _BETWEEN + 2 * self.beside, max(self.ends, default=0.0)

    def point(self, spot: _Spot, side: float = 0.0) -> Point:
        """The middle of a spot; with a side of -0.5 or 0.5, that of its left or right edge."""
        row, column = divmod(spot.layer, self.each)
        return self.beside + column * (self.box + _BETWEEN) + (0.5 + side) * self.box, self.tops[row] + spot.at

    def curve(self, chain: Sequence[_Spot]) -> Curve:
        """A curve from the first spot, through those between, to the last one, and through that if it is a bend."""
        x, y = self.point(chain[0], 0.5)
        found = [(x, x, y)]
        for before, spot in pairwise(chain):
            to_x, to_y = self.point(spot, -0.5)
            if spot.layer % self.each == 0:  # in the next row
                inside, outside = before.lane, self.lanes[before.layer] + 1 - before.lane
                between = self.ends[before.layer // self.each] + _LANE * outside
                right, left = (4 / 3 * (_TURN + _LANE * lane) for lane in (outside, inside))
                found += [(x + right, x, between), (x, to_x, between), (to_x - left, to_x, to_y)]
            else:
                found.append(((x + to_x) / 2, to_x, to_y))
            x, y = to_x, to_y
            if spot.breadth == _BEND:
                x, y = self.point(spot, 0.5)
                found.append((x, x, y))
        return found


def _folded(layers: list[list[_Spot]], box: float) -> _Rows:
    """The largest number of rows with which the picture is wider than tall; at least one."""
    for layer in layers:
        lane = 0
        for spot in layer:
            lane += bool(spot.after)
            spot.lane = lane
    for rows in range(max(1, -(-len(layers) // _ROW)), 0, -1):
        found = _Rows.of(layers, box, rows)
        width, height = found.size
        if width >= _WIDER * height:
            break
    return found
