"""Free memory by address, each piece joined with its free neighbours. It makes no call of CUDA."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

Bin = tuple[int, int]  # the pointer of a stream, and a size


@dataclass(slots=True, eq=False)
class Slab:
    """Memory from the device.

    The pool holds CuPy's memory object, which frees the slab, and this does not. A thread may still be about to drop a
    piece when the piece's slab goes back to the device. To free a slab there might block that thread.
    """

    ptr: int
    size: int


@dataclass(slots=True, eq=False)
class Piece:
    """Memory of a slab.

    Attributes:
        after: the streams that had it, by their pointers. A stream that takes it must come after their work so far.
            The dict is never changed, only replaced: the same dict means that no stream has had it since.
        bin: where the pool keeps it when it is given back.
    """

    slab: Slab
    start: int
    nbytes: int
    after: dict[int, Any]
    bin: Bin = (0, 0)

    @property
    def end(self) -> int:
        return self.start + self.nbytes


class Heap:
    """The free pieces. The caller holds a lock."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []  # by address

    def join(self, piece: Piece) -> None:
        """Add a free piece, joined with those of its neighbours that are free."""
        pieces = self._pieces
        place = bisect_left(pieces, piece.start, key=_start)
        if place < len(pieces) and pieces[place].slab is piece.slab and pieces[place].start == piece.end:
            follower = pieces.pop(place)
            piece.nbytes += follower.nbytes
            piece.after = piece.after | follower.after
        if place and pieces[place - 1].slab is piece.slab and pieces[place - 1].end == piece.start:
            leader = pieces[place - 1]
            leader.nbytes += piece.nbytes
            leader.after = leader.after | piece.after
        else:
            pieces.insert(place, piece)

    def take(self, size: int, stream: int, *, others: bool, but: Collection[int] = ()) -> Piece | None:
        """Take `size` bytes from the smallest piece that has them and that only this stream had. None if there is none.

        Args:
            others: if there is no such piece, take from one that other streams had, too.
            but: no piece that one of these streams had.
        """
        mine = {stream}
        fitting = [
            p
            for p in self._pieces
            if p.nbytes >= size and (p.after.keys() <= mine or (others and p.after.keys().isdisjoint(but)))
        ]
        if not fitting:
            return None
        return self._cut(min(fitting, key=lambda p: (not p.after.keys() <= mine, p.nbytes)), size)

    def followed(self, taken: Piece, stream: Any) -> None:
        """Note that a stream now comes after all streams that had the piece from which it took.

        So a stream that takes the rest of the piece need only come after this one. Otherwise the rest would name ever
        more streams. But not if one of those has had the rest, or a neighbour that was joined to it, meanwhile.
        """
        place = bisect_left(self._pieces, taken.end, key=_start)
        if place < len(self._pieces):
            rest = self._pieces[place]
            if rest.slab is taken.slab and rest.start == taken.end and rest.after is taken.after:
                rest.after = {stream.ptr: stream}

    def take_slab(self, wanted: int) -> Piece | None:
        """Take a slab that is free as a whole: the smallest of at least `wanted` bytes, or else the largest.

        None if all such slabs together have less than `wanted`.
        """
        whole = [piece for piece in self._pieces if piece.nbytes == piece.slab.size]
        if not whole or sum(piece.nbytes for piece in whole) < wanted:
            return None
        enough = [piece for piece in whole if piece.nbytes >= wanted]
        piece = min(enough, key=_nbytes) if enough else max(whole, key=_nbytes)
        self._pieces.remove(piece)
        return piece

    def _cut(self, piece: Piece, size: int) -> Piece:
        """Cut the beginning off a free piece; all of it, if it has that size."""
        if piece.nbytes == size:
            self._pieces.remove(piece)
            return piece
        found = Piece(piece.slab, piece.start, size, piece.after)
        piece.start += size
        piece.nbytes -= size
        return found


_start, _nbytes = attrgetter("start"), attrgetter("nbytes")
