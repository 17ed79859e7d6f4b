"""Results as pictures. A bar chart has a line for each work, ratios on a logarithmic axis, and marks for targets. Costs
as work grows have a panel for each kind of growth. Pictures are as wide as GitHub shows them, with readable text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, inf, log
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from .results import setting
from .rows import Result

BARS = ("#1f77b4", "#7fb8e6", "#2a9d8f")
TARGET = "crimson"
MARKS = "os^Dv<>PX*"


def draw_bars(path: Path, result: Result, title: str, ours: Sequence[str]) -> None:
    """Writes it, with bars for `ours` and marks for the others."""
    rows = [row for row in reversed(result["rows"]) if row["reference"] not in (None, *ours)]
    figure = Figure((9, 1.6 + 0.44 * len(rows)), layout="constrained")
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
    axes.set(xscale="log", ylim=(-0.6, len(rows) - 0.4))
    axes.set_yticks(range(len(rows)), [fill(row["work"].replace("`", ""), 36) for row in rows], fontsize=9)
    axes.set_xlabel("ratio to the first column that has a number in its row (logarithmic; left is faster, or less)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=6, fontsize=9)
    _save(figure, path, title, result)


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

_PANELS = {
    "processors": "processors", "issued": "tiny operations issued", "pending": "operations pending",
    "width": "independent tasks", "waiters": "coroutines that wait", "connections": "connections",
    "scopes": "scopes that are open, or in line for a reserve", "items": "items of a pipeline of three stages",
}  # fmt: skip
_COLOURS = {
    "NumPy": "dimgrey", "PyTorch": "#b50", "run_in_executor": "#183", "to_thread": "C3", "for asyncio": "dimgrey",
    "a chain": "C4", "without the collector": "C2", "for a value": "C4", "of many tenants": "C4", "threads": "C4",
    "in line": "C2",
}  # fmt: skip
_STYLES = ("-", "--", ":", "-.")


def draw_growth(path: Path, result: Result) -> None:
    """Writes a panel for each kind of growth."""
    figure = Figure((9, 13), layout="constrained")
    every = [axes for row in figure.subfigures(4, 1) for axes in row.subplots(1, 2)]
    for axes, (kind, title) in zip(every, _PANELS.items(), strict=True):
        _draw_panel(axes, kind, title, [row for row in result["rows"] if row["key"].partition("-")[0] == kind])
    _save(figure, path, "Costs as work grows", result)


def _save(figure: Figure, path: Path, title: str, result: Result) -> None:
    figure.suptitle(f"{title}\n{fill(setting(result), 110)}", fontsize=9)
    figure.savefig(path, dpi=150)


def _draw_panel(axes: Any, kind: str, title: str, rows: Sequence[Any]) -> None:
    """For processors the ratios, one style for each work; for the others the cost of one thing."""
    scaled, lines = kind == "processors", []
    styles = dict(zip(dict.fromkeys(row["work"].rpartition(", ")[0] for row in rows), _STYLES, strict=False))
    for row in rows:
        work, _, name = row["work"].rpartition(", ")
        found = {
            int(column.split()[0].replace(",", "")): cell for column, cell in row["cells"].items() if "value" in cell
        }
        cells = {size: found[size]["ratio" if scaled else "value"] for size in sorted(found)}
        label = row["work"].replace("`", "") if scaled else name
        lines.append((label, cells, f"o{styles[work]}", _COLOURS.get(name, "C0")))
    if scaled:
        ticks = sorted({size for _, cells, *_ in lines for size in cells})
        _draw_lines(axes, lines, xticks=ticks, xlabel=title, ylabel="time, to one processor's")
    else:
        _draw_lines(axes, lines, xscale="log", xlabel=title, ylabel="us for one")


def _draw_lines(axes: Any, lines: Iterable[tuple[str, Mapping[int, float], str, str]], **scales: Any) -> None:
    """Lines, each joined to its name at the right, one name above the other."""
    for _, cells, style, colour in lines:
        axes.plot(cells.keys(), cells.values(), style, color=colour, markersize=4)
    axes.set(yscale="log", **scales)
    axes.set_ylim(min(axes.get_ylim()[0], axes.get_ylim()[1] / 10))  # so that flat lines look flat
    (low, high), at, right = map(log, axes.get_ylim()), -inf, axes.get_yaxis_transform()
    for name, cells, _, colour in sorted(lines, key=lambda line: [*line[1].values()][-1]):
        *_, end = cells.items()
        at = max(log(end[1]), at + (high - low) / 16)
        arrow = {"arrowstyle": "-", "relpos": (0, 0.5), "color": colour}
        label = axes.annotate(name, end, (1.06, exp(at)), textcoords=right, va="center", arrowprops=arrow)
        label.set(color=colour, fontsize=8, annotation_clip=False)
    axes.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter="{x:g}", minor_formatter="")
    axes.grid(alpha=0.3)


# -- hours of work ------------------------------------------------------------------------------------------------

_CURVES = {
    "MiB": {"resident set": ("resident", 2**-20)},
    "thousands": {"objects": ("objects", 1e-3), "blocks allocated": ("blocks", 1e-3)},
    "": {name: (name, 1) for name in ("tasks", "threads", "files")},
    "at a sample": {"tasks in flight": ("in flight", 1), "MiB reserved": ("bytes reserved", 2**-20)},
}


def draw_soak(path: Path, result: Result) -> None:
    """Writes a panel for each unit, over the minutes."""
    (samples,) = [row["samples"] for row in result["rows"] if "samples" in row]
    figure, minutes = Figure((9, 7), layout="constrained"), [x / 60 for x in samples["seconds"]]
    for axes, (unit, curves) in zip(figure.subplots(2, 2).flat, _CURVES.items(), strict=True):
        for name, (key, scale) in curves.items():
            axes.plot(minutes, [x * scale for x in samples[key]], label=name, linewidth=0.9)
        axes.set(xlabel="minutes", ylabel=unit, ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    _save(figure, path, "A server beside a training, for hours", result)
