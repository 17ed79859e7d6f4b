"""A contestant's process: answers the name of a work with the seconds that one operation of it takes.

`python -m bench.harness.contestant "numpy"` reads a question a line, as `bench.harness.child` writes them.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from time import perf_counter
from typing import Any, TextIO

from bench.libraries import LIBRARIES, uvloop_factory

from .rows import Who

Run = Callable[[int], Awaitable[float | tuple[float, str] | None]]
"""Does a work several times, up to a barrier. It may return a time of its own, or bytes, and a note."""
Prepare = Callable[..., Awaitable[Run]]
"""Takes the library, and how many operations one time has."""
Timed = Callable[[int], Awaitable[tuple[float, str]]]
ROUND = 0.2  # seconds that a round takes at least


@dataclass(frozen=True)
class Work:
    """How a work is prepared, and how many operations one time of it has. Modules have a table of works, `WORKS`."""

    prepare: Prepare
    ops: int = 1
    quick: int = 10  # the most operations in a smoke run
    small: bool = False  # whether slow libraries may do fewer operations
    once: bool = False  # whether a round is one time, however short, and its own result counts for one
    clock: Callable[[], float] = perf_counter  # the clock, if it does not return a time of its own

    def count(self, library: Any) -> int:
        """The operations of one time."""
        if library.quick:
            return min(self.ops, self.quick)
        return self.ops // (library.slow if self.small else 1)


class Contestant:
    """A library and its prepared works."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.ready: dict[str, tuple[Timed, int, int]] = {}  # with the operations of a time, and the times of a round

    async def answer(self, question: dict[str, Any]) -> Any:
        if "facts" in question:
            return self.library.facts()
        if "forget" in question:
            return self.ready.clear()
        if not self.library.quick:
            gc.collect()
        name = question.get("ready") or question["work"]
        if name not in self.ready:
            self.ready[name] = await self._prepared(name)
        if "ready" in question:
            return None
        timed, ops, count = self.ready[name]
        seconds, note = await timed(count)
        return seconds / (ops * count), note

    async def _prepared(self, name: str) -> tuple[Timed, int, int]:
        """A prepared work, with the number of times in a round."""
        module, _, key = name.partition(".")
        work: Work = importlib.import_module(f"bench.{module}").WORKS[key]
        ops = work.count(self.library)
        timed = partial(_timed, await work.prepare(self.library, ops), work.clock)
        if self.library.quick or work.once:
            return timed, 1 if work.once else ops, 1
        took, _ = await timed(1)
        if took < ROUND:  # first calls are slow
            took, _ = await timed(1)
        if took < ROUND / 10:
            trial = ceil(ROUND / 10 / max(took, 1e-6))
            took = (await timed(trial))[0] / trial
        return timed, ops, ceil(1.1 * ROUND / max(took, 1e-6))


async def _timed(run: Run, clock: Callable[[], float], count: int) -> tuple[float, str]:
    started = clock()
    own = await run(count)
    took = clock() - started
    if own is None:
        return took, ""
    return own if isinstance(own, tuple) else (own, "")


async def main(library: Any, answers: TextIO) -> None:
    await library.open()
    contestant = Contestant(library)
    for line in iter(sys.stdin.readline, ""):  # reading blocks the loop: between its turns a contestant is still
        question = json.loads(line)
        try:
            found = {"value": await contestant.answer(question)}
        except Exception as error:  # any exception of a library is why it has no number
            contestant.ready.clear()
            found = {"error": f"{type(error).__name__}: {error}".split("\n")[0]}
        print(json.dumps(found), file=answers, flush=True)
    await library.close()


def run(name: str, *options: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library's own output is no answer
    who = Who.of(name)
    if who.package is not None:
        sys.path.insert(0, who.package)  # before anything imports asyncsched; `bench` stays this one
    factory = uvloop_factory() if "uvloop" in who.flags else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main(LIBRARIES[who.library](who, quick="--quick" in options), answers))


if __name__ == "__main__":
    run(*sys.argv[1:])
