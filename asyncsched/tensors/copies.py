"""Copies of values' arrays to the host, for those who await them."""

from __future__ import annotations

import asyncio
from typing import Any

from .._core.model import Value
from ..devices.contract import Job
from ..runtime.life import Life, running_loop
from ..runtime.runtime import INLINE_COPY, Runtime
from ..runtime.threads import in_thread


async def copy_out(runtime: Runtime, value: Value) -> Any:
    """A host copy of a done value's array: small ones here, others on the copy stream. Costs no tracked bytes."""
    if runtime.life is Life.FORKED:
        runtime.refuse()
    array = value.array
    device = value.device
    if device.remote:
        return await device.bring(array)
    if device.inline and array.nbytes <= INLINE_COPY:
        return device.fetch(array)
    if runtime.life is Life.CLOSED or running_loop() is not runtime.loop:  # no copy stream, or another loop's
        return await in_thread(lambda: device.fetch(array), "copies out")
    assert runtime.loop is not None
    future: asyncio.Future[None] = runtime.loop.create_future()
    job = Job(lambda: device.fetch(value.array))  # holds the value, so that its buffer is not written over meanwhile

    def told(_: Job) -> bool:
        if not future.done():
            future.set_result(None)
        return True

    job.waiters = [told]
    device.offload(job)
    await future
    error, job.error = job.error, None  # no cycle: its frames hold the job
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback holds this frame
    return job.result
