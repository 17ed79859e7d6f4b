"""Loops of kernels that numba compiles, where that is installed: the extra `[numba]`.

Compiling takes seconds, and loading what an earlier process compiled half of one. So that is done on a thread of its
own, when the first array comes for which it pays. Until it is done, and where it fails, the plain kernel runs. A loop
releases the GIL while it runs, and uses one thread: the stream's.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

WORTH = 1 << 14  # elements: what is smaller is soon done anyway

Loop = Callable[..., Any]

_loops: dict[str, Loop] = {}
_compiler: threading.Thread | None = None
_started = False
_starting = threading.Lock()
_pending: list[threading.Thread] = []
_one_at_a_time = threading.Lock()  # LLVM's global lock would have it so anyway
_log = logging.getLogger(__name__)


def loop(name: str, xp: Any, *arrays: Any, anyhow: bool = False) -> Loop | None:
    """What is compiled for these arrays, C-contiguous or anyhow; None where the plain kernel is to run."""
    if xp is not np or arrays[0].size < WORTH:
        return None
    if not all(array.dtype == np.float32 and (anyhow or array.flags.c_contiguous) for array in arrays):
        return None
    if not _started:
        _start()
    return _loops.get(name)


def compiled(name: str) -> bool:
    """Whether there is a loop of this name by now."""
    return name in _loops


def loop_of(name: str) -> Loop:
    """The same where it is known that there is one."""
    return _loops[name]


def later(source: str, constants: dict[str, Any], dimensions: list[int], results: int) -> list[Loop]:
    """Have a run of a captured step compiled: an empty list, until it is and holds what does it."""
    found: list[Loop] = []
    if _installed():
        given = (source, constants, dimensions, results)
        thread = threading.Thread(target=_compile_run, args=(found, *given), name="asyncsched compiler", daemon=True)
        thread.start()
        _pending[:] = [*[one for one in _pending if one.is_alive()], thread]
    return found


def finish() -> bool:
    """Wait until all is compiled, for tests and benches. Whether there is something to run."""
    if not _started:
        _start()
    if _compiler is not None:
        _compiler.join()
    while _pending:
        _pending.pop().join()
    return bool(_loops)


def _start() -> None:
    global _compiler, _started
    with _starting:
        if not _started and _installed():
            _compiler = threading.Thread(target=_compile, name="asyncsched compiler", daemon=True)
            _compiler.start()
        _started = True


@cache
def _installed() -> bool:
    return importlib.util.find_spec("numba") is not None


def _compile_run(found: list[Loop], *given: Any) -> None:
    try:
        from .loops import compiled_run

        with _one_at_a_time:
            found.append(compiled_run(*given))
    except Exception:
        _log.warning("numba could not compile a run of a captured step: it runs without it", exc_info=True)


def _compile() -> None:
    try:
        from .loops import LOOPS
    except Exception:  # whatever numba or LLVM may raise: there is another way
        _log.warning("numba could not compile the operations of networks: they run without it", exc_info=True)
    else:
        _loops.update(LOOPS)
