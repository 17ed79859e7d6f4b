"""Two revisions side by side: this working tree, and another that is cloned into a temporary folder.

Every row with asyncsched is measured with the packages of both, in children that take turns (A B, B A, ...), by the
works of this tree. If the other revision does not have the names of a work, the work is named and skipped.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import quantiles

from .results import amount, number, print_table
from .rows import OURS, ROOT, Cell, Here, Result, Row
from .subjects import Together
from .turns import Turns

HERE = "here"
_FAR = 1.05  # a ratio that is worth a look


def compare(revision: str, subjects: Mapping[str, Sequence[Row | Together]], turns: Turns) -> None:
    """Print a line for each row and contestant: the ratio of this tree to the revision, and its spread."""
    with _clone(revision) as folder, turns:
        pairs = [pair for pair in _pairs(revision, folder, subjects) if turns.wanted(pair.cells[HERE])]
        found = []
        for number_, row in enumerate(pairs, 1):
            print(f"{number_} of {len(pairs)}: {row.key}", flush=True)
            found.append(turns.measure(row))
    both = [result for result in found if "ratio" in result["cells"][HERE] and result["reference"] == revision]
    if not both:
        raise SystemExit("; ".join(["no row that both can run", *turns.missing.values()]))
    heads = ["row", revision, HERE, "ratio", "quartiles", "least..greatest", "rounds"]
    print_table([heads, *[_line(revision, result) for result in both]])
    for result in found:
        for column, cell in result["cells"].items():
            if "error" in cell:
                print(f"skipped: {result['key']}: {column}: {cell['error']}")
    far = [f"{r['key']} {number(r['cells'][HERE]['ratio'])}x" for r in both if r["cells"][HERE]["ratio"] > _FAR]
    print(f"more than {_FAR}x in the median: {', '.join(far) or 'none'}")


@contextmanager
def _clone(revision: str) -> Iterator[str]:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"git: {done.stderr.strip()}")
        return done.stdout.strip()

    commit = git("rev-parse", "--verify", f"{revision}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="against-") as folder:
        git("clone", "-q", "--no-checkout", str(ROOT), folder)
        git("-C", folder, "checkout", "-q", commit)
        yield folder


def _pairs(revision: str, folder: str, subjects: Mapping[str, Sequence[Row | Together]]) -> Iterator[Row]:
    """The works of asyncsched in these rows, once each, as rows of two columns."""
    seen = set()
    for subject, rows in subjects.items():
        for row in [row for row in rows if isinstance(row, Row)]:
            for column, cell in row.cells.items():
                if isinstance(cell, Here) or cell[0].split()[0] != OURS or cell in seen:
                    continue
                seen.add(cell)
                who, work = cell
                name = f"{subject}.{row.key}" if column == OURS else f"{subject}.{row.key}: {column}"
                both: dict[str, Cell] = {revision: (f"{who} package={folder}", work), HERE: cell}
                yield Row(name, row.title, row.unit, both, fresh=row.fresh)


def _line(revision: str, result: Result) -> list[str]:
    there, here = result["cells"][revision], result["cells"][HERE]
    ratios = sorted(here["ratios"])
    quarter, _, three = quantiles(ratios) if len(ratios) > 1 else ratios * 3
    return [
        result["key"],
        amount(there["value"], result["unit"]),
        amount(here["value"], result["unit"]),
        f"{here['ratio']:.3f}x",
        f"{quarter:.3f}..{three:.3f}",
        f"{ratios[0]:.3f}..{ratios[-1]:.3f}",
        str(len(ratios)),
    ]
