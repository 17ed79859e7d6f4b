"""Marks for profilers: VTune shows which task a stream's thread runs, Nsight which is on the card."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .._arguments import require_package
from .._core.instrument import Instrument
from .._core.model import Task


class Marks(Instrument):
    """Names tasks in the profilers of Intel and NVIDIA, each by its device.

    On the CPU a task is an ITT task of the domain "asyncsched" while it runs, on its stream's thread. On CUDA it is an
    NVTX range from when it is issued until the host has seen its end; ranges overlap.

    Without a profiler a mark costs next to nothing. On CUDA timing events are recorded, as for any instrument that
    learns when bodies ended::

        async with asc.Scheduler("cuda", instruments=[asc.observe.Marks()]) as s:   # under `nsys profile python ...`
            ...

    Raises:
        ModuleNotFoundError: when given to a scheduler on the CPU, if ittapi is missing.
    """

    def __init__(self) -> None:
        self._ittapi: Any = None
        self._nvtx: Any = None
        self._domain: Any = None
        self._names: dict[str, Any] = {}  # handles of ITT's
        self._ranges: dict[Task, int] = {}  # of NVTX's, open

    def attached(self, scheduler: Any) -> None:
        if any(device.kind == "cpu" for device in scheduler.devices):
            require_package("asc.observe.Marks on the CPU", "ittapi", "vtune")
            self._ittapi = import_module("ittapi")
            self._domain = self._ittapi.domain("asyncsched")

    def body_began(self, task: Task) -> None:
        kind = _kind(task)
        if kind == "cpu":
            handle = self._names.get(task.name)
            if handle is None:
                handle = self._names[task.name] = self._ittapi.string_handle(task.name)
            self._ittapi.task_begin(self._domain, handle)
        elif kind == "cuda" and task not in self._ranges:  # it may begin twice, if it was put off
            if self._nvtx is None:
                self._nvtx = import_module("cupy.cuda.nvtx")
            self._ranges[task] = self._nvtx.RangeStart(task.name, None)

    def body_ended(self, task: Task, began: float, ended: float) -> None:
        if _kind(task) == "cpu":
            self._ittapi.task_end(self._domain)
        elif (open_range := self._ranges.pop(task, None)) is not None:
            self._nvtx.RangeEnd(open_range)


def _kind(task: Task) -> str:
    lane = task.lane
    return "" if lane is None else str(lane.device.kind)
