"""BLAS's own threads, where several streams want the processors, too. The setting is the process's: it is restored.

Theory of operation. The threads of a BLAS take the same processors as the streams, and spin there for 25 to 100 ms
after each product. So while several streams compute, each has its part of the processors, one thread mostly. What is
launched alone, a product, a decomposition or a user's function, has all threads, and so has who calls NumPy beside
schedulers that rest. Two schedulers that compute at the same time know nothing of each other's streams: then all have
their part.

All of it on the loop's thread: threadpoolctl's OpenBLAS lets only one living thread change the setting, and what any
other sets is silently dropped. To change it takes about 1 us.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from .allowed import allowed_processors

if TYPE_CHECKING:
    from threadpoolctl import LibController

_lock = Lock()
_streams: dict[object, int] = {}  # of each device that has several
_computing: dict[object, bool] = {}  # devices that do not rest: whether what they run is to have one stream's part
_libraries: list[tuple[LibController, int]] = []  # and how many threads each had before
_found: list[LibController] = []
_processors = 1
_narrow = False


def look() -> None:
    """Look for the loaded libraries. Reads files: not for the loop's thread."""
    global _found, _processors
    from threadpoolctl import ThreadpoolController  # slow to import, and never needed by a GPU alone

    controller = ThreadpoolController().select(user_api="blas")
    with _lock:
        _found, _processors = controller.lib_controllers, allowed_processors()


def share(device: object, streams: int) -> None:
    """One more device has so many streams. Call `look` before; undo with `unshare`."""
    global _libraries
    with _lock:
        if not _streams:
            _libraries = [(library, library.num_threads) for library in _found]
        _streams[device] = streams


def unshare(device: object) -> None:
    """Take back `share`. The last restores what was set before the first. Never blocks for long."""
    rest(device)
    with _lock:
        del _streams[device]


def compute(device: object, narrow: bool) -> None:
    """A device is about to run something: alone, or `narrow`, with one stream's part of the processors."""
    if _computing.get(device) is not narrow:
        with _lock:
            _computing[device] = narrow
            _set()


def rest(device: object) -> None:
    """A device has nothing left to run."""
    if device in _computing:
        with _lock:
            del _computing[device]
            _set()


def _set() -> None:
    """As many threads as suit what is computed; never more than were set before."""
    global _narrow
    narrow = len(_computing) > 1 or any(_computing.values())
    if narrow or _narrow:
        part = max(1, _processors // max(_streams.values()))
        for library, before in _libraries:
            library.set_num_threads(min(before, part) if narrow else before)
    _narrow = narrow
