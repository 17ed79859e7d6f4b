"""A pytest plugin: tests that would begin after some time are skipped. For kernels that are not compiled yet.

What is compiled is kept, so the next run comes further. The time is `HOSTCUDA_SECONDS`, from when pytest began.
"""

from __future__ import annotations

import os
from time import monotonic

import pytest

_end = monotonic() + float(os.environ.get("HOSTCUDA_SECONDS", "inf"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if monotonic() > _end:
        pytest.skip("no time left: the next run has the kernels that this one compiled")
