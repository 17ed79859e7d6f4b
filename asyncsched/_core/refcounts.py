"""How many references an object has. Only this file knows what the interpreter adds to that number.

Theory of operation. A buffer may be written over, and a stall called a deadlock, only if nobody unseen holds an object.
`sys.getrefcount` counts every holder, and also the references of the question itself: variables, which some versions of
CPython count and others (3.14, which borrows) may not; and arguments of a Python function, which the caller may or may
not keep, above all under a debugger. So the object is in no variable and no argument here: it is fetched out of a
container only for the call into C. `_calibrated` measures at import how much that call adds, with objects whose holders
are known.

The caller keeps the object in a container and in no variable: `references(values, i)`, or `references([node.thing],
0)`, where the new list counts as one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_MANY = 1 << 30
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
    return raw.pop() if len(raw) == 1 else -_MANY


_asking = _calibrated()
