"""asyncio for tensor work.

Operations are awaitable tasks on streams, queues are bounded, `await` is the only barrier.
"""

from __future__ import annotations

from . import autograd, nn, optim
from .autograd import no_grad
from .devices.contract import Device
from .errors import (
    AsyncSchedError,
    CaptureError,
    DeadlineExceeded,
    ImplicitBarrierError,
    MemoryDeadlockError,
    QueueFull,
    SchedulerClosed,
    SchedulerStalled,
    TaskCancelled,
    TaskTooLarge,
)
from .flow.batcher.batcher import Batcher
from .flow.scope import Scope
from .nn.checkpoint import load, save
from .runtime.run import run
from .runtime.statistics import Load, Statistics
from .scheduler import Scheduler
from .tensors import functions as _functions
from .tensors.functions import *  # noqa: F403
from .tensors.handles import Task, gather
from .tensors.tensor import Tensor

__all__ = [
    "AsyncSchedError",
    "Batcher",
    "DeadlineExceeded",
    "CaptureError",
    "Device",
    "ImplicitBarrierError",
    "Load",
    "MemoryDeadlockError",
    "QueueFull",
    "Scheduler",
    "SchedulerClosed",
    "SchedulerStalled",
    "Scope",
    "Statistics",
    "Task",
    "TaskCancelled",
    "TaskTooLarge",
    "Tensor",
    "autograd",
    "gather",
    "load",
    "nn",
    "no_grad",
    "optim",
    "run",
    "save",
    *_functions.__all__,  # type: ignore[attr-defined]  # computed: see there
]
