"""A contestant's process: answers the name of a work with the seconds that one operation of it takes.

`python -m bench.contestant '{"contestant": "numpy"}'` reads a question a line, as `bench.turns` writes them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from math import ceil
from time import perf_counter
from typing import Any, TextIO

from .libraries import Jax, JaxJit, Library, MXNet, NumPy, Ours, OursNumba, OursOneStream, OursUvloop, Torch
from .runners import Dask, Distributed, Executor, ExecutorUvloop, Ray, ToThread

LIBRARIES: dict[str, type[Library]] = {
    "numpy": NumPy,
    "torch": Torch,
    "jax": Jax,
    "jax jit": JaxJit,
    "mxnet": MXNet,
    "dask": Dask,
    "distributed": Distributed,
    "ray": Ray,
    "run_in_executor": Executor,
    "run_in_executor uvloop": ExecutorUvloop,
    "to_thread": ToThread,
    "asyncsched": Ours,
    "asyncsched one stream": OursOneStream,
    "asyncsched uvloop": OursUvloop,
    "asyncsched numba": OursNumba,
}
ROUND = 0.2  # seconds that a round takes at least


class Contestant:
    """A library and the work that it was asked for last."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.name = ""

    async def answer(self, question: dict[str, Any]) -> Any:
        if "facts" in question:
            return self.library.facts()
        if not self.library.quick:
            gc.collect()
        wanted = question.get("ready") or question["work"]
        if wanted != self.name:
            await self._prepare(wanted)
        if "ready" in question:
            return 0.0
        return await self._timed(self.count) / (self.ops * self.count)

    async def _prepare(self, name: str) -> None:
        """Get it ready, and find how many times a round takes."""
        from .works import WORKS

        work, self.name, self.run = WORKS[name], name, None
        self.ops = work.count(self.library)
        self.run = await work.prepare(self.library, self.ops)
        self.ops = 1 if work.once else self.ops
        self.count = 1
        if self.library.quick or work.once:
            return
        took = await self._timed(1)
        if took < ROUND:  # what was slow once is not slow again
            took = await self._timed(1)
        if took < ROUND / 10:
            trial = ceil(ROUND / 10 / max(took, 1e-6))
            took = await self._timed(trial) / trial
        self.count = ceil(1.1 * ROUND / max(took, 1e-6))

    async def _timed(self, count: int) -> float:
        assert self.run is not None
        started = perf_counter()
        own = await self.run(count)
        return perf_counter() - started if own is None else own


async def main(library: Any, answers: TextIO) -> None:
    await library.open()
    contestant = Contestant(library)
    for line in iter(sys.stdin.readline, ""):  # which blocks the loop: between its turns a contestant is still
        try:
            found = {"value": await contestant.answer(json.loads(line))}
        except Exception as error:  # whatever a library raises is why it has no number
            contestant.name = ""
            found = {"error": f"{type(error).__name__}: {error}".split("\n")[0]}
        print(json.dumps(found), file=answers, flush=True)
    await library.close()


def run(spec: dict[str, Any]) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    library = LIBRARIES[spec["contestant"]]()
    library.quick = bool(spec.get("quick"))
    with asyncio.Runner(loop_factory=type(library).loop_factory) as runner:
        runner.run(main(library, answers))


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
