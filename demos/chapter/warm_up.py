"""## Asynchrony through a backend

Ten times, a random matrix of 1,000 x 1,000 and its product with itself: in NumPy, and by a framework that queues the
work and returns. The text finds the second far faster, until it waits for everything: then the difference is mostly
gone. So a time means something only with its barrier. `asc.measure` has a barrier on either side of each round, and
keeps both times: until the last line was *issued*, and until everything was *finished*.
"""

import numpy as np
from book import QUICK, SECONDS_OF_2022, Row, bars, show, table

import asyncsched as asc

SHAPE = (200, 200) if QUICK else (1000, 1000)


async def warm_up() -> None:
    async with asc.Scheduler("cpu"):
        host, device = np.random.default_rng(0), asc.random.default_rng(0)

        def numpy() -> None:
            for _ in range(10):
                a = host.standard_normal(SHAPE)
                a @ a

        def asyncsched() -> None:
            for _ in range(10):
                a = device.standard_normal(SHAPE)
                a @ a

        eager = await asc.measure(numpy, 3, warm_up=1)
        queued = await asc.measure(asyncsched, 3, warm_up=1)
    print(eager, queued, sep="\n", end="\n\n")
    rows = [
        Row("NumPy", SECONDS_OF_2022["numpy"], eager.finish.median),
        Row("the framework, issued", SECONDS_OF_2022["issue"], queued.issue.median),
        Row("the framework, finished", SECONDS_OF_2022["finish"], queued.finish.median),
    ]
    table(rows)
    for who in ("text", "here"):
        numpys, issue, finish = (getattr(row, who) for row in rows)
        print(f"{who}: NumPy takes {numpys / issue:,.0f} times as long as issuing, {numpys / finish:.2f} as finishing")
    show(bars(rows, "Ten products of random matrices, float64"), "warm_up")


if __name__ == "__main__":
    asc.run(warm_up)
