"""The public suite fails nothing that NumPy passes, where a checkout of it is at hand."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from . import conformance
from .conformance import GUIDE, NAMESPACES, Outcome, claim, compare, table

CHECKOUT = os.environ.get("ASYNCSCHED_ARRAY_API_TESTS", "")
EXAMPLES = int(os.environ.get("ASYNCSCHED_ARRAY_API_EXAMPLES", conformance.EXAMPLES))


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
    if conformance.EXAMPLES == EXAMPLES:
        assert claim(outcomes, EXAMPLES) in GUIDE.read_text(), "write into the guide what is true now"


def test_the_guides_count_is_one_that_the_test_above_makes():
    (said,) = re.findall(r"`array_api` passes .*examples\)\.", GUIDE.read_text())
    passes, of, numpys = [int(number.replace(",", "")) for number in re.findall(r"(?<=\s)[\d,]{4,}(?=\s)", said)]
    tests = [f"test {number}" for number in range(of)]
    ours, theirs = [
        Outcome({test: "passed" if i < count else "failed" for i, test in enumerate(tests)})
        for count in (passes, numpys)
    ]
    assert claim(dict(zip(NAMESPACES, (ours, theirs), strict=True)), conformance.EXAMPLES) == said


def test_the_table_names_what_fails_alone():
    ours = Outcome({"a": "passed", "b": "failed", "c": "failed", "d": "skipped"})
    numpys = Outcome({"a": "failed", "b": "failed", "c": "passed", "d": "skipped"})
    lines = table(dict(zip(NAMESPACES, (ours, numpys), strict=True)), 5, {"c"}).splitlines()
    assert [line.split() for line in lines[2:4]] == [["asyncsched.array_api", "1", "2", "1"], ["numpy", "1", "2", "1"]]
    assert lines[4:] == ["failed that NumPy passes: 1", "c"]
