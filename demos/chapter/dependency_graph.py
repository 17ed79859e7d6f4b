"""The back end may run operations side by side as long as none reads the result of another. So it has to know the
inputs of each. The text draws this for `z = x * y + 2`. `s.graph(z)` draws, at any moment, the tasks for which `z`
waits. To leave it something to draw, a task holds the only slot. The second graph is of two branches that meet again.
"""

import re
import sys
import threading

import numpy as np

import asyncsched as asc
from asyncsched.observe import TaskGraph


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


def show_graph(graph: TaskGraph, name: str) -> None:
    """Below the cell, or as an SVG. Without the programs' lines, which a box shows under the mouse."""
    print(graph)
    if "ipykernel" in sys.modules:
        from IPython.display import SVG, display

        display(SVG(re.sub("<title>.*?</title>", "", graph.svg(), flags=re.DOTALL)))
    else:
        graph.save(f"{name}.svg")
        print(f"plot: {name}.svg")


if __name__ == "__main__":
    asc.run(dependency_graph)
