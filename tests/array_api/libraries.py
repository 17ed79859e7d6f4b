"""The tests of SciPy and scikit-learn for array API namespaces, run on `asyncsched.array_api` and on array_api_strict.

    python -m tests.array_api.libraries [cases [package ...]]

Needs scipy, scikit-learn and array_api_strict besides pytest, and takes long. Of each of their tests it runs so many
cases, evenly spread, by default 3. Prints one table; exits with 1 if a case fails on ours that array_api_strict passes,
but for those whose reason is told below.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import DEVNULL, run
from typing import Any

import pytest

from .conformance import ROOT, Outcome, outcomes_in

OURS, STRICT = NAMESPACES = ("asyncsched.array_api", "array_api_strict")
_NAMESPACE, _CASES = "ASYNCSCHED_TESTED_NAMESPACE", "ASYNCSCHED_TESTED_CASES"  # in the environment of their tests
SCIPY = (
    "cluster", "constants", "differentiate", "fft", "integrate", "interpolate", "ndimage", "optimize", "signal",
    "spatial", "special", "stats",
)  # fmt: skip
SKLEARN = (
    "_loss", "decomposition", "linear_model", "metrics", "mixture", "model_selection", "preprocessing", "tests", "utils"
)  # fmt: skip
PACKAGES = (*[f"scipy.{name}" for name in SCIPY], *[f"sklearn.{name}" for name in SKLEARN])

# It is read-only in no case: sosfilt, detrend and others write to such a copy and return it.
_OUTPUT = "SciPy writes to `np.asarray(output)`, see its remark `XXX: output arrays`; that is a copy here"
_WRITTEN_TO = (
    "_overlap", "test_correlate14", "test_correlate20", "test_correlate22", "test_correlate23", "test_correlate24",
    "test_correlate25", "gradient_magnitude02", "laplace02", "test_generic_laplace01", "test_prewitt02",
    "test_sobel02", "filters.TestThreading", "test_zoom_1_gh20999_output", "tophat01",
)  # fmt: skip
REASONS: dict[str, str] = {  # by a part of the test's name
    **dict.fromkeys(_WRITTEN_TO, _OUTPUT),
    "TestVectorizedFilter::test_input_validation": "text as `cval` raises here, too, in other words than it knows",
}
_HEADS = ("passed", "by ours", "told", "not", "failed")


def main() -> int:
    cases, packages = int((sys.argv[1:2] or ["3"])[0]), sys.argv[2:] or PACKAGES
    print("of what array_api_strict passes: what ours does, what not for a reason told here, what not; failed by ours")
    print(line("package", _HEADS))
    total, unexplained = [0] * len(_HEADS), False
    for package in packages:
        ours, theirs = [tested(package, namespace, cases).tests for namespace in NAMESPACES]
        passed = {
            name for name, what in theirs.items() if what == "passed" and name in ours
        }  # but for those of its own
        lost = {name for name in passed if ours[name] != "passed"}
        told = {name for name in lost if any(part in name for part in REASONS)}
        failed = sum([what == "failed" for what in ours.values()])
        row = [len(passed), len(passed - lost), len(told), len(lost - told), failed]
        total, unexplained = [a + b for a, b in zip(total, row, strict=True)], unexplained or lost > told
        print(line(package, row), *sorted(lost - told), sep="\n  ", flush=True)
    print(line("in all", total))
    return int(unexplained)


def line(package: str, row: Sequence[object]) -> str:
    return f"{package:<26}" + "".join([f"{cell!s:>8}" for cell in row])


def tested(package: str, namespace: str, cases: int) -> Outcome:
    """Run a package's tests on one namespace, in a process of its own.

    Raises:
        RuntimeError: if they did not run to their end.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        names = {_NAMESPACE: namespace, _CASES: str(cases), "SCIPY_ARRAY_API": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", __spec__.name, "-p", "no:cacheprovider"]
        options = ["--pyargs", package, f"--junit-xml={report}", "-W", "ignore"]
        done = run([*command, *options], cwd=folder, env=os.environ | names, stdout=DEVNULL, check=False)
        if done.returncode not in (0, 1) or not report.exists():
            raise RuntimeError(f"the tests of {package} did not run on {namespace}: {' '.join([*command, *options])}")
        return Outcome({name.replace(namespace, "xp"): what for name, what in outcomes_in(report)})


# -- as a plugin of pytest, in those processes ------------------------------------------------------------------------


def pytest_configure() -> None:
    """Have scikit-learn's tests of namespaces run on one alone."""
    from sklearn.utils import _array_api

    name = os.environ[_NAMESPACE]

    def namespaces(include_numpy_namespaces: bool = True) -> Iterator[str]:
        yield name

    def combinations(include_numpy_namespaces: bool = True) -> Iterator[tuple[str, None, str]]:
        for dtype in ("float64", "float32"):
            yield name, None, dtype

    _array_api.yield_namespaces = namespaces
    _array_api.yield_namespace_device_dtype_combinations = combinations


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: Any) -> None:
    """The same for SciPy's, which take it from a fixture."""
    if "xp" in metafunc.fixturenames and "scipy.conftest" in sys.modules:
        name = os.environ[_NAMESPACE]
        sys.modules["scipy.conftest"].xp_known_backends.add(name)
        for definition in metafunc._arg2fixturedefs["xp"]:
            definition.params = (pytest.param(importlib.import_module(name), id=name),)


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave out what has no namespace, and of each test all cases but some."""
    by_test: dict[str, list[Any]] = defaultdict(list)
    name, cases = os.environ[_NAMESPACE], int(os.environ[_CASES])
    for item in items:
        if name in item.name:
            by_test[item.nodeid.partition("[")[0]].append(item)
    items[:] = [case for test in by_test.values() for case in test[:: -(-len(test) // cases)]]


if __name__ == "__main__":
    raise SystemExit(main())
