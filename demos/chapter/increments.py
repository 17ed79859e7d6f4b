"""## Improving computation

`y = x + 1`, 10,000 times: synchronously, with a barrier after each, and asynchronously, with one at the end. The text's
`x` has two elements, and the two ways differ little there: the cost of a barrier is that of one thread which waits for
another. Here such a small operation is computed where it is issued, if nothing is queued before it, and a barrier on it
costs one turn of the event loop.
"""

from functools import partial

import numpy as np
from book import QUICK, SECONDS_OF_2022, Row, bars, show, table

import asyncsched as asc

COUNT = 100 if QUICK else 10_000


async def increments() -> None:
    async with asc.Scheduler("cpu") as s:
        x = await s.put(np.ones((1, 2)))
        rows = []
        for way in (synchronous, asynchronous):
            found = await asc.measure(partial(way, x, COUNT), 3)
            rows.append(Row(way.__name__, SECONDS_OF_2022[way.__name__], found.finish.median))
    table(rows)
    for who in ("text", "here"):
        each, last = (getattr(row, who) for row in rows)
        print(f"{who}: synchronous takes {each / last:.2f} times as long as asynchronous")
    show(bars(rows, "10,000 increments of an array of shape (1, 2)"), "increments")


async def synchronous(x: asc.Tensor, count: int) -> None:
    for _ in range(count):
        y = x + 1
        await y


async def asynchronous(x: asc.Tensor, count: int) -> None:
    for _ in range(count):
        y = x + 1
    await y


if __name__ == "__main__":
    asc.run(increments)
