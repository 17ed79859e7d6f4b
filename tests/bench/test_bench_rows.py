"""Every row of every subject is measured: by default for asyncsched alone, in CI for all. Nothing is judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.harness.environments import NEEDS
from bench.harness.rows import ROOT, Row, Who
from bench.harness.subjects import SUBJECTS, module_of
from bench.libraries import LIBRARIES
from tests.thorough import usually

pytest.importorskip("matplotlib", reason="the extra `demos` is not installed")
from bench.render import ALL, TABLES  # noqa: E402

pytestmark = [pytest.mark.one_loop, pytest.mark.timeout(300)]
ALONE = os.environ | {"OMP_NUM_THREADS": "1"}  # threads that spin would take the processors from the other tests
HERE = ("numpy", "asyncsched", "run_in_executor", "to_thread", "dask")  # libraries that the tests are run with
# By subject, the rows that are measured in a way of their own.
OWN = {
    "serving": (
        "capacity-time; capacity-p99; overload-time; overload-p99; overload-refusals; overload-healthz; overload-lag"
        "; overload-tracked; overload-resident; overload-counts"
        "; deadlines-80-time; deadlines-80-late; deadlines-80-refusals; tenants"
        "; stopping-unanswered; stopping-seconds"
    ),
    "replan": "; ".join(
        f"{work}-{limit}-{what}"
        for work in ("loader", "training")
        for limit in ("smallest", "between", "most")
        for what in ("time", "peak")
    ),
    "soak": "resident; objects; blocks; tasks; threads; files; ledgers",
    "cluster": "product-8; one-by-one; captured; burst; small",
    "tokens": "; ".join(
        [
            f"{size}, {clients} clients, {what}"
            for size in ("tiny", "wide")
            for clients in (1, 4)
            for what in ("time per token, p50", "first, p50", "first, p99", "gap, p50", "gap, p99")
        ]
        + ["left", "resident set", "tracked bytes", "longest gap beside a long prompt"]
    ),
}
TOGETHER = [subject for subject in SUBJECTS if subject not in ("gpu", *OWN)]


def rows(subject: str) -> list[Row]:
    return [row for row in module_of(subject).ROWS if isinstance(row, Row)]


def contestants() -> set[str]:
    return {cell[0] for subject in TOGETHER for row in rows(subject) for cell in row.cells.values()}


def bench(folder: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench", *arguments, "--quick", "--no-install", "--results", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=ALONE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "QUICK: the numbers mean nothing" in done.stdout
    return {path.stem: json.loads(path.read_text()) for path in folder.iterdir()}


def test_every_row_is_measured(tmp_path: Path) -> None:
    here = {name for name in contestants() if name.split()[0] in HERE and "numba" not in name}
    wanted = usually({"asyncsched"}, here)
    found = bench(tmp_path, *TOGETHER, "--contestants", ",".join(wanted))
    for subject in TOGETHER:
        assert found[subject].keys() >= {"date", "machine", "contestants", "missing", "rows", "notes"}
        for row, saved in zip(rows(subject), found[subject]["rows"], strict=True):
            here = {column for column, (who, _) in row.cells.items() if who in wanted}
            able = {c: cell for c, cell in saved["cells"].items() if "NotImplementedError" not in cell.get("error", "")}
            assert saved["cells"].keys() == here, saved
            assert all("value" in cell and "ratio" in cell for cell in able.values()), saved


@pytest.mark.parametrize("subject", usually(["replan", "soak"], [*OWN]))  # the others take long
def test_what_is_measured_in_a_way_of_its_own(subject: str, tmp_path: Path) -> None:
    found = bench(tmp_path, subject)[subject]
    assert [row["key"] for row in found["rows"]] == OWN[subject].split("; ")
    assert all(any("value" in cell for cell in row["cells"].values()) for row in found["rows"])
    assert all(target["met"] is not None for row in found["rows"] for target in row["targets"].values())


def test_each_contestant_and_work_that_a_row_names_exists():
    for subject in TOGETHER:
        assert len({row.key for row in rows(subject)}) == len(rows(subject))
        for row in rows(subject):
            assert row.targets.keys() <= row.cells.keys()
            assert all(target.why for target in row.targets.values())
            for work in {cell[1] for cell in row.cells.values() if isinstance(cell, tuple)}:
                module, _, name = work.partition(".")
                assert name in __import__(f"bench.{module}", fromlist=["WORKS"]).WORKS
    assert {Who.of(name).library for name in contestants()} <= LIBRARIES.keys()
    assert {library.needs for library in LIBRARIES.values()} <= NEEDS.keys()


def test_each_subject_is_in_the_rendered_page_or_was_never_measured():
    page, tables = ALL.read_text("utf-8"), TABLES.read_text("utf-8")
    for path in (ROOT / "bench" / "results").glob("*.json"):
        assert f"## {path.stem}\n" in tables
        assert f"(results/README.md#{path.stem})" in page
