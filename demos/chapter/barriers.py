"""## Barriers and blockers

A product is queued and then waited for: by a barrier on everything (`npx.waitall()` in the text, `await s.barrier()`
here), by one on a single tensor (`b.wait_to_read()`, `await b`), by a conversion to NumPy (`b.asnumpy()`, `await
b.numpy()`), and to a scalar (`b.sum().item()`, `await b.sum().item()`). In the text the first two take about the same
time, since nothing else is queued; the last exercise below has more in the queue.

The text warns of *implicit* blockers: printing, converting or branching on a tensor waits in silence. Here each of
these raises at the line that would have waited, and says what to write instead. Only `repr` never waits.
"""

from collections.abc import Callable

import numpy as np
from book import QUICK, SECONDS_OF_2022, Row, bars, show, table

import asyncsched as asc

SHAPE = (200, 200) if QUICK else (1000, 1000)


async def barriers() -> None:
    async with asc.Scheduler("cpu") as s:
        a = await s.put(np.random.default_rng(0).standard_normal(SHAPE))

        async def for_all() -> None:
            b = a @ a  # noqa: F841  # it is held, and nobody asks for it
            await s.barrier()

        async def for_one() -> None:
            await (a @ a)

        async def to_numpy() -> None:
            await (a @ a).numpy()

        async def to_scalar() -> None:
            await (a @ a).sum().item()

        rows = []
        for fn, name in ((for_all, "waitall"), (for_one, "wait_to_read"), (to_numpy, "asnumpy"), (to_scalar, "item")):
            found = await asc.measure(fn, 5)
            rows.append(Row(f"{fn.__name__} ({name})", SECONDS_OF_2022[name], found.finish.median))
        table(rows)
        refused(a @ a)
    show(bars(rows, "A product of 1,000 x 1,000 matrices, and a barrier"), "barriers")


def refused(b: asc.Tensor) -> None:
    attempts: dict[str, Callable[[], object]] = {
        "if b.sum() > 0": lambda: bool(b.sum() > 0),
        "float(b.sum())": lambda: float(b.sum()),
        "np.asarray(b)": lambda: np.asarray(b),
        "np.exp(b)": lambda: np.exp(b),
        "b.tolist()": b.tolist,
        'f"{b.sum():.3f}"': lambda: f"{b.sum():.3f}",
    }
    for text, attempt in attempts.items():
        try:
            raise AssertionError(f"it waited: {attempt()}")
        except asc.ImplicitBarrierError as error:
            print(f"{text:18}{type(error).__name__}: {error}")
    print(f"{'repr(b)':18}{b!r}")


if __name__ == "__main__":
    asc.run(barriers)
