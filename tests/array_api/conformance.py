"""The public suite of the array API standard, run on `asyncsched.array_api` and on NumPy, alike.

    python -m tests.array_api.conformance /path/to/array-api-tests [examples]

The path is that of a checkout of https://github.com/data-apis/array-api-tests with its submodule, and with what its
`requirements.txt` lists installed. Prints one table; exits with 1 if a test fails that NumPy passes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
NAMESPACES = ("asyncsched.array_api", "numpy")
VERSION, SEED, EXAMPLES = "2025.12", 0, 50  # as the guide says
GUIDE = ROOT / "asyncsched" / "array_api" / "README.md"


class Outcome(NamedTuple):
    """What became of each test of the suite, by its name: "passed", "failed" or "skipped"."""

    tests: dict[str, str]

    def failed(self) -> set[str]:
        return {name for name, what in self.tests.items() if what == "failed"}

    def counts(self) -> Counter[str]:
        return Counter(self.tests.values())


def compare(suite: Path, examples: int) -> tuple[dict[str, Outcome], set[str]]:
    """What became of each test in both namespaces, and those that fail on ours alone.

    Those are tried on NumPy with many more examples: the one that fails may just not have been drawn there.
    """
    outcomes = {namespace: run(suite, namespace, examples) for namespace in NAMESPACES}
    alone = outcomes[NAMESPACES[0]].failed() - outcomes[NAMESPACES[1]].failed()
    if alone:
        names = [name.rpartition("::")[2].partition("[")[0] for name in alone]
        alone -= run(suite, NAMESPACES[1], 20 * examples, only=" or ".join(sorted(set(names)))).failed()
    return outcomes, alone


def run(suite: Path, namespace: str, examples: int, *, only: str = "") -> Outcome:
    """Run the suite, or `only` what pytest selects by that, on one namespace, in a process of its own.

    Raises:
        RuntimeError: if it did not run to its end.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = [f"--hypothesis-seed={SEED}", f"--max-examples={examples}", "--disable-deadline"]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "array_api_tests",
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            only,
            *options,
        ]
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        path = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
        environment |= {"ARRAY_API_TESTS_MODULE": namespace, "ARRAY_API_TESTS_VERSION": VERSION, "PYTHONPATH": path}
        done = subprocess.run(
            [*command, f"--junit-xml={report}"], cwd=suite, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 1) or not report.exists():
            raise RuntimeError(f"the suite did not run on {namespace}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return Outcome(dict(outcomes_in(report)))


def outcomes_in(report: Path) -> list[tuple[str, str]]:
    found = []
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        what = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found.append((f"{case.get('classname')}::{case.get('name')}", what))
    return found


def table(outcomes: dict[str, Outcome], examples: int, alone: set[str]) -> str:
    """Counts of both, and the tests that fail on ours alone."""
    lines = [f"array API {VERSION}, seed {SEED}, {examples} examples"]
    lines.append(f"{'namespace':<22}{'passed':>8}{'failed':>8}{'skipped':>8}")
    for name in NAMESPACES:
        counts = outcomes[name].counts()
        lines.append(f"{name:<22}{counts['passed']:>8}{counts['failed']:>8}{counts['skipped']:>8}")
    return "\n".join([*lines, f"failed that NumPy passes: {len(alone)}", *sorted(alone)])


def claim(outcomes: dict[str, Outcome], examples: int) -> str:
    """What the guide of `array_api` says of them."""
    ours, numpys = [outcomes[name].counts() for name in NAMESPACES]
    return (
        f"`array_api` passes {ours['passed']:,} of the {ours.total():,} tests in the standard's public suite,"
        f" and NumPy itself passes {numpys['passed']:,} (seed {SEED}, {examples} examples)."
    )


def main() -> int:
    suite, examples = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else EXAMPLES
    outcomes, alone = compare(suite, examples)
    print(table(outcomes, examples, alone))
    print(f"for the guide: {claim(outcomes, examples)}")
    return 1 if alone else 0


if __name__ == "__main__":
    raise SystemExit(main())
