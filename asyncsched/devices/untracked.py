"""Objects that the garbage collector does not see, so that it never ends them early.

Theory of operation. The collector finalises all objects of a dead cycle before it clears any of them: it runs each
`__del__` and each generator's `finally`, and the callbacks of weak references. Their order is not defined, and each
runs only once. So a `__del__` that gives memory back may run before a user's finaliser of the same cycle. That one
would then read memory which somebody else has by now, or keep it.

CPython tracks the instances of every Python class, and CuPy's arrays, pointers and `UnownedMemory`. NumPy's arrays are
not tracked, not even those of objects: the collector never learns what they refer to. So an object that only such an
array holds has a reference which the collector cannot account for, and it is left alone.

So CuPy's memory holds an array without axes, and that holds the object whose `__del__` reports the end. The collector
clears CuPy's objects only after all finalisers, and only if none of those kept one. Then the array dies by its
reference count, and the object in it dies, too. Its `__del__` runs then: once, and never too early. Weak references to
it last as long, and their callbacks are not early either.

Such an object must not refer to any object of the user's: the collector would never find a cycle through it.

Not taken: a new object in place of one that the collector finalised, as `_core.ownership` has it for entries (these
objects are found from arrays, and change until their end); a class derived from `int`, without slots (CPython tracks
its instances, too); a weak reference with a callback on an empty array of NumPy's (it takes longer); CuPy's
`PythonFunctionAllocator` (the collector clears its memory's reference to the function that frees, and then that is
called); a capsule with a destructor (one that calls Python takes longer).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._core.free_threading import merged_at_birth

_object = np.dtype(object)


@merged_at_birth
def untracked(thing: object) -> Any:
    """Returns the only holder of a thing. The thing dies when the holder's last reference goes, and not before."""
    holder = np.empty((), _object)
    holder[()] = thing
    return holder


def behind(holder: Any) -> Any:
    """The thing that a holder holds; None for any other object."""
    return holder[()] if type(holder) is np.ndarray and holder.dtype is _object and not holder.shape else None
