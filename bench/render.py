"""Renders what is in bench/results: `python -m bench.render`.

The tables of all subjects go into bench/README.md, below what they come to; a short one into the README, and pictures
beside the results. No number is typed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from .harness.pictures import draw_bars, draw_growth, draw_soak
from .harness.results import RESULTS, amount, contestants, markdown, missed, notes, number, setting, tables
from .harness.rows import ROOT, Result
from .harness.subjects import SUBJECTS, module_of

README: Final = ROOT / "README.md"
ALL: Final = ROOT / "bench" / "README.md"
FRONT: Final = ROOT / "bench" / "front.md"
"""The README's table: `{subject.row column}` stands for a cell's ratio, with `; value` for what was measured."""
FOUND: Final = ROOT / "bench" / "found.md"
"""What each bench found, in the same way."""
_REFERENCE: Final = re.compile(r"\{(\w+)\.([\w-]+) ([^};]+)(; value)?\}")
_HEAD = """# What the benches measured

`python -m bench` measures all of it, `python -m bench SUBJECT` or `SUBJECT.ROW` some, `--help` says how, and `python -m
bench.render` writes this page and the pictures. Each *x* is a ratio to the first column that has a number in its row,
taken round by round in one run; a dash says that there is no number, for a reason that is told below. What stands in
brackets is a target.

Contestants take turns, each in a process of its own with the BLAS kernels of the processor, in rounds of 0.2 s or more
with pauses of 120 ms, so that no threads of the last one spin into the next.

`python -m bench --against REV [ROWS]` measures this working tree beside another revision, with the spread of each
ratio: that is how a change is judged. `heart` has what the scheduler itself costs, `beside` every kind of work.
"""


def main() -> None:
    README.write_text(rendered(README.read_text("utf-8")), "utf-8")
    ALL.write_text(page(), "utf-8")
    draw_bars(RESULTS / "peers.png", _load("peers"), "Peers beside NumPy inline", ("asyncsched", "one stream"))
    ours = ("asyncsched", "one stream", "with numba")
    draw_bars(RESULTS / "beside.png", _load("beside"), "Beside what one would pick instead", ours)
    draw_growth(RESULTS / "growth.png", _load("growth"))
    draw_soak(RESULTS / "soak.png", _load("soak"))


def _load(subject: str) -> Result:
    result: Result = json.loads((RESULTS / f"{subject}.json").read_text("utf-8"))
    return result


def rendered(readme: str) -> str:
    """The README with its table between the two marks."""
    begin, end = "<!-- bench.render: front -->", "<!-- bench.render: end of front -->"
    before, rest = readme.split(begin)
    return f"{before}{begin}\n{filled(FRONT)}\n{end}{rest.split(end)[1]}"


def filled(template: Path) -> str:
    """A table with its numbers, a dash where there is none, and when and where."""
    used: dict[str, Result] = {}

    def value(found: re.Match[str]) -> str:
        subject, key, column, value = found.groups()
        result = used.setdefault(subject, _load(subject))
        row = next(row for row in result["rows"] if row["key"] == key)
        cell: dict[str, Any] = row["cells"][column]
        if "value" not in cell:
            return "-"
        return amount(cell["value"], row["unit"]) if value else f"{number(cell['ratio'])}x"

    text = _REFERENCE.sub(value, template.read_text("utf-8")).strip()
    dates = sorted(result["date"][:10] for result in used.values())
    cpus = sorted({result["machine"]["cpus"] for result in used.values()})
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return f"{text}\n\nMeasured {when} on {' or '.join(map(str, cpus))} processors; medians of a run."


def page() -> str:
    """All tables of all subjects that have results, each with its picture."""
    parts = [_HEAD, f"## What they come to\n\n{filled(FOUND)}\n"]
    for path in sorted(RESULTS.glob("*.json"), key=lambda path: SUBJECTS.index(path.stem.partition("-")[0])):
        result = _load(path.stem)
        parts.append(f"## {path.stem}\n\n{module_of(result['bench']).__doc__.strip()}\n\n{setting(result)}.\n")
        parts += [markdown(table) + "\n" for table in tables(result)]
        if path.with_suffix(".png").exists():
            parts.append(f"![{path.stem}](results/{path.stem}.png)\n")
        if said := [f"{contestants(result)}."] * bool(result["contestants"]) + _lines(result):
            parts.append("\n".join(f"- {line}" for line in said) + "\n")
    return "\n".join(parts)


def _lines(result: Result) -> list[str]:
    return [*[f"missed: {line}" for line in missed(result)], *notes(result)]


if __name__ == "__main__":
    main()
