"""BLAS's own threads, where several streams want the processors, too. The setting is the process's: it is restored.

Theory of operation. The threads of a BLAS take the same processors as the streams, and spin there for 25 to 100 ms
after each product. So while several streams compute, each has its part of the processors, one thread mostly (`narrow`).
What is launched alone, a product, a decomposition or a user's function, has all threads, and so has who calls NumPy
beside a scheduler that rests (`widen`).

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
_shares: list[int] = []  # for each device with several streams, how many
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


def share(streams: int) -> None:
    """One more device has so many streams. Call `look` before; undo with `unshare`."""
    global _libraries
    with _lock:
        if not _shares:
            _libraries = [(library, library.num_threads) for library in _found]
        _shares.append(streams)
        if len(_shares) > 1:
            _set_narrow()


def unshare(streams: int) -> None:
    """Take back one `share(streams)`. The last restores what was set before the first. Never blocks for long."""
    with _lock:
        _shares.remove(streams)
        if not _shares:
            _set_wide()
        elif _narrow:
            _set_narrow()


def narrow() -> None:
    """Give each stream's products their part of the processors, and never more threads than were set before."""
    if not _narrow:
        with _lock:
            if _shares:
                _set_narrow()


def widen() -> None:
    """Give products as many threads as before, unless another device has several streams."""
    if _narrow:
        with _lock:
            if len(_shares) == 1:
                _set_wide()


def _set_narrow() -> None:
    global _narrow
    _narrow = True
    part = max(1, _processors // max(_shares))
    for library, before in _libraries:
        library.set_num_threads(min(before, part))


def _set_wide() -> None:
    global _narrow
    _narrow = False
    for library, before in _libraries:
        library.set_num_threads(before)
