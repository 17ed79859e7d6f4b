"""Results as a bar chart: one line per work, ratios on a logarithmic axis, targets marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .results import found, setting

BARS = ("#1f77b4", "#7fb8e6", "#2a9d8f")
TARGET = "crimson"
MARKS = "os^Dv<>PX*"


def draw(path: Path, result: Mapping[str, Any], title: str, ours: Sequence[str]) -> None:
    """Writes it, with bars for `ours` and marks for the others. Without matplotlib there is none: see `blank`."""
    rows = [row for row in reversed(result["rows"]) if row["reference"] not in (None, *ours)]
    figure = blank(11, 1.8 + 0.45 * len(rows))
    if figure is None:
        return
    axes = figure.subplots()
    bars = [column for column in ours if column in found({"rows": rows})]
    for y, row in enumerate(rows):
        here = [column for column in bars if _has(row, column)]
        for place, column in enumerate(here):
            _bar(axes, row, column, BARS[bars.index(column)], y, place, len(here))
    for column, colour in zip(bars, BARS, strict=False):
        axes.barh([0], [0], color=colour, label=column)
    if any(target["met"] is not None for row in rows for target in row["targets"].values()):
        axes.plot([], [], color=TARGET, linewidth=2.5, label="target")
    peers = [c for c in dict.fromkeys(c for row in rows for c in row["cells"]) if c not in bars and c in found(result)]
    for mark, column in zip(MARKS, peers, strict=False):
        at = [(row["cells"][column]["ratio"], y) for y, row in enumerate(rows) if _has(row, column)]
        axes.plot(
            *zip(*at, strict=True), mark, label=column, markersize=6, markeredgecolor="white", linestyle="", zorder=4
        )
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(xscale="log", yticks=range(len(rows)), ylim=(-0.6, len(rows) - 0.4))
    axes.set_yticklabels([row["work"].replace("`", "") for row in rows])
    axes.set_xlabel("ratio to the first column that has a number in its row (logarithmic; left is faster, or less)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.grid(axis="x", alpha=0.3)
    figure.suptitle(f"{title}\n{setting(result)}", fontsize=9)
    figure.legend(loc="outside lower center", ncols=6, fontsize=8)
    figure.savefig(path, dpi=110)


def blank(width: float, height: float) -> Any:
    """A figure to draw on, of so many inches; None, and a line that says so, where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no chart: needs matplotlib (`pip install matplotlib`)")
        return None
    return Figure(figsize=(width, height), layout="constrained")


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
