"""The public suite fails nothing that NumPy passes, where a checkout of it is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .conformance import NAMESPACES, Outcome, compare, table

CHECKOUT = os.environ.get("ASYNCSCHED_ARRAY_API_TESTS", "")
EXAMPLES = int(os.environ.get("ASYNCSCHED_ARRAY_API_EXAMPLES", "20"))


@pytest.mark.timeout(3600)
@pytest.mark.skipif(not CHECKOUT, reason="ASYNCSCHED_ARRAY_API_TESTS is not the path of a checkout of array-api-tests")
def test_the_public_suite_fails_nothing_that_numpy_passes():
    for needed in ("ndindex", "pytest_jsonreport"):
        pytest.importorskip(needed, reason="array-api-tests needs it")
    outcomes, alone = compare(Path(CHECKOUT), EXAMPLES)
    print(table(outcomes, EXAMPLES, alone))
    ours, numpys = [outcomes[namespace] for namespace in NAMESPACES]
    assert len(ours.tests) == len(numpys.tests) > 1000
    assert not alone


def test_the_table_names_what_fails_alone():
    ours = Outcome({"a": "passed", "b": "failed", "c": "failed", "d": "skipped"})
    numpys = Outcome({"a": "failed", "b": "failed", "c": "passed", "d": "skipped"})
    lines = table(dict(zip(NAMESPACES, (ours, numpys), strict=True)), 5, {"c"}).splitlines()
    assert [line.split() for line in lines[2:4]] == [["asyncsched.array_api", "1", "2", "1"], ["numpy", "1", "2", "1"]]
    assert lines[4:] == ["failed that NumPy passes: 1", "c"]
