"""The back end may run side by side what does not depend on each other, and nothing else: so it must know which
operation reads whose result. The text draws this for `z = x * y + 2`. Here it is drawn from a trace of the run, with
a second example of two branches that meet again; what stands on one level could run at the same time.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
from book import HERE, LIGHT, show

import asyncsched as asc
from asyncsched.observe import Recording

SHAPE = (200, 200)  # the text's is (1, 2): that small, each would be computed where it is issued, and wait for nothing


async def dependency_graph() -> None:
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), width_ratios=(2, 3), layout="constrained")
    for axes, title, fn in zip(panels, ("z = x * y + 2", "two branches"), (the_texts, two_branches), strict=True):
        with TemporaryDirectory() as folder:
            recording = await traced(Path(folder) / "run.json", fn)
        for task in recording.tasks:
            reads = ", ".join(f"{seq}" for seq in task.inputs) or "nothing"
            print(f"{task.seq}: {task.name:9} reads {reads:6} {task.state}")
        print()
        draw(axes, recording)
        axes.set_title(title)
    show(figure, "dependency_graph")


async def traced(path: Path, fn) -> Recording:
    async with asc.Scheduler("cpu") as s, asc.Trace(path):
        x, y = await s.put(np.ones(SHAPE)), await s.put(np.ones(SHAPE))
        print((await fn(x, y))[0, :2])
    return Recording.read(path)


def the_texts(x: asc.Tensor, y: asc.Tensor) -> asc.Tensor:
    return x * y + 2


def two_branches(x: asc.Tensor, y: asc.Tensor) -> asc.Tensor:
    up, down = asc.exp(x), asc.sqrt(y)
    return asc.sin(up) + down * down


def draw(axes: plt.Axes, recording: Recording) -> None:
    """Each operation below those whose results it reads."""
    level: dict[int, int] = {}
    for task in recording.tasks:  # in the order of submission, so what it reads comes first
        level[task.seq] = 1 + max((level.get(seq, -1) for seq in task.inputs), default=-1)
    place = {}
    for seq, depth in level.items():
        row = [other for other in level if level[other] == depth]
        place[seq] = (row.index(seq) - (len(row) - 1) / 2, -depth)
    for task in recording.tasks:
        for seq in set(task.inputs) & set(place):
            axes.annotate(
                "", place[task.seq], place[seq], arrowprops={"arrowstyle": "->", "shrinkA": 14, "shrinkB": 14}
            )
        colour = LIGHT if task.name == "put" else HERE
        box = {"boxstyle": "round,pad=0.4", "facecolor": colour, "edgecolor": "none"}
        axes.text(*place[task.seq], f"{task.name} ({task.seq})", ha="center", va="center", color="white", bbox=box)
    axes.set(xlim=(-1.2, 1.2), ylim=(-max(level.values()) - 0.5, 0.5))
    axes.axis("off")


if __name__ == "__main__":
    asc.run(dependency_graph)
