"""asyncio for tensor work.

Operations are awaitable tasks on streams, queues are bounded, `await` is the only barrier.

>>> async def main():
...     async with asc.Scheduler("cpu") as s:
...         x = await s.put(np.arange(4.0))     # waits for room
...         y = (x @ x) + 1                     # returns at once
...         return await y.item()               # waits for y
>>> asc.run(main)
15.0
"""

from __future__ import annotations

import asyncio as _asyncio  # noqa: F401
from typing import TYPE_CHECKING

# These two are imported here, where the stack is shallow. Deep in nested imports, a call may need a new chunk of
# CPython's stack, which is mapped and unmapped each time: NumPy's import took up to 40 ms longer.
try:
    import numpy as _numpy  # noqa: F401
except ImportError as _error:
    if "subinterpreters" in str(_error) or "once per process" in str(_error):  # the latter if they share a GIL
        raise ImportError(
            "asyncsched cannot be used in a subinterpreter, since NumPy cannot: use threads, beside which NumPy"
            " computes, or processes, each with a scheduler of its own"
        ) from _error
    raise

from . import _instead
from .devices.contract import Device
from .errors import (
    AsyncSchedError,
    CaptureError,
    CheckpointDamaged,
    DeadlineExceeded,
    ImplicitBarrierError,
    MemoryDeadlockError,
    Preempted,
    QueueFull,
    SchedulerClosed,
    SchedulerStalled,
    TaskCancelled,
    TaskTooLarge,
)
from .flow.learned import LearnedCost
from .flow.scope import Scope
from .flow.window import Window
from .ops.op import exact
from .runtime.loops import run
from .runtime.statistics import Load, Statistics
from .scheduler import Scheduler, current_scheduler
from .scheduler import open as open
from .tensors import functions as _functions
from .tensors import methods as _methods
from .tensors.awaitables import gather
from .tensors.capture import Graph
from .tensors.functions import *  # noqa: F403
from .tensors.functions.dtypes import __array_api_version__, __array_namespace_info__  # noqa: F401
from .tensors.handles import Task
from .tensors.tensor import Tensor

if TYPE_CHECKING:
    from . import array_api, autograd, cluster, devices, nn, observe, optim, serving
    from .autograd.tape import no_grad
    from .devices.cuda.janitor import record_stream
    from .flow.batcher import SKIP, Batcher, Last, Stepper
    from .flow.pipeline import Pipeline
    from .nn.checkpoint import load, save
    from .observe import Trace
    from .observe.timer import Timer, measure
    from .tensors.functions import fft, linalg, random

__version__ = "0.2.0"

# Imported at the first use of their names, since many programs never use them: by module, the names in it.
_WHEN_USED = {
    "autograd.tape": "no_grad",
    "devices.cuda.janitor": "record_stream",
    "flow.batcher": "Batcher Last SKIP Stepper",
    "flow.pipeline": "Pipeline",
    "nn.checkpoint": "load save",
    "observe": "Trace",
    "observe.timer": "Timer measure",
    "tensors.functions": "fft linalg random",
    "": "array_api autograd cluster devices nn observe optim serving",
}

__all__ = [
    "AsyncSchedError", "Batcher", "CaptureError", "CheckpointDamaged", "DeadlineExceeded", "Device", "Graph",
    "ImplicitBarrierError", "Last", "LearnedCost", "Load", "MemoryDeadlockError", "Pipeline", "Preempted", "QueueFull",
    "SKIP", "Scheduler", "SchedulerClosed", "SchedulerStalled", "Scope", "Statistics", "Stepper", "Task",
    "TaskCancelled", "TaskTooLarge", "Tensor", "Timer", "Trace", "Window", "array_api", "autograd", "cluster",
    "current_scheduler", "devices", "exact", "fft", "gather", "linalg", "load", "measure", "nn", "no_grad", "observe",
    "optim", "random", "record_stream", "run", "save", "serving",
    *_functions.__all__,  # type: ignore[attr-defined]  # computed, see there
]  # fmt: skip


_instead.explain_missing(globals(), __name__, _instead.PACKAGE, when_used=_WHEN_USED)


def __dir__() -> list[str]:
    return [*__all__, "open", "__array_api_version__", "__array_namespace_info__", "__doc__", "__version__"]


def _autograd() -> _methods.Autograd:
    from . import autograd

    return autograd


_methods.autograd = _autograd
