"""The memory of one CUDA device. Its streams share it. It stays under the scheduler's limit.

Theory of operation. Memory comes from the device in *slabs*. A slab is cut into *pieces*, and a *block* keeps a piece
for an array.

1. The result of an operation, once nobody holds it, is a *spare* array: the stream's next result of that form. To make
   an array takes as long as to launch a kernel. Wherever a bin is emptied, the stream's spares are dropped first.
2. A piece that a stream gives back is the stream's own at once, in the order of its work. It goes into a *bin*: there
   is one for each stream and size. The stream's next block of that size comes from there. No lock is taken and no list
   searched.
3. If the bin is empty, memory comes from the *heap*. There free pieces lie by address, each joined with its free
   neighbours. A piece knows the streams that had it, after whose work it may be used. Before the heap is searched, the
   pieces in the stream's own bins join it. Where the limit binds, the pieces in all bins do.
4. So memory that is free in one size serves any other, on any stream. The only CUDA calls for that record an event on
   the streams that had the piece, and have the stream that takes it wait for the event.

In the steady state nothing goes through the device. That matters, since each `cudaFree` waits for all that runs there,
and at the limit every allocation would need one. Only if the heap's pieces are too small, unused slabs go back to the
device, or the pool grows a little above the limit.

A block may die on any thread and in the middle of anything, so its piece only joins a bin then. The collector does not
see a block (see `untracked`), so it dies after all finalisers that can reach its array. Slabs go back to the device on
the thread of a stream that needs room, for itself or for a guest's allocator (`make_room`); after the close, on the
janitor's thread.

Not taken: CuPy's pool, which has an arena for each stream (one stream's free memory serves another only through the
device), frees on any thread, with a lock held for which every allocation waits, and is no faster; blocks of fixed
sizes, which either waste memory or serve no other size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from ..._core.free_threading import merged_at_birth
from ..._interrupts import Lock, finaliser
from ...ops.op import CARD_GRANULE
from .. import guests
from .driver import capturing
from .threads import end_turn

_FIRST_SLAB, _LARGEST_SLAB = 2 << 20, 1 << 30  # if the limit allows; between them half of the reserved bytes. Guesses
# The pool leaves so many bytes of the memory that was free when the scheduler opened, or an eighth of it if that is
# less. They are for modules and libraries that are loaded late, and for their workspace. Guesses: PyTorch's own context
# and kernels take a few hundred MiB.
MARGIN, SHARE_OF_MARGIN = 512 << 20, 8
_FULL = 2  # cudaErrorMemoryAllocation
Bin = tuple[int, int]  # the pointer of a stream, and a size
_start, _nbytes = attrgetter("start"), attrgetter("nbytes")
_object = np.dtype(object)


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
    """Free memory by address, each piece joined with its free neighbours. It makes no call of CUDA. The caller holds a
    lock."""

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
        piece = min(fitting, key=lambda p: (not p.after.keys() <= mine, p.nbytes))
        if piece.nbytes == size:
            self._pieces.remove(piece)
            return piece
        found = Piece(piece.slab, piece.start, size, piece.after)
        piece.start += size
        piece.nbytes -= size
        return found

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


@merged_at_birth
def untracked(thing: object) -> Any:
    """Returns the only holder of a thing. The thing dies when the holder's last reference goes, and not before.

    The garbage collector does not see the thing, so it never ends it early.

    Theory of operation. The collector finalises all objects of a dead cycle before it clears any of them: it runs each
    `__del__` and each generator's `finally`, and the callbacks of weak references. Their order is not defined, and each
    runs only once. So a `__del__` that gives memory back may run before a user's finaliser of the same cycle. That one
    would then read memory which somebody else has by now, or keep it.

    CPython tracks the instances of every Python class, and CuPy's arrays, pointers and `UnownedMemory`. NumPy's arrays
    are not tracked, not even those of objects: the collector never learns what they refer to. So an object that only
    such an array holds has a reference which the collector cannot account for, and it is left alone.

    So CuPy's memory holds an array without axes, and that holds the object whose `__del__` reports the end. The
    collector clears CuPy's objects only after all finalisers, and only if none of those kept one. Then the array dies
    by its reference count, and the object in it dies, too. Its `__del__` runs then: once, and never too early. Weak
    references to it last as long, and their callbacks are not early either.

    Such an object must not refer to any object of the user's: the collector would never find a cycle through it.

    Not taken: a new object in place of one that the collector finalised, as `_core.ownership` has it for entries (these
    objects are found from arrays, and change until their end); a class derived from `int`, without slots (CPython
    tracks its instances, too); a weak reference with a callback on an empty array of NumPy's (it takes longer); CuPy's
    `PythonFunctionAllocator` (the collector clears its memory's reference to the function that frees, and then that is
    called); a capsule with a destructor (one that calls Python takes longer).
    """
    holder = np.empty((), _object)
    holder[()] = thing
    return holder


def behind(holder: Any) -> Any:
    """The thing that a holder holds; None for any other object."""
    return holder[()] if type(holder) is np.ndarray and holder.dtype is _object and not holder.shape else None


class Block:
    """Keeps a piece for an array. The pool makes them: a class with an `__init__` takes longer to call."""

    __slots__ = ("__weakref__", "piece", "pool")
    pool: PrivatePool
    piece: Piece | None  # until it is given back

    @finaliser()
    def __del__(self) -> None:
        self.pool.take_back(self)


class Spare(list[Any]):
    """Arrays of one form for the next results of one stream, which come after its work.

    Attributes:
        over: it keeps no arrays, since the pool empties it no more.
    """

    over: bool = False

    def keep(self, array: Any) -> None:
        """Nobody holds an array any more. On any thread, in the middle of anything."""
        self.append(array)  # first, and a look at `over` second: the pool does it in the other order
        if self.over:
            self.clear()

    def end(self) -> None:
        """Drop all arrays, now and later."""
        self.over = True
        self.clear()


Spares = defaultdict[Any, Spare]  # one stream's spare arrays, by their form


class PrivatePool:
    """A device's memory. Made on the event loop's thread, where it never blocks.

    Args:
        cupy, number: CuPy, and which device.
        max_bytes: the scheduler's limit.
        free: bytes that are free on the device.
        follow: has a stream wait for the present work of another, by its pointer, and says whether it does.
    """

    def __init__(
        self, cupy: Any, number: int, max_bytes: int | None, free: int, follow: Callable[[Any, int], bool]
    ) -> None:
        self._cuda = cupy.cuda
        self._stream: Callable[[], Any] = cupy.cuda.get_current_stream
        self._pointer, self._unowned = cupy.cuda.MemoryPointer, cupy.cuda.UnownedMemory
        self._number = number
        self._follow = follow
        self._spares: dict[int, Spares] = {}  # by the stream's pointer
        self._bins: dict[Bin, list[Piece]] = {}
        self._back: deque[Piece] = deque()  # free pieces without a bin, on their way to the heap
        self._heap = Heap()
        self._slabs: dict[Slab, Any] = {}  # with CuPy's memory objects, which free them
        self._lock = Lock()  # of the heap and the number; never held during a call of CUDA
        self._reserved = 0
        self._tell: Callable[[], None] | None = None  # called, after the close, when a block is given back
        self.own: frozenset[int] | None = None  # the scheduler's streams, by pointer, once there are some
        self._limit = max_bytes or 0
        # Kernels need memory for themselves, and there are gaps between pieces. Both are added to the tracked bytes, if
        # there is more than the margin. The numbers are guesses.
        most = min(self._limit + max(self._limit // 4, 64 << 20), free - min(MARGIN, free // SHARE_OF_MARGIN))
        self._most = max(self._limit, most) if self._limit else 0

    def malloc(self, nbytes: int) -> Any:
        """CuPy's allocator. This device is current.

        Raises:
            MemoryError: if there is none.
        """
        size = -(-nbytes // CARD_GRANULE) * CARD_GRANULE
        if not size:
            return self._pointer(self._unowned(0, 0, None, self._number), 0)
        stream = self._stream()
        try:
            piece = self._bins[stream.ptr, size].pop()
        except (KeyError, IndexError):
            piece = self._find(size, stream)
        block = Block()
        block.pool, block.piece = self, piece
        return self._pointer(self._unowned(piece.start, size, untracked(block), self._number), 0)

    def take_back(self, block: Block) -> None:
        """A block's piece is free. On any thread, in the middle of anything."""
        if block.piece is not None:
            pieces = self._bins.get(block.piece.bin)
            back = self._back if pieces is None else pieces
            piece, block.piece = block.piece, None  # just before, so that an interrupt has it given back once
            back.append(piece)
            if pieces is not None and self._bins.get(piece.bin) is not pieces:  # `_gather` may have missed this piece
                with suppress(IndexError):
                    self._back.append(pieces.pop())
        if self._tell is not None:
            self._tell()

    def spares_of(self, stream: Any) -> Spares:
        """The spare arrays of one of the scheduler's streams. Who takes one comes after that stream's work."""
        return self._spares.setdefault(stream.ptr, defaultdict(Spare))

    def reserved(self) -> int:
        """Bytes taken from the device, used or not."""
        return self._reserved

    def free(self) -> None:
        """Give slabs that nobody uses back to the device. May block."""
        while self._give_back(0):
            pass

    def make_room(self, nbytes: int) -> None:
        """Give slabs that nobody uses back to the device until it has so many bytes more, or all of them. May block."""
        while nbytes > 0 and (given := self._give_back(nbytes) or self._give_back(0)):
            nbytes -= given

    def close(self, tell: Callable[[], None]) -> None:
        """Nobody asks for memory any more. `tell` is called whenever a block comes back, and has `free` called."""
        self._tell = tell

    def abandon(self) -> None:
        """The device is lost, with all that is reserved on it."""
        self._reserved = 0
        self._drop_spares(None)

    def _find(self, size: int, stream: Any) -> Piece:
        """Memory of a size of which the stream's bin has none."""
        piece = self._take(size, stream, ()) or self._take(size, stream, (stream.ptr,))
        if piece is None:
            at_limit = self._limit and self._reserved + size > self._limit
            if self.own is not None and stream.ptr not in self.own:
                # A stream of the user's, perhaps a new one for each call. It takes memory that other streams of the
                # user's have left, since nobody else would.
                users = {name[0] for name in list(self._bins)} - self.own
                piece = self._take(size, stream, users, others=True, but=self.own)
            elif at_limit:
                piece = self._take(size, stream, None, others=True)
            piece = piece or self._new(size, stream)
        piece.after = {stream.ptr: stream}
        piece.bin = stream.ptr, size
        self._bins.setdefault(piece.bin, [])
        return piece

    # -- the heap -----------------------------------------------------------------------------------------------

    def _take(
        self,
        size: int,
        stream: Any,
        emptied: Collection[int] | None,
        *,
        others: bool = False,
        but: Collection[int] = (),
    ) -> Piece | None:
        """Memory from the heap.

        Args:
            emptied: the streams whose bins are emptied into the heap first; None for all.
            others, but: as of `Heap.take`.
        """
        if self._in_the_middle():
            return None
        with self._lock:
            self._gather(emptied)
            piece = self._heap.take(size, stream.ptr, others=others, but=but)
        if piece is None:
            return None
        if self._follows(stream, piece.after):
            if others:
                with self._lock:
                    self._heap.followed(piece, stream)
            return piece
        self._back.append(piece)
        return None

    def _in_the_middle(self) -> bool:
        """Whether the caller is a finaliser, while this thread is about to change the heap."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]

    def _gather(self, emptied: Collection[int] | None) -> None:
        """Empty the bins of some streams, or of all, into the heap. The lock is held."""
        self._drop_spares(emptied)
        for name in list(self._bins) if emptied is None or emptied else ():
            if emptied is None or name[0] in emptied:
                pieces = self._bins.pop(name)  # first: see `take_back`
                with suppress(IndexError):
                    while True:
                        self._heap.join(pieces.pop())
        while self._back:
            self._heap.join(self._back.popleft())

    def _drop_spares(self, streams: Collection[int] | None) -> None:
        """Have the spare arrays of some streams, or of all, give their pieces back."""
        for pointer in self._spares if streams is None else streams:
            spares = self._spares.get(pointer)
            with suppress(KeyError):
                while spares:
                    spares.popitem()[1].end()

    def _follows(self, stream: Any, others: dict[int, Any]) -> bool:
        """Have a stream wait for all the work that others have by now. Returns whether it does.

        Not if one of them captures: the event between the two would become part of the graph.
        """
        pointers = others.keys() - {stream.ptr}
        if pointers and self._cuda.runtime.streamIsCapturing(stream.ptr):
            return False
        runtime = self._cuda.runtime
        try:
            return all(self._follow(stream, pointer) for pointer in pointers)
        except runtime.CUDARuntimeError:  # a user's stream was destroyed, perhaps with work still on the device
            end_turn()
            with capturing:
                runtime.deviceSynchronize()
        return True

    # -- slabs --------------------------------------------------------------------------------------------------

    def _new(self, size: int, stream: Any) -> Piece:
        """Memory from a new slab."""
        while self._limit and (above := self._reserved + size - self._limit) > 0 and self._give_back(above):
            pass
        slab = self._slab(self._slab_size(size)) or self._slab(size)
        if slab is None:
            piece = self._take(size, stream, None, others=True)
            if piece is not None:
                return piece
            self.free()
            end_turn()
            guests.empty_caches()
            slab = self._slab(size)
            if slab is None:
                error = self._cuda.memory.OutOfMemoryError(size, self._reserved, self._most)
                error.add_note("the device is full, also of memory that others and kernels hold: lower max_bytes")
                raise error
        if slab.size > size:
            self._back.append(Piece(slab, slab.ptr + size, slab.size - size, {}))
        return Piece(slab, slab.ptr, size, {})

    def _slab_size(self, size: int) -> int:
        """How much to ask the device for: at most a quarter of the limit at a time.

        Above the limit a little more than is needed, so that not every request comes here.
        """
        wanted = max(self._reserved // 2, _FIRST_SLAB)
        if self._limit:
            room = self._limit - self._reserved
            wanted = min(wanted, self._limit // 4, room) if room > 0 else self._limit // 16
        return max(size, min(wanted, _LARGEST_SLAB) // CARD_GRANULE * CARD_GRANULE)

    def _slab(self, size: int) -> Slab | None:
        """Memory from the device. None if the device is full, or if this would go too far above the limit."""
        with self._lock:
            if self._limit and self._reserved + size > self._most:
                return None
            self._reserved += size
        slab = None
        try:
            memory = self._cuda.Memory(size)
            slab = Slab(memory.ptr, size)
            self._slabs[slab] = memory
        except self._cuda.runtime.CUDARuntimeError as error:
            if error.status != _FULL:
                raise
        finally:
            if slab is None:
                with self._lock:
                    self._reserved -= size
        return slab

    def _give_back(self, wanted: int) -> int:
        """Give a slab that nobody uses back to the device: the smallest that has `wanted` bytes, or else the largest.

        Returns its bytes. None goes back, and they are 0, if all such slabs together have less than `wanted`.
        """
        if self._in_the_middle():
            return 0
        with self._lock:
            self._gather(None)
            piece = self._heap.take_slab(wanted)
        if piece is None:
            return 0
        end_turn()
        del self._slabs[piece.slab]  # with no lock held, since it may block
        with self._lock:
            self._reserved -= piece.nbytes
        return piece.nbytes
