"""Kernels that run as loops compiled by numba, where that is installed: the extra `[numba]`.

Compiling takes seconds, and loading what an earlier process compiled half of one. So that is done on a thread of its
own, when the first array comes for which it pays; until it is done, and where it fails, the plain kernel runs. What is
compiled lets go of the interpreter's lock while it runs, and uses one thread: the stream's.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from . import activation, layers, losses
from . import softmax as plain

WORTH = 1 << 14  # elements: what is smaller is soon done anyway

Loop = Callable[..., Any]

_loops: dict[str, Loop] = {}
_compiler: threading.Thread | None = None
_started = False
_starting = threading.Lock()
_pending: list[threading.Thread] = []
_one_at_a_time = threading.Lock()  # LLVM's global lock would have it so anyway
_log = logging.getLogger(__name__)


def gelu(xp: Any, x: Any, *, approximate: str, out: Any = None) -> Any:
    """x times the normal distribution function of x."""
    run = loop("gelu" if approximate == "none" else "gelu_tanh", xp, x)
    if run is None:
        return activation.gelu(xp, x, approximate=approximate, out=out)
    out, result, values = layers.flat(xp, out, x)
    run(values, result)
    return out


def relu_backward(xp: Any, grad: Any, y: Any, *, out: Any = None) -> Any:
    """The gradient where the result was positive, and 0 elsewhere, be it infinite there."""
    run = loop("relu_backward", xp, grad, y)
    if run is None:
        return activation.relu_backward(xp, grad, y, out=out)
    out, result, grads, values = layers.flat(xp, out, grad, y)
    run(grads, values, result)
    return out


def softmax(xp: Any, x: Any, *, log: bool = False, out: Any = None) -> Any:
    """exp(x) over its sum along the last axis, or the logarithm of that."""
    run = loop("log_softmax" if log else "softmax", xp, x)
    if run is None:
        return plain.softmax(xp, x, log=log, out=out)
    out, result, rows = layers.as_rows(xp, out, x)
    run(rows, result)
    return out


def layer_norm(xp: Any, x: Any, weight: Any, bias: Any, *, eps: float, out: Any = None) -> Any:
    """(x - mean) / sqrt(variance + eps) weight + bias, over as many last axes as the weight has."""
    run = loop("layer_norm", xp, x, weight, bias)
    if run is None:
        return layers.layer_norm(xp, x, weight, bias, eps=eps, out=out)
    out, result, rows = layers.as_rows(xp, out, x, width=weight.size)
    run(rows, weight.reshape(-1), bias.reshape(-1), eps, result)
    return out


def cross_entropy(xp: Any, logits: Any, target: Any, *, label_smoothing: float, **options: Any) -> Any:
    """The logarithm of the sum of exponentials, less the logit of the target."""
    run = None if label_smoothing else loop("cross_entropy", xp, logits)
    each = losses.each_row if run is None else partial(_each_row, run)
    return losses.cross_entropy(xp, logits, target, label_smoothing=label_smoothing, each=each, **options)


def _each_row(run: Loop, xp: Any, logits: Any, target: Any, label_smoothing: float) -> Any:
    found = np.empty(len(logits), logits.dtype)
    run(logits, target.astype(np.int64, copy=False), found)
    return found


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
    """Whether a loop is there by now for a row, or part of one, of this name."""
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
        _log.warning("numba could not compile the rows of networks: they run without it", exc_info=True)
    else:
        _loops.update(LOOPS)
