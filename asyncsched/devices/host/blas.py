"""The number of threads of BLAS, where several streams need the processors, too: a setting of the process, restored.

Theory of operation. The threads of a BLAS take the same processors as the streams, and spin there for 25 to 100 ms
after each product. So while several streams compute, each has its part of the processors: mostly one thread. A product,
a decomposition or a user's function that is launched alone has all threads. So has a program that calls NumPy beside
schedulers that rest. Two schedulers that compute at the same time do not know each other's streams: then all have their
part.

This is called mostly on a loop's thread. But there may be several loops, and a finaliser may close an abandoned
scheduler on any thread, also in the middle of this. So the lock is reentrant. Changing the setting takes about 1 us.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from ..._interrupts import Lock
from .allowed import allowed_processors

if TYPE_CHECKING:
    from threadpoolctl import LibController

Setter = Callable[[int], object]
# The names of OpenBLAS's function in its builds, NumPy's among them.
_OPENBLAS = [
    f"{prefix}openblas_set_num_threads{suffix}" for prefix, suffix in product(("scipy_", ""), ("64_", "_64", ""))
]
_lock = Lock()
# For each device with several streams: how many, and the list of functions to call when it has no more tasks
devices: dict[object, tuple[int, list[Callable[[], None]]]] = {}
computing: dict[object, bool] = {}  # devices that compute: whether their task has one stream's part
_libraries: list[tuple[Setter, int]] = []  # and how many threads each library had before
_found: list[LibController] = []
_processors = 1
_part: int | None = None  # how many threads each library has at most; None while each has as many as before


def look() -> None:
    """Look for the loaded libraries. Reads files: not for the loop's thread."""
    global _found, _processors
    from threadpoolctl import ThreadpoolController  # slow to import, and a GPU alone never needs it

    controller = ThreadpoolController().select(user_api="blas")
    with _lock:
        _found, _processors = controller.lib_controllers, allowed_processors()


def share(device: object, streams: int, at_rest: list[Callable[[], None]]) -> None:
    """One more device has this number of streams. Call `look` before; undo with `unshare`. When the device has no more
    tasks, what is in `at_rest` is called."""
    global _libraries
    with _lock:
        if not devices:
            _libraries = [(_setter(library), library.num_threads) for library in _found]
        devices[device] = streams, at_rest


def unshare(device: object) -> None:
    """Take back `share`. The last call restores the setting from before the first. Never blocks for long."""
    with _lock:
        del devices[device]
        _rest(device)


def compute(device: object, narrow: bool) -> None:
    """A device is about to run a task: alone, or `narrow`, with one stream's part of the processors."""
    if computing.get(device) is not narrow:
        with _lock:
            if device not in computing:
                devices[device][1].append(partial(_rest, device))
            computing[device] = narrow
            _set()


def _rest(device: object) -> None:
    """A device has no more tasks."""
    with _lock:
        computing.pop(device, None)
        _set()


def _set() -> None:
    """Set the number of threads, and look again, since a finaliser may have closed another scheduler meanwhile."""
    global _part
    part = _part
    while part != (wanted := _wanted()):
        _part = part = wanted
        for set_threads, before in _libraries:
            set_threads(before if part is None else min(before, part))


def _wanted() -> int | None:
    """How many threads suit the running tasks; None for as many as before."""
    if len(computing) > 1 or any(computing.values()):
        return max(1, _processors // max([streams for streams, _ in devices.values()]))
    return None


def _setter(library: LibController) -> Setter:
    """The function that sets a library's number of threads, on any thread.

    threadpoolctl lets one thread set that of OpenBLAS, as long as that thread lives, and ignores all others: another
    loop's, and the user's own. So OpenBLAS's function is used where it is found. (With OpenMP each thread has a setting
    of its own, which threadpoolctl sets.)
    """
    own = library.internal_api == "openblas" and library.info().get("threading_layer") != "openmp"
    named = [getattr(library.dynlib, name, None) for name in (_OPENBLAS if own else ())]
    found: Setter = next(filter(None, named), library.set_num_threads)
    return found


def _forked() -> None:
    """In the child of a fork: forget the parent's devices, and the lock, which one of its threads may hold."""
    global _lock
    _lock = Lock()
    computing.clear()
    devices.clear()
    _set()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
