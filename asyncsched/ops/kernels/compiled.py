"""Kernels as loops that numba compiles, if it is installed: the extra `[numba]`.

Compiling takes seconds, and loading the results of an earlier process half a second. So a thread of its own does it,
one loop after the other, when the first array comes that is large enough; the thread ends when nothing is left to
compile. Until then, and if it fails or no thread can start, the plain kernel runs. A loop releases the GIL while it
runs, and uses one thread: the stream's.
"""

from __future__ import annotations

import importlib.util
import threading
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from typing import Any
from weakref import WeakValueDictionary, ref

import numpy as np

from ..._interrupts import Lock
from ..._system import Log, start_thread

WORTH = 1 << 14  # elements; smaller arrays are done quickly anyway
_KEPT_RUNS = 64  # a guess, as in `cluster.work`

Loop = Callable[..., Any]


class Loops(list[Loop]):
    """The compiled loop of a captured step's run; empty until compiled. Not compiled if it is dropped before."""


_loops: dict[str, Loop] = {}
_started = False
_starting = Lock()
_runs: WeakValueDictionary[Any, Loops] = WeakValueDictionary()  # those in use, by what they are compiled from
_kept: deque[Loops] = deque(maxlen=_KEPT_RUNS)  # recently compiled ones, in case the same step is captured again
_wanted: deque[Callable[[], None]] = deque()  # the compiler's work
_compiler: threading.Thread | None = None
_busy = False  # whether the compiler will look into `_wanted` once more
_asking = Lock()  # guards the three above
_log = Log(__name__)


def loop(name: str, xp: Any, *arrays: Any) -> Loop | None:
    """The compiled loop for these arrays; None if the plain kernel must run."""
    if xp is not np or arrays[0].size < WORTH:
        return None
    if not all(array.dtype == np.float32 and array.flags.c_contiguous for array in arrays):
        return None
    if not _started:
        _start()
    return _loops.get(name)


def compiled(name: str) -> bool:
    """Whether the loop of this name is compiled."""
    return name in _loops


def later(source: str, constants: dict[str, Any], dimensions: list[int], results: int) -> Loops:
    """Have a run of a captured step compiled. Returns an empty list until it is; equal runs share one."""
    key = source, *[value.tobytes() for value in constants.values()], *dimensions, results
    found = _runs.get(key)
    if found is None:
        found = Loops()
        if _installed() and _ask(partial(_compile_run, ref(found), source, constants, dimensions, results)):
            _runs[key] = found
    return found


def finish() -> bool:
    """Wait until everything is compiled, for tests and benches. Returns whether any loop exists."""
    if not _started:
        _start()
    while _busy and _compiler is not None and _compiler.is_alive():
        _compiler.join()
    return bool(_loops)


def _start() -> None:
    global _started
    with _starting:
        _started = _started or not _installed() or _ask(_compile)


def _ask(work: Callable[[], None]) -> bool:
    """Let the compiler do this in its turn. Returns False if no thread can start."""
    global _compiler, _busy
    with _asking:
        if not _busy or _compiler is None or not _compiler.is_alive():  # not alive in the child of a fork
            try:
                thread = start_thread(_work, "compiler")
            except RuntimeError:
                return False
            _compiler, _busy = thread, True
        _wanted.append(work)
    return True


def _work() -> None:
    global _busy
    while True:
        with _asking:
            if not _wanted:
                _busy = False
                return
            work = _wanted.popleft()
        work()


@cache
def _installed() -> bool:
    return importlib.util.find_spec("numba") is not None


def _compile_run(wanted: ref[Loops], *given: Any) -> None:
    found = wanted()
    if found is None:
        return
    try:
        from .loops import compiled_run

        found.append(compiled_run(*given))
        _kept.append(found)
    except Exception:
        _log.warning("numba could not compile a run of a captured step: it runs without it", exc_info=True)


def _compile() -> None:
    try:
        from .loops import LOOPS
    except Exception:  # any error of numba or LLVM: the plain kernel remains
        _log.warning("numba could not compile the operations of networks: they run without it", exc_info=True)
    else:
        _loops.update(LOOPS)
