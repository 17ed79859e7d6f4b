"""A little of what `python -m tests.cluster.conformance` runs."""

from __future__ import annotations

from tests.thorough import thoroughly

from .conformance import run, table


@thoroughly
def test_some_of_dasks_own_tests_pass():
    outcome = run("asyncsched", "", "dask.array.tests.test_wrap")
    assert outcome.failed() == set()
    assert outcome.counts()["passed"] >= 10
    assert table({"asyncsched": outcome}, set()).endswith("failed that pass on Dask's threads: 0")
