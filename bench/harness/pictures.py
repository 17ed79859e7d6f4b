"""Results as pictures: a bar chart with a line per work, ratios on a logarithmic axis, targets marked; and costs as
work grows, a panel for each kind of growth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from .results import setting
from .rows import Result

BARS = ("#1f77b4", "#7fb8e6", "#2a9d8f")
TARGET = "crimson"
MARKS = "os^Dv<>PX*"


def draw_bars(path: Path, result: Result, title: str, ours: Sequence[str]) -> None:
    """Writes it, with bars for `ours` and marks for the others."""
    rows = [row for row in reversed(result["rows"]) if row["reference"] not in (None, *ours)]
    figure = Figure((11, 1.8 + 0.45 * len(rows)), layout="constrained")
    axes = figure.subplots()
    found = {column for row in rows for column in row["cells"] if _has(row, column)}
    bars = [column for column in ours if column in found]
    for y, row in enumerate(rows):
        here = [column for column in bars if _has(row, column)]
        for place, column in enumerate(here):
            _bar(axes, row, column, BARS[bars.index(column)], y, place, len(here))
    for column, colour in zip(bars, BARS, strict=False):
        axes.barh([0], [0], color=colour, label=column)
    if any(target["met"] is not None for row in rows for target in row["targets"].values()):
        axes.plot([], [], color=TARGET, linewidth=2.5, label="target")
    peers = [c for c in dict.fromkeys(c for row in rows for c in row["cells"]) if c not in bars and c in found]
    for mark, column in zip(MARKS, peers, strict=False):
        at = [(row["cells"][column]["ratio"], y) for y, row in enumerate(rows) if _has(row, column)]
        axes.plot(*zip(*at, strict=True), mark, label=column, markeredgecolor="white", linestyle="", zorder=4)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(xscale="log", yticks=range(len(rows)), ylim=(-0.6, len(rows) - 0.4))
    axes.set_yticklabels([row["work"].replace("`", "") for row in rows])
    axes.set_xlabel("ratio to the first column that has a number in its row (logarithmic; left is faster, or less)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.grid(axis="x", alpha=0.3)
    figure.suptitle(f"{title}\n{setting(result)}", fontsize=9)
    figure.legend(loc="outside lower center", ncols=6, fontsize=8)
    figure.savefig(path, dpi=110)


def _bar(axes: Any, row: Mapping[str, Any], column: str, colour: str, y: int, place: int, of: int) -> None:
    """A bar from 1x to what was measured, with its target as a red line."""
    height = 0.76 / of
    at = y + 0.38 - height * (place + 0.5)
    axes.barh(at, row["cells"][column]["ratio"] - 1, height, left=1, color=colour, zorder=2)
    target = row["targets"].get(column)
    if target is not None and target["met"] is not None:
        axes.plot([target["limit"]] * 2, [at - height / 2, at + height / 2], color=TARGET, linewidth=2.5, zorder=3)


def _has(row: Mapping[str, Any], column: str) -> bool:
    return "ratio" in row["cells"].get(column, {})


# -- costs as work grows ------------------------------------------------------------------------------------------

_PANELS = {"issued": "tiny operations issued", "pending": "operations pending", "width": "independent tasks"}
_COLOURS = {"asyncsched": "C0", "NumPy": "C7", "PyTorch": "C1", "run_in_executor": "C2", "to_thread": "C3"}
_STYLES = ("-", "--", ":", "-.")


def draw_growth(path: Path, result: Result) -> None:
    """Writes a panel for processors, and one for each kind of growth."""
    figure = Figure((17, 4.6), layout="constrained")
    first, *panels = figure.subplots(1, 4)
    _draw_processors(first, [row for row in result["rows"] if _kind(row) not in _PANELS])
    for axes, (kind, title) in zip(panels, _PANELS.items(), strict=True):
        _draw_counts(axes, [row for row in result["rows"] if _kind(row) == kind], title)
    figure.suptitle(f"Costs as work grows\n{setting(result)}", fontsize=9)
    figure.savefig(path, dpi=110)


def _kind(row: Result) -> str:
    return str(row["work"]).partition(" ")[0]


def _draw_processors(axes: Any, rows: Any) -> None:
    works = dict.fromkeys(row["work"].rpartition(", ")[0] for row in rows)
    styles = dict(zip(works, _STYLES, strict=True))
    for row in rows:
        cells = {int(column.split()[0]): cell["ratio"] for column, cell in row["cells"].items() if "ratio" in cell}
        title, _, name = row["work"].rpartition(", ")
        label = row["work"].replace("`", "")
        axes.plot(cells.keys(), cells.values(), f"o{styles[title]}", color=_COLOURS[name], label=label)
    counts = sorted({int(column.split()[0]) for row in rows for column in row["cells"]})
    axes.set(xlabel="processors", ylabel="time, to one processor's", xticks=counts, yscale="log")
    _plain_numbers(axes.yaxis)
    axes.legend(fontsize=6)
    axes.grid(alpha=0.3)


def _draw_counts(axes: Any, rows: Any, title: str) -> None:
    for column in dict.fromkeys(column for row in rows for column in row["cells"]):
        points = [
            (_size(row), row["cells"][column]["value"]) for row in rows if "value" in row["cells"].get(column, {})
        ]
        axes.plot(
            *zip(*points, strict=True), "o-" if column == "asyncsched" else "o:", color=_COLOURS[column], label=column
        )
    axes.set(xscale="log", yscale="log", xlabel=title, ylabel="us for one")
    _plain_numbers(axes.yaxis)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _plain_numbers(axis: Any) -> None:
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(lambda value, _: f"{value:g}")
    axis.set_tick_params(which="both", labelsize=7)


def _size(row: Mapping[str, Any]) -> int:
    return int(row["work"].partition(" ")[2].replace(",", ""))
