"""The array API standard (2025.12) for code that cannot `await`: a conforming namespace, whose arrays block when they
are read.

One scheduler, whose event loop runs in a background thread, does the work. It is started at the first use and closed at
exit. Operations are issued and return at once. Code that needs a value waits for it, as in `float(x)` or `if x.any():`.
So libraries that are written against the standard, functions of scikit-learn and SciPy among them, run on these arrays
unchanged.

>>> from asyncsched import array_api as xp
>>> x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
>>> float(xp.sum(x @ x))
54.0

If an event loop runs on the calling thread (in a notebook, too), and inside tasks, each call that would block raises
`ImplicitBarrierError`: there use `asyncsched`'s own functions, or `await asyncio.to_thread(fn)`. Wrong shapes and
dtypes raise at once. Other errors of an operation are raised where its result is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _instead as _instead
from ..background import Using as _Using
from ..tensors.functions.dtypes import __array_api_version__ as __array_api_version__
from . import fft, linalg
from .array import Array
from .array import kept as _kept
from .functions import FUNCTIONS as _FUNCTIONS
from .functions import Info as _Info
from .functions import asarray, finfo, from_dlpack, meshgrid, repeat, reshape, unique_values

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
else:
    globals().update(_FUNCTIONS)


def __array_namespace_info__() -> _Info:
    """The namespace's information, in the form of the standard."""
    return _Info()


class using(_Using):
    """Set the devices and limits of the background scheduler: the arguments of `Scheduler`.

    Takes effect at once: an open scheduler is closed first, when all its tasks have ended. As a context manager it sets
    back the limits from before at the end. Arrays stay readable. To compute with them in the new scheduler, bring them
    there: `xp.asarray(np.asarray(x))`.

    >>> from asyncsched import array_api as xp
    >>> with xp.using("cpu", streams=1, max_bytes="64 MiB"):
    ...     print(float(xp.mean(xp.arange(5.0))))
    2.0

    Raises:
        TypeError, ValueError: for arguments that `Scheduler` refuses; nothing has changed then.
        ExceptionGroup: of failed operations whose results nobody has read.
    """

    def __init__(self, device: Any = "auto", **limits: Any) -> None:
        super().__init__(_kept, {"device": device, **limits})


__all__ = [
    "Array", "asarray", "fft", "finfo", "from_dlpack", "linalg", "meshgrid", "repeat", "reshape", "unique_values",
    "using",
    *_FUNCTIONS,
]  # fmt: skip


_instead.explain_missing(globals(), __name__, _instead.ARRAY_API)
globals().pop("array")  # the module: `xp.array(a)` is NumPy's name, and the error says what to write


def __dir__() -> list[str]:
    return [*__all__, "__array_api_version__", "__array_namespace_info__", "__doc__"]
