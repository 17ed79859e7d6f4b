"""Reference counts: making them prompt on a Python that is built without the GIL, and reading them on any.

Theory of operation. On a free-threaded *build* each object has two reference counts: one of the thread that made it,
its owner, and one of all other threads. If another thread drops the last reference, CPython leaves it to the owner to
destroy the object. The owner does so when it next runs Python: a stream that sleeps, after its next task. (That holds
with `PYTHON_GIL=1`, too. So everything here depends on the build, and not on the setting.) Bytes would come back late.
Two things prevent that:

- *Merged at birth.* Objects that are made here and often dropped by another thread get their two counts merged when
  they are made, as CPython does at the end of a thread. From then on nobody owns the object, and whoever drops the last
  reference destroys it, at once. There is no function for that, so `merge` writes into the head of the object, whose
  layout is that of `struct _object` in CPython's `Include/object.h`. It does so in the versions in `_TRIED`, if a test
  object looks as expected.
- *Looking up.* An idle stream wakes every `LOOK` seconds while arrays are out, and so does the loop's thread while a
  task lacks bytes. Then each destroys what was left to it. This is for objects that others made, and may have shown to
  other threads already: a function's result, unless it is an array that nobody else holds.

Neither helps if the owner is in one long call in C, or is a sleeping thread of the user's.

Only an object that no other thread has seen may be merged: another thread's change of its count could be lost. `merge`
makes no call once it has looked at the counts. So no garbage collection and no search of the heap comes in between:
both wait until each thread is in a call, or between two iterations of a loop.

Tried: deferred counts (`PyUnstable_Object_EnableDeferredRefcount`): only the collector destroys such objects. Looking
up alone: bytes come up to `LOOK` late, and each task of a chain takes a new buffer meanwhile.

*Reading.* A search for an object's holders is complete if they account for its whole reference count.
`sys.getrefcount` counts every holder, but also references of the question itself: variables, which some versions of
CPython count and others (3.14, which borrows) may not; and arguments of a Python function, which the caller may or may
not keep, above all under a debugger. So `references` has the object in no variable and no argument: it fetches it out
of a container only for the call into C. `_calibrated` measures at import how much that call adds, with objects whose
holders are known.

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
    """The function or class, with its new results merged. On a build with the GIL it is returned as it is."""
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
        """The owner's count that `_count` finds for an object that only a variable of its caller holds."""
        thing = {1}
        return _count(thing)

    _ALONE = _alone()

    def _merge_if_unknown(thing: object) -> None:
        if _head_of(id(thing)).local == _ALONE:  # read in a call as deep as that of `_count`
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
    """In place of `merge`, where the layout is not known, or the build has the GIL."""


MERGES: Final = FREE_THREADED and _as_expected()  # whether `merge` does anything
# Have whoever drops the last reference to a new object destroy it. No other thread may know the object yet.
merge: Final[Callable[[object], None]] = _merge if MERGES else _leave
# The same, if only a variable of the caller's holds the object. For one that somebody else made on this thread, and may
# have kept.
merge_if_unknown: Final[Callable[[object], None]] = _merge_if_unknown if MERGES else _leave

_asking = 0  # references that the question itself adds


def references(holder: Sequence[object], index: int) -> int:
    """The number of references to `holder[index]`, including that of `holder`.

    If this interpreter's counts are not understood, the number is huge: every object counts as held outside.
    """
    return sys.getrefcount(holder[index]) - _asking


def _calibrated() -> int:
    """The number that `references` must subtract. Asks often enough for the interpreter to specialise its code."""
    kept = (list, tuple)
    raw = {references(kind([object()] * n), n - 1) - n + _asking for _ in range(50) for n in (1, 2, 3) for kind in kept}
    return raw.pop() if len(raw) == 1 else -_HUGE


_asking = _calibrated()
