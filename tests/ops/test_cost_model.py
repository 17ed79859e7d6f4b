"""How long operations take, by estimate."""

from __future__ import annotations

import numpy as np
import pytest

from asyncsched.ops.meta import meta
from asyncsched.ops.op import plan
from asyncsched.ops.table import TABLE


def test_each_plan_has_an_estimate_of_its_time_on_a_stream() -> None:
    x = meta((1000, 1000), np.dtype(np.float32))
    assert plan(TABLE["matmul"], (x, x), {}).estimate == pytest.approx(20e-3)
    assert plan(TABLE["add"], (x, x), {}).estimate == pytest.approx(0.12e-3)
