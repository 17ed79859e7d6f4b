"""The tests of `dask.array`, run on `asyncsched.cluster.get` and on Dask's threads, alike.

    python -m tests.cluster.conformance [what pytest is to select by -k]

They are those of the Dask that is installed. Also where they ask for the synchronous scheduler, as most do, they get
the one under test. Prints one table; exits with 1 if a test fails that passes on threads.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.array_api.conformance import ROOT, Outcome, outcomes_in

SCHEDULERS = ("asyncsched", "threads")


def run(scheduler: str, select: str = "", *tests: str) -> Outcome:
    """Run the tests, or those that pytest selects by `select`, on one scheduler, in a process of its own.

    Raises:
        RuntimeError: if they did not run to their end.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        (Path(folder) / "pytest.ini").write_text("[pytest]\n")
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", "-p", "tests.cluster.under_test"),
                *("-p", "no:cacheprovider", f"--junit-xml={report}", "-k", select),
                *("--pyargs", *(tests or ("dask.array",))),
            ],
            cwd=folder,
            env=environment | {"DASK_TESTS_ON": scheduler, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in (0, 1) or not report.exists():
            raise RuntimeError(f"the tests did not run on {scheduler}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return Outcome(dict(outcomes_in(report)))


def table(outcomes: dict[str, Outcome], alone: set[str]) -> str:
    """Counts of both, and the tests that fail on ours alone."""
    lines = [f"{'scheduler':<12}{'passed':>8}{'failed':>8}{'skipped':>8}"]
    for name, outcome in outcomes.items():
        counts = outcome.counts()
        lines.append(f"{name:<12}{counts['passed']:>8}{counts['failed']:>8}{counts['skipped']:>8}")
    return "\n".join([*lines, f"failed that pass on Dask's threads: {len(alone)}", *sorted(alone)])


def main() -> int:
    outcomes = {scheduler: run(scheduler, " ".join(sys.argv[1:])) for scheduler in SCHEDULERS}
    alone = outcomes["asyncsched"].failed() - outcomes["threads"].failed()
    print(table(outcomes, alone))
    return 1 if alone else 0


if __name__ == "__main__":
    raise SystemExit(main())
