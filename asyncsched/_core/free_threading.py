"""Counts of references: what a Python that is built to run without the GIL, its global lock, asks; how one is read.

Theory of operation. On such a *build* each object has two counts of references: one of the thread that made it, its
owner, and one of all others. If another thread drops the last reference, CPython leaves the end of the object to the
owner, which comes to it when it next runs Python: a stream that sleeps does so after its next task. (The same with
`PYTHON_GIL=1`: so what is decided here is decided by the build.) Bytes would come back late. Two things keep them from
that:

- *Merged at birth.* What is made here and often dropped by another thread has its two counts merged when it is made, as
  CPython does at the end of an owner. From then on nobody owns it, and whoever drops it last ends it, at once. There is
  no function for that, so `merge` writes into the head of the object, whose layout is that of `struct _object` in
  CPython's `Include/object.h`. It is used in the versions in `_TRIED`, if a look at an object finds what is expected.
- *Looking up.* A stream that rests looks up every `LOOK` seconds while arrays are out, and so does the loop's thread
  while a task lacks bytes. Then they end what was left to them. This is for what others made, and might have shown to
  other threads already: a function's result, unless it is an array that nobody else holds.

What nobody can help: an object is left to a thread that runs one long call in C, or to a sleeping one of the user's.

Only an object that no other thread has seen may be merged: another thread's change of its count could be lost. `merge`
makes no call from its look at the counts on. So no collection, and no search of the heap for objects, comes in between:
both wait until each thread is in a call, or between two loops.

Tried: deferred counts (`PyUnstable_Object_EnableDeferredRefcount`), which only the collector ends. Streams that look
up, alone: bytes come up to `LOOK` late, and each task of a chain takes a new buffer meanwhile.

*Reading.* A search for holders has found all of an object if they account for its whole count. `sys.getrefcount` counts
every holder, and also the references of the question itself: variables, which some versions of CPython count and others
(3.14, which borrows) may not; and arguments of a Python function, which the caller may or may not keep, above all under
a debugger. So the object is in no variable and no argument here: it is fetched out of a container only for the call
into C. `_calibrated` measures at import how much that call adds, with objects whose holders are known.

The caller keeps the object in a container and in no variable: `references(values, i)`, or `references([node.thing],
0)`, where the new list counts as one.
"""

from __future__ import annotations

import sys
import sysconfig
from _thread import get_ident
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final, TypeVar, cast
from weakref import ref

F = TypeVar("F", bound=Callable[..., Any])

FREE_THREADED: Final = sys.version_info >= (3, 13) and bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
LOOK: Final = 0.02  # seconds between two looks; a guess: a look takes some 20 us

_TRIED: Final = ((3, 13),)
_MERGED: Final = 3  # `_Py_REF_MERGED`, in the two lowest bits of the shared count
_HUGE: Final = 1 << 30
_MANY: Final = 1 << 16  # references that no new object has; the count of an immortal one is higher


def merged_at_birth(make: F) -> F:
    """A function or class whose new results are merged. On other builds it is the function itself."""
    if not FREE_THREADED:
        return make

    @wraps(make)
    def merged(*args: Any, **options: Any) -> Any:
        made = make(*args, **options)
        merge(made)
        return made

    return cast(F, merged)


if FREE_THREADED:
    import ctypes

    class _Head(ctypes.Structure):
        _fields_ = (
            ("owner", ctypes.c_size_t),  # the thread's, `ob_tid`; 0 for none
            ("flags", ctypes.c_uint32),
            ("local", ctypes.c_uint32),  # the owner's count
            ("shared", ctypes.c_ssize_t),  # that of the others, times four
            ("type", ctypes.c_size_t),
        )

    _head_of = _Head.from_address

    def _owner() -> int:
        """The number of the calling thread, as in the objects that it makes."""
        return cast(int, _head_of(id(_Head())).owner)

    if _owner() == get_ident():  # as on Linux with x86-64: it takes half as long
        _owner = get_ident

    def _merge(thing: object) -> None:
        head = _head_of(id(thing))
        mine = _owner()
        local = head.local
        if head.owner == mine and not head.shared and local < _MANY:  # not merged before, and known to nobody else
            head.shared = local << 2 | _MERGED
            head.local = head.owner = 0

    def _count(thing: object) -> int:
        return cast(int, _head_of(id(thing)).local)

    def _alone() -> int:
        """The owner's count, inside of a function, of an object that only a variable of its caller holds."""
        thing = {1}
        return _count(thing)

    _ALONE = _alone()

    def _merge_if_unknown(thing: object) -> None:
        if _head_of(id(thing)).local == _ALONE:  # as in `_count`
            _merge(thing)

    def _as_expected() -> bool:
        """Whether the layout is that of `_Head`. Looks first, and writes only if all that it sees is as expected."""
        if sys.version_info[:2] not in _TRIED or ctypes.sizeof(ctypes.c_void_p) != 8:
            return False
        thing, other = {1}, {2}
        head, beside = _head_of(id(thing)), _head_of(id(other))
        fresh = [(one.local < 8, one.shared, one.type) for one in (head, beside)] == [(True, 0, id(set))] * 2
        if not fresh or not head.owner or head.owner != beside.owner or _head_of(id(None)).owner == head.owner:
            return False
        count, kept = head.local, [thing] * 5
        if head.local != count + 5:
            return False
        _merge(thing)
        merged, alive = head.shared & 3 == _MERGED and len(kept) == 5, ref(thing)
        del thing, kept
        return merged and alive() is None  # it ended with its last reference


def _leave(thing: object) -> None:
    """Where the layout is not known, or the build is another."""


MERGES: Final = FREE_THREADED and _as_expected()  # whether `merge` does anything
# Has whoever drops a new object last end it. No other thread may know the object yet.
merge: Final[Callable[[object], None]] = _merge if MERGES else _leave
# The same for what somebody else made on this thread and may have kept, if only a variable of the caller's holds it.
merge_if_unknown: Final[Callable[[object], None]] = _merge_if_unknown if MERGES else _leave

_asking = 0  # references that the question itself adds


def references(holder: Sequence[object], index: int) -> int:
    """The number of references to `holder[index]`, including that of `holder`.

    If this interpreter's counts are not understood, the number is huge. Then nothing is written in place, and every
    object counts as held outside.
    """
    return sys.getrefcount(holder[index]) - _asking


def _calibrated() -> int:
    """The number that `references` must subtract. Asks often enough for the interpreter to specialise its code."""
    kept = (list, tuple)
    raw = {references(kind([object()] * n), n - 1) - n + _asking for _ in range(50) for n in (1, 2, 3) for kind in kept}
    return raw.pop() if len(raw) == 1 else -_HUGE


_asking = _calibrated()
