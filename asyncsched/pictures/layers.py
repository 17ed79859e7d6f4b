"""Where to draw the boxes of a graph: in layers, each below (or to the right of) all that it reads.

Theory of operation, after Sugiyama, Tagawa and Toda (1981). The layer of a box is the longest way to it; of one that
reads nothing, the one before its first reader. An edge that passes layers gets a *bend* in each, which
takes part as a narrow box, so that no edge runs through a box. Then come sweeps, down and up, in which each layer moves
its boxes towards the mean place of what they are joined to, as far as their neighbours let them; in the first half of
the sweeps it sorts them by that, too. A wide graph is turned, so that its layers are columns: a page scrolls downwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

Point = tuple[float, float]

_SWEEPS: Final = 12
_BEND: Final = 14.0  # the place in a layer of an edge that passes through it
_BESIDE: Final = 18.0  # between boxes of a layer
_BETWEEN: Final = 44.0  # between layers


@dataclass(frozen=True)
class Layout:
    """Where the middles of the boxes are, the points of each edge (from, to), and how large all of it is."""

    places: list[Point]
    edges: dict[tuple[int, int], list[Point]]
    width: float
    height: float
    downwards: bool


@dataclass(eq=False)
class _Spot:
    """A place in a layer: of a box, or of a bend in an edge."""

    layer: int
    breadth: float
    before: list[_Spot]
    after: list[_Spot]
    at: float = 0.0  # across its layer


def layout(inputs: Sequence[Sequence[int]], width: float, height: float) -> Layout:
    """Place boxes of one size, of which each reads some that come before it."""
    depth: list[int] = []
    for reads in inputs:
        depth.append(1 + max([depth[read] for read in reads], default=-1))
    first: dict[int, int] = {}
    for reader, reads in enumerate(inputs):
        for read in reads:
            first[read] = min(first.get(read, depth[reader]), depth[reader])
    depth = [depth[i] if reads else first.get(i, 1) - 1 for i, reads in enumerate(inputs)]
    widest = max([depth.count(layer) for layer in set(depth)], default=0)
    downwards = widest <= max(3, len(set(depth)))
    across, along = (width, height) if downwards else (height, width)
    spots = [_Spot(layer, across, [], []) for layer in depth]
    chains, layers = _chains(inputs, spots)
    _arrange(layers)
    return _drawn(spots, chains, across, along, downwards)


def _chains(
    inputs: Sequence[Sequence[int]], spots: list[_Spot]
) -> tuple[dict[tuple[int, int], list[_Spot]], list[list[_Spot]]]:
    """Each edge as spots from layer to layer, and the spots of each layer."""
    layers: list[list[_Spot]] = [[] for _ in range(1 + max([spot.layer for spot in spots], default=-1))]
    for spot in spots:
        layers[spot.layer].append(spot)
    chains = {}
    for reader, reads in enumerate(inputs):
        for read in reads:
            chain = [spots[read]]
            for layer in range(spots[read].layer + 1, spots[reader].layer):
                bend = _Spot(layer, _BEND, [], [])
                layers[layer].append(bend)
                chain.append(bend)
            chain.append(spots[reader])
            for above, below in pairwise(chain):
                above.after.append(below)
                below.before.append(above)
            chains[read, reader] = chain
    return chains, layers


def _arrange(layers: list[list[_Spot]]) -> None:
    """Give every spot its place across its layer: first also among its neighbours, then with these as they are."""
    for layer in layers:
        _pack(layer, [0.0] * len(layer))
    for sweep in range(2 * _SWEEPS):
        down, sorts = sweep % 2 == 0, sweep < _SWEEPS
        for layer in layers if down else layers[::-1]:
            if sorts:
                layer.sort(key=lambda spot: _mean(spot.before if down else spot.after, spot))
            _pack(layer, [_wanted(spot, both=sweep >= 2 * _SWEEPS - 2) for spot in layer])


def _wanted(spot: _Spot, *, both: bool) -> float:
    joined = [*spot.before, *spot.after] if both or not (spot.before and spot.after) else spot.before
    return _mean(joined, spot)


def _mean(joined: Sequence[_Spot], spot: _Spot) -> float:
    """The mean place of what a spot is joined to; its own if that is nothing."""
    return sum([other.at for other in joined]) / len(joined) if joined else spot.at


def _pack(layer: list[_Spot], wanted: list[float]) -> None:
    """Put the spots of a layer, in order, as near to where they want to be as their breadths allow.

    Groups that touch move as one, to the mean of what they want (this is isotonic regression).
    """
    groups: list[tuple[float, int]] = []  # how far each group moves, and how many are in it
    offsets, edge = [], 0.0
    for spot in layer:
        offsets.append(edge + spot.breadth / 2)
        edge += spot.breadth + _BESIDE
    for offset, where in zip(offsets, wanted, strict=True):
        shift, count = where - offset, 1
        while groups and groups[-1][0] > shift:
            before, others = groups.pop()
            shift, count = (before * others + shift * count) / (others + count), others + count
        groups.append((shift, count))
    shifts = [shift for shift, count in groups for _ in range(count)]
    for spot, offset, shift in zip(layer, offsets, shifts, strict=True):
        spot.at = offset + shift


def _drawn(
    spots: list[_Spot], chains: dict[tuple[int, int], list[_Spot]], across: float, along: float, downwards: bool
) -> Layout:
    every = [*spots, *[spot for chain in chains.values() for spot in chain]]
    left = min([spot.at - spot.breadth / 2 for spot in every], default=0.0)
    right = max([spot.at + spot.breadth / 2 for spot in every], default=across)
    step = along + _BETWEEN

    def point(spot: _Spot, shift: float = 0.0) -> Point:
        x, y = spot.at - left, spot.layer * step + along / 2 + shift
        return (x, y) if downwards else (y, x)

    edges = {}
    for ends, chain in chains.items():
        first, *bends, last = chain
        through = [p for bend in bends for p in (point(bend, -along / 2), point(bend, along / 2))]
        edges[ends] = [point(first, along / 2), *through, point(last, -along / 2)]
    depth = (1 + max([spot.layer for spot in spots], default=0)) * step - _BETWEEN
    size = (right - left, depth) if downwards else (depth, right - left)
    return Layout([point(spot) for spot in spots], edges, *size, downwards)
