"""Loops of kernels that numba compiles, where that is installed: the extra `[numba]`.

Compiling takes seconds, and loading what an earlier process compiled half of one. So that is done on a thread of its
own, one thing after the other, when the first array comes for which it pays; the thread ends when there is nothing left
to do. Until it is done, and where it fails or no thread can start, the plain kernel runs. A loop releases the GIL while
it runs, and uses one thread: the stream's.
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

from ..._locks import Lock
from ..._log import Log

WORTH = 1 << 14  # elements: what is smaller is soon done anyway
_KEPT_RUNS = 64  # a guess, as of `cluster.work`

Loop = Callable[..., Any]


class Loops(list[Loop]):
    """What does a run of a captured step, once it is compiled. It is not, if everybody drops this before."""


_loops: dict[str, Loop] = {}
_started = False
_starting = Lock()
_runs: WeakValueDictionary[Any, Loops] = WeakValueDictionary()  # by what they are compiled of, those that are in use
_kept: deque[Loops] = deque(maxlen=_KEPT_RUNS)  # compiled lately: for whoever captures the same again
_wanted: deque[Callable[[], None]] = deque()  # what the compiler is to do
_compiler: threading.Thread | None = None
_busy = False  # whether the compiler will look at what is wanted once more
_asking = Lock()  # of the three above
_log = Log(__name__)


def loop(name: str, xp: Any, *arrays: Any) -> Loop | None:
    """What is compiled for these arrays; None where the plain kernel is to run."""
    if xp is not np or arrays[0].size < WORTH:
        return None
    if not all(array.dtype == np.float32 and array.flags.c_contiguous for array in arrays):
        return None
    if not _started:
        _start()
    return _loops.get(name)


def compiled(name: str) -> bool:
    """Whether there is a loop of this name by now."""
    return name in _loops


def later(source: str, constants: dict[str, Any], dimensions: list[int], results: int) -> Loops:
    """Have a run of a captured step compiled: empty, until it is. Equal runs have the same."""
    key = source, *[value.tobytes() for value in constants.values()], *dimensions, results
    found = _runs.get(key)
    if found is None:
        found = Loops()
        if _installed() and _ask(partial(_compile_run, ref(found), source, constants, dimensions, results)):
            _runs[key] = found
    return found


def finish() -> bool:
    """Wait until all is compiled, for tests and benches. Whether there is something to run."""
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
    """Have the compiler do this in its turn. Whether it will: not where no thread can start."""
    global _compiler, _busy
    with _asking:
        if not _busy or _compiler is None or not _compiler.is_alive():  # the last in the child of a fork
            thread = threading.Thread(target=_work, name="asyncsched compiler", daemon=True)
            try:
                thread.start()
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
    except Exception:  # whatever numba or LLVM may raise: there is another way
        _log.warning("numba could not compile the operations of networks: they run without it", exc_info=True)
    else:
        _loops.update(LOOPS)
