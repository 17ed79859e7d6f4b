"""How many references an object has: the one place that knows what the interpreter adds to that number.

Theory of operation. A buffer may be written over, and a stall be called a deadlock, only where nobody unseen holds an
object. `sys.getrefcount` counts every holder, and whatever the asking itself holds: variables, which some versions of
CPython count once and others (3.14, which borrows) may not; the arguments of a Python function, which the caller may
or may not keep meanwhile, with a debugger above all. So the object is in no variable and no argument here: it is
fetched out of a container, for the call into C alone. What that adds is found at import by the function that is used
later, on objects whose holders are known.

Whoever asks must keep the object in no variable of their own, but in a container: `references(values, i)`, or
`references([node.thing], 0)`, where the new list counts as one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_MANY = 1 << 30
_asking = 0  # what asking adds


def references(holder: Sequence[object], index: int) -> int:
    """How many references to `holder[index]` there are, that of `holder` included.

    Where this interpreter's counts are not understood: more than anybody can account for. Then nothing is written in
    place, and what is held counts as held outside.
    """
    return sys.getrefcount(holder[index]) - _asking


def _calibrated() -> int:
    """What `references` must subtract. Asked often enough for the interpreter to have specialised its code."""
    kept = (list, tuple)
    raw = {references(kind([object()] * n), n - 1) - n + _asking for _ in range(50) for n in (1, 2, 3) for kind in kept}
    return raw.pop() if len(raw) == 1 else -_MANY


def require_gil() -> None:
    """Refuse a Python that runs without its global lock: counts change there while they are read.

    Nor is what the streams' threads share with the event loop written for it.

    Raises:
        RuntimeError: naming the ways to get the lock.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise RuntimeError(
            "asyncsched needs the GIL, which this free-threaded Python runs without:"
            " set PYTHON_GIL=1 or start it with -X gil=1, or use a standard build"
        )


_asking = _calibrated()
