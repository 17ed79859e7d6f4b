"""The back end may run side by side what does not depend on each other, and nothing else: so it must know which
operation reads whose result. The text draws this for `z = x * y + 2`. `s.graph(z)` draws what `z` waits for, at any
moment; to have something to draw, a task holds up the only slot there is. Then the same after the barrier, and for two
branches that meet again.
"""

import threading

import numpy as np
from book import show_graph

import asyncsched as asc


async def dependency_graph() -> None:
    gate = threading.Event()
    async with asc.Scheduler("cpu", max_ops=1) as s:
        x, y = await s.put(np.ones((1, 2))), await s.put(np.ones((1, 2)))
        s.submit_nowait(gate.wait, name="holds the slot")
        z = x * y + 2
        show_graph(s.graph(z), "dependency_graph")
        up, down = asc.exp(x), asc.sqrt(y)
        show_graph(s.graph(asc.sin(up) + down * down), "two_branches")
        print("before:", repr(z))
        gate.set()
        print("after: ", await z)


if __name__ == "__main__":
    asc.run(dependency_graph)
