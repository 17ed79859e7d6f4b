"""The cells share this: the text's results, tables and pictures of both, and a quick mode for the tests.

The text is the chapter "Asynchronous Computation" of *Dive into Deep Learning* (https://d2l.ai), in its MXNet version.
The results of its cells are from two editions with outputs. The edition of 2022 makes 10,000 increments (notebook
`chapter_computational-performance/async-computation.ipynb` of https://github.com/d2l-ai/d2l-en-sagemaker); the edition
of 2020 has the training loop and four exercises (the same of https://github.com/ReneEnjilian/d2l-en, a copy). They ran
on other machines: compare ratios, not seconds.

Each cell is a script of this folder, which also runs alone. `python demos/chapter/build.py` makes the notebook anew.
BLAS leaves one processor to the host: its threads wait for each other, so if one shared its processor, all would be
slow.
"""

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from threadpoolctl import threadpool_limits

QUICK = os.environ.get("ASYNCSCHED_CHAPTER") == "quick"
"""Small sizes and few rounds: the same lines run, and the numbers mean nothing."""

SECONDS_OF_2022 = {
    "numpy": 1.4217, "issue": 0.0282, "finish": 0.6636, "waitall": 0.0048, "wait_to_read": 0.0052,
    "asnumpy": 0.0071, "item": 0.0187, "synchronous": 0.9179, "asynchronous": 0.8671,
}  # fmt: skip
SECONDS_OF_2020 = {"barrier": 9.1496, "no barrier": 9.2689, "no barrier, issued": 0.3506}
MEGABYTES_OF_2020 = {"barrier": 4.892, "no barrier": 2.068}

PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
TEXT, HERE, LIGHT = "tab:gray", "tab:blue", "tab:orange"


def machine() -> None:
    """The machine of the numbers, and its load at that time."""
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {datetime.now(UTC):%Y-%m-%d}")
    print(f"{platform.machine()}, {PROCESSORS} processors, load average before: {os.getloadavg()[0]:.1f}")


def duration(seconds: float) -> str:
    """Three digits, in the unit that suits."""
    unit, scale = ("s", 1.0) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("us", 1e6)
    value = seconds * scale
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


@dataclass(frozen=True)
class Row:
    """A line of a table, in seconds."""

    what: str
    text: float
    here: float


def table(rows: Sequence[Row]) -> None:
    """The text's results and those here, side by side."""
    width = max(len(row.what) for row in rows) + 2
    print(f"{'':{width}}{'the text':>12}{'here':>12}")
    for row in rows:
        print(f"{row.what:{width}}{duration(row.text):>12}{duration(row.here):>12}")
    print()


def bars(rows: Sequence[Row], title: str) -> Any:
    """The same as a picture: a panel for each, with its own scale."""
    figure, panels = plt.subplots(1, 2, figsize=(9, 0.8 + 0.42 * len(rows)), sharey=True, layout="constrained")
    for axes, who, colour in zip(panels, ("text", "here"), (TEXT, HERE), strict=True):
        times = [getattr(row, who) for row in rows]
        drawn = axes.barh([row.what for row in rows], times, color=colour)
        axes.bar_label(drawn, [f" {duration(time)}" for time in times])
        axes.set(title="the text" if who == "text" else "here", xlim=(0, 1.3 * max(times)), xlabel="seconds")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].invert_yaxis()
    figure.suptitle(title)
    return figure


def show(figure: Any, name: str) -> None:
    """In the notebook below its cell; in a script as a PNG in the current folder."""
    if "ipykernel" in sys.modules:
        plt.show()
    else:
        figure.savefig(f"{name}.png", dpi=100)
        print(f"plot: {name}.png")
    plt.close(figure)


threadpool_limits(max(1, PROCESSORS - 1), user_api="blas")
if "ipykernel" not in sys.modules:
    matplotlib.use("Agg")
